"""What may be in flight at one time: a number of requests and a number of bytes, adapted to what the link gives."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from forebay import _config

__all__ = ["InFlight", "LimiterSettings"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterSettings:
    """Bounds of the requests and bytes in flight."""

    start: int = 16
    floor: int = 2
    ceiling: int = 64
    max_bytes: int = 256 * MIB
    interval: float = 0.5


class InFlight:
    """Grants slots by priority: the smallest tuple first, so the first chunk's parts come before later chunks.

    The number of requests follows the link: one step up after an interval in which every slot was taken and the
    throughput rose, half after the store throttled. A slot larger than ``max_bytes`` is granted when nothing else is in
    flight, so that no size waits for ever.
    """

    def __init__(self, settings: LimiterSettings | None = None, clock: Callable[[], float] = _config.monotonic) -> None:
        self.settings = settings or LimiterSettings()
        self.limit = self.settings.start
        self.requests = 0
        self.bytes = 0
        self._share = 1
        self._clock = clock
        self._order = itertools.count()
        self._waiting: list[tuple[tuple[int, ...], int, int, asyncio.Future[None]]] = []
        self._window_start = clock()
        self._window_bytes = 0
        self._window_full = False
        self._best_rate = 0.0
        self._calm_until = 0.0

    @asynccontextmanager
    async def slot(self, priority: tuple[int, ...], nbytes: int) -> AsyncIterator[None]:
        """Hold one request and ``nbytes`` in flight for the length of the block."""
        await self._enter(priority, nbytes)
        try:
            yield
        finally:
            self._leave(nbytes)

    def moved(self, nbytes: int) -> None:
        """Count bytes that arrived, and adapt at the end of each interval."""
        self._window_bytes += nbytes
        now = self._clock()
        passed = now - self._window_start
        if passed >= self.settings.interval:
            self._adapt(self._window_bytes / passed, now)

    def throttled(self) -> None:
        """Halve the number of requests; once an interval, since one burst brings many such answers."""
        now = self._clock()
        if now >= self._calm_until:
            self.limit = max(self.settings.floor, self.limit // 2)
            self._calm_until = now + self.settings.interval
            self._best_rate = 0.0

    def share(self, processes: int) -> None:
        """Say how many processes use the same cache directory; each takes its part of the bounds."""
        self._share = max(processes, 1)
        self._grant()

    def _adapt(self, rate: float, now: float) -> None:
        if self._window_full and now >= self._calm_until and rate > 1.05 * self._best_rate:
            self.limit = min(self.settings.ceiling, self.limit + max(2, self.limit // 4))
        self._best_rate = max(rate, 0.9 * self._best_rate)
        self._window_start, self._window_bytes, self._window_full = now, 0, bool(self._waiting)
        self._grant()

    def _fits(self, nbytes: int) -> bool:
        if self.requests == 0:
            return True
        if self.requests >= max(self.settings.floor, self.limit // self._share):
            return False
        return self.bytes + nbytes <= max(self.settings.max_bytes // self._share, 1)

    async def _enter(self, priority: tuple[int, ...], nbytes: int) -> None:
        if not self._waiting and self._fits(nbytes):
            self.requests += 1
            self.bytes += nbytes
            return
        self._window_full = True
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._order), nbytes, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._leave(nbytes)  # granted and cancelled in the same turn of the loop
            else:
                self._grant()
            raise

    def _leave(self, nbytes: int) -> None:
        self.requests -= 1
        self.bytes -= nbytes
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            _, _, nbytes, granted = self._waiting[0]
            if granted.cancelled():
                heapq.heappop(self._waiting)
                continue
            if not self._fits(nbytes):
                return
            heapq.heappop(self._waiting)
            self.requests += 1
            self.bytes += nbytes
            granted.set_result(None)
