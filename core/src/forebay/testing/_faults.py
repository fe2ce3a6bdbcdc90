"""What a `FaultServer` can be told to do wrong, and what it remembers of its requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Fault", "Gate", "Script", "ServedRequest"]


class Gate:
    """A point where responses wait until a test says go: set from any thread, once for all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_open = False
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def open(self) -> None:
        """Let all waiting and all later responses pass."""
        with self._lock:
            self._is_open = True
            waiters, self._waiters = self._waiters, []
        for loop, event in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def passed(self) -> None:
        """Wait for `open`."""
        event = asyncio.Event()
        with self._lock:
            if self._is_open:
                return
            self._waiters.append((asyncio.get_running_loop(), event))
        await event.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way in which a response goes wrong; fields combine.

    ``cut`` (orderly close), ``reset`` (RST), ``hang`` and ``gate`` act before the status line, or once ``after`` bytes
    of the body were sent.
    """

    #: Answer with this status instead of the object; ``headers`` and ``body`` go with it (a redirect is 302 with
    #: a Location header).
    status: int | None = None
    #: Added to the response, replacing a header of the same name. An empty value removes the header.
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    #: Seconds before the status line.
    delay: float = 0.0
    #: ``(bytes, seconds)``: a pause after each piece of so many bytes.
    drip: tuple[int, float] | None = None
    cut: bool = False
    reset: bool = False
    hang: bool = False
    gate: Gate | None = None
    after: int | None = None
    #: Flip the bits of the body's byte at this place.
    corrupt_at: int | None = None
    #: Send this many bytes more than the promised length says (the connection closes behind them).
    extra: int = 0
    #: Answer a range request with 200 and the whole body.
    ignore_range: bool = False
    #: Serve, and claim in Content-Range, a range that starts so many bytes later (or earlier) than the asked one.
    shift_range: int = 0
    #: Claim this Content-Range for the right bytes.
    content_range: str | None = None
    #: Send the body gzip-encoded (whole, ranges are ignored), as servers do that compress on the fly.
    gzip: bool = False
    #: How the body's end is told: Content-Length, chunks, or the close of the connection.
    framing: Literal["length", "chunked", "close"] = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """A request as it arrived. Header names are in lower case; ``target`` is the path and query as sent."""

    method: str
    target: str
    key: str
    query: str
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def path(self) -> str:
        """The path as sent, still percent-encoded, without the query."""
        return self.target.partition("?")[0]

    @property
    def range(self) -> str | None:
        """The Range header, or Azure's own name for it."""
        return self.headers.get("x-ms-range") or self.headers.get("range")


@dataclass(slots=True)
class Script:
    """A fault waiting for its requests."""

    key: str | None
    fault: Fault
    methods: frozenset[str]
    skip: int
    times: int | None

    def take(self, request: ServedRequest) -> bool:
        """Whether this request gets the fault; counts it."""
        if request.method not in self.methods or self.key not in (None, request.key) or self.times == 0:
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True
