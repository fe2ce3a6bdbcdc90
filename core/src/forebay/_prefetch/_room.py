"""The wait for room: one flight's reservation as it grows, and what is said where there is none."""

from __future__ import annotations

import logging
import threading
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from forebay import _config
from forebay._cache import Flight
from forebay._prefetch._limiter import InFlight
from forebay._prefetch._request import ChunkRequest
from forebay.exceptions import CacheFullError

if TYPE_CHECKING:
    from forebay._prefetch._engine import Engine

__all__ = ["GiveWay", "Metered", "Room"]

logger = logging.getLogger("forebay")

#: Seconds that a growing chunk of unknown size holds a part of the room before it lets another go first.
GIVE_WAY_AFTER = 2.0
#: Seconds after which it is said that paths in the user's hands are what a waiter waits for.
WARN_AFTER = 5.0


class GiveWay(Exception):
    """There is no room for the request now, and it must not stand in anybody's way."""


class Room:
    """Grows one flight's reservation; the transfer asks before it writes."""

    def __init__(self, engine: Engine, request: ChunkRequest, flight: Flight) -> None:
        self._engine = engine
        self._request = request
        self._flight = flight

    async def ensure(self, total: int) -> None:
        """Return once ``total`` bytes may lie in the temporary file.

        Raises:
            GiveWay: Somebody else has to go first.
            CacheFullError: The deadline is over, or nobody could make room but the thread that waits.
        """
        engine, request, flight = self._engine, self._request, self._flight
        begin = last = _config.monotonic()
        patience = GIVE_WAY_AFTER * (1 + _config.random().random())
        while True:
            flight.hard = request.hard
            if await engine.steady(flight.reserve, total):
                return
            now = _config.monotonic()
            if not request.hard or (flight.reserved and now - begin > patience):
                raise GiveWay
            if request.thread is not None and await engine.steady(engine.holdings.let_go, request.thread):
                continue  # that reader cannot go on before this one does
            before, request.waited, last = request.waited, request.waited + now - last, now
            await engine.steady(self._check_hands, total, before)
            if request.waited > engine.room_timeout:
                raise CacheFullError(
                    f"no room for {_config.format_size(total)} ({request.key.url}) within {engine.room_timeout:.0f} s:"
                    f" {await engine.steady(engine.cache.describe)};"
                    " raise max_cache_bytes or let the other readers go on",
                    path=str(engine.cache.directory),
                )
            flight.beat()
            await engine.changed()

    def _check_hands(self, total: int, waited_before: float) -> None:
        """See whether there could be room while the user holds the paths that `fetch` returned in this process.

        Raises:
            CacheFullError: There cannot, and no thread is left that could release one.
        """
        engine, request = self._engine, self._request
        paths = engine.holdings.paths()
        if not paths or total <= engine.cache.room_beside(paths.values()):
            return
        late = request.waited > engine.room_timeout
        alone = request.thread is not None and not _others(request.thread)
        warn = waited_before <= WARN_AFTER < request.waited
        if not (late or alone or warn):
            return
        text = (
            f"no room for {_config.format_size(total)} ({request.key.url}) in the budget of"
            f" {_config.format_size(engine.cache.max_bytes)} while this process holds {len(paths)} path"
            f"{'s' if len(paths) > 1 else ''} that fetch() returned, {next(iter(paths))} first: call"
            " forebay.release(path) for what is not needed any more, or raise max_cache_bytes"
        )
        if late or alone:
            raise CacheFullError(text, path=str(engine.cache.directory))
        logger.warning("%s", text)


def _others(waiting: int) -> list[str]:
    """Threads of the user beside the one that waits."""
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.ident != waiting and not thread.name.startswith("forebay-")
    ]


class Metered:
    """The shared limiter, as one flight sees it: bytes that move are its sign of life."""

    def __init__(self, limiter: InFlight, request: ChunkRequest, flight: Flight) -> None:
        self._limiter = limiter
        self._request = request
        self._flight = flight

    def slot(self, priority: tuple[int, ...], nbytes: int) -> AbstractAsyncContextManager[None]:
        """Hold one request and ``nbytes`` in flight."""
        return self._limiter.slot(priority, nbytes)

    def moved(self, nbytes: int) -> None:
        """Count bytes that arrived."""
        self._flight.hard = self._request.hard
        self._flight.beat()
        self._limiter.moved(nbytes)

    def throttled(self) -> None:
        """Slow down."""
        self._flight.beat()
        self._limiter.throttled()
