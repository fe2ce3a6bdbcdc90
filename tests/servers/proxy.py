"""A proxy of ours in front of any store: passes requests on, and bends every so-manieth response."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

__all__ = ["Plan", "Proxy", "Seen"]

_PIECE = 256 * 1024
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 0\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every how many requests a fault comes (0: never); exact rates, so that a test is the same each time.

    ``after`` is how many bytes of the response's stream pass before a reset, a cut or a hang. ``delay`` is in seconds,
    before each request is passed on.
    """

    busy: int = 0
    reset: int = 0
    cut: int = 0
    hang: int = 0
    after: int = 600
    delay: float = 0.0

    def fault(self, number: int) -> str | None:
        """What happens to the ``number``-th request."""
        for name in ("hang", "reset", "cut", "busy"):
            every = getattr(self, name)
            if every and number % every == every // 2:
                return str(name)
        return None


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it came: header names are in small letters."""

    method: str
    target: str
    headers: dict[str, str]

    @classmethod
    def read(cls, head: bytes) -> Seen:
        """From the bytes up to the empty line."""
        line, *rest = head.decode("latin-1").split("\r\n")
        method, target, _ = line.split(" ", 2)
        pairs = (one.split(":", 1) for one in rest if ":" in one)
        return cls(method, target, {name.lower(): value.strip() for name, value in pairs})


class Proxy:
    """Listens on a free loopback port and talks to ``port``, in a thread of its own, as a context manager.

    Args:
        port: Of the server behind it.
        plan: What goes wrong.
        host: Sent as Host instead of the client's, for servers that know themselves by one name only.
    """

    def __init__(self, port: int, plan: Plan, *, host: str | None = None) -> None:
        self._behind = port
        self._plan = plan
        self._host = host
        self.port = 0
        self.requests = 0
        self.faults: Counter[str] = Counter()
        #: What was asked, in order of arrival.
        self.seen: list[Seen] = []
        #: Looks at each request and may answer it with a whole response, in place of the server.
        self.gate: Callable[[Seen], bytes | None] | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fault-proxy")

    @property
    def endpoint(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Proxy:
        self._thread.start()
        assert self._ready.wait(10), "the proxy did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, limit=1 << 20)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _connection(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        writers = [back]
        try:
            # Cancelled is a connection that was still open when the proxy stopped.
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                server, forth = await asyncio.open_connection("127.0.0.1", self._behind, limit=1 << 20)
                writers.append(forth)
                await _Connection(self, client, back, server, forth).run()
        finally:
            for writer in writers:
                writer.transport.abort() if self._stop.is_set() else writer.close()

    def next_fault(self) -> str | None:
        """Count a request; what happens to it."""
        self.requests += 1
        fault = self._plan.fault(self.requests)
        if fault is not None:
            self.faults[fault] += 1
        return fault

    def look(self, head: bytes) -> bytes | None:
        """Note a request; the gate's answer to it, None where the server answers."""
        asked = Seen.read(head)
        self.seen.append(asked)
        return None if self.gate is None else self.gate(asked)

    @property
    def plan(self) -> Plan:
        """What goes wrong."""
        return self._plan

    def renamed(self, head: bytes) -> bytes:
        """The request's head with the Host that the server wants."""
        if self._host is None:
            return head
        return re.sub(rb"(?i)\r\nhost:[^\r]*", b"\r\nHost: " + self._host.encode(), head, count=1)


class _Connection:
    """One connection of the client's, and its own one to the server."""

    def __init__(
        self,
        proxy: Proxy,
        client: asyncio.StreamReader,
        back: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        forth: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._client = client
        self._back = back
        self._server = server
        self._forth = forth
        self._left: int | None = None  # bytes until the fault
        self._fault = ""
        self._silent = False

    async def run(self) -> None:
        """Pump both ways until one side has had enough."""
        there, back = asyncio.ensure_future(self._requests()), asyncio.ensure_future(self._responses())
        try:
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (there, back):
                task.cancel()
            await asyncio.gather(there, back, return_exceptions=True)

    async def _requests(self) -> None:
        while True:
            head = await self._client.readuntil(b"\r\n\r\n")
            fault = self._proxy.next_fault()
            if self._proxy.plan.delay:
                await asyncio.sleep(self._proxy.plan.delay)
            answer = self._proxy.look(head)
            if fault == "busy":
                answer = _BUSY
            if answer is not None:
                self._back.write(answer)
                continue
            if fault is not None:
                self._fault, self._left = fault, self._proxy.plan.after
            self._forth.write(self._proxy.renamed(head))
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            left = int(length[1]) if length else 0
            while left:
                piece = await self._client.read(min(left, _PIECE))
                left -= len(piece)
                self._forth.write(piece)
                await self._forth.drain()

    async def _responses(self) -> None:
        while piece := await self._server.read(_PIECE):
            if self._left is not None and len(piece) >= self._left:
                self._back.write(piece[: self._left])
                await self._back.drain()
                if self._fault == "hang":
                    await asyncio.Event().wait()  # until the client goes away
                if self._fault == "reset":
                    sock: socket.socket = self._back.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            if self._left is not None:
                self._left -= len(piece)
            self._back.write(piece)
            await self._back.drain()
