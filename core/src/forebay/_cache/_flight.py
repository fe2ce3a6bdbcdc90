"""The right and the duty to fetch one chunk."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from forebay import _config
from forebay._cache._types import ChunkKey, FlightLostError, Ready

if TYPE_CHECKING:
    from forebay._cache._shared import SharedCache

__all__ = ["Flight"]


class Flight:
    """One download, from the first reserved byte to the published chunk. Thread-safe.

    ``hard`` is this flight's place in the queue for room, and may be switched on when somebody comes to wait for what
    was prefetched; the lease stays of the kind that was asked for.

    Attributes:
        temp: Where to write: unique, in the final directory, not yet created.
        reserved: Bytes that may lie there.
    """

    def __init__(self, cache: SharedCache, chunk: ChunkKey, number: int, temp: Path, *, hard: bool) -> None:
        self.temp = temp
        self.hard = hard
        self.reserved = 0
        self._lease_hard = hard
        self._cache = cache
        self._chunk = chunk
        self._number = number
        self._process = cache.member.process
        self._beaten = _config.monotonic()
        self._known_hard = hard
        self._over = False
        self._lock = threading.Lock()

    def reserve(self, total: int) -> bool:
        """Make the reservation ``total`` bytes, evicting what may go; it never shrinks.

        Returns:
            False where there is no room now: ask again when the cache's version moved, and at least each second, to
            keep one's turn. A hard flight keeps its place in the queue.

        Raises:
            BudgetTooSmallError: It can never fit.
            FlightLostError: The flight was taken over or gave way; abort it and ask the cache again.
        """
        self._check()
        if total <= self.reserved:
            return True
        hard = self.hard
        granted = self._cache.reserve(self._number, total, hard=hard)
        self._known_hard = hard
        if not granted:
            return False
        self.reserved = total
        self._beaten = _config.monotonic()
        return True

    def publish(self, *, bytes: int, digest: str, etag: str | None = None) -> Ready:
        """Give the finished file its name. The lease that came with the flight stays.

        Raises:
            FlightLostError: The flight was taken over or gave way.
            CacheError: The file is not there, of another size, or larger than what was reserved.
        """
        with self._lock:
            self._check()
            ready = self._cache.publish(
                self._chunk, self._number, self.temp, size=bytes, digest=digest, etag=etag, early=not self.hard
            )
            self._over = True
            return ready

    def abort(self) -> None:
        """Give up: the file, the reservation and the lease of the flight go, and waiters wake. Works twice, and always.

        What the ledger cannot take now (locked, disk full) is done with its next change.
        """
        with self._lock:
            if self._over or self._process != self._cache.member.process:
                return  # done; or inherited through fork, and the parent's
            self._over = True
            self.reserved = 0
            self._cache.abort(self._chunk, self._number, self.temp, hard=self._lease_hard)

    def beat(self) -> None:
        """Say that the download moves, and whether somebody waits; cheap, and silent after the flight's end.

        Raises:
            FlightLostError: The flight was taken over or gave way.
        """
        now = _config.monotonic()
        due = now - self._beaten > min(self._cache.stall_seconds / 8, 2.0) or self.hard != self._known_hard
        if due and not self._over:
            self._check()
            self._beaten, self._known_hard = now, self.hard
            self._cache.beat(self._number, now, hard=self._known_hard)

    def _check(self) -> None:
        if self._over:
            raise FlightLostError("the fetch is over")
        if self._process != self._cache.member.process:
            raise FlightLostError("the fetch belongs to the process that was forked")

    def __repr__(self) -> str:
        return f"Flight({self._chunk.url!r}, reserved={self.reserved}, hard={self.hard})"
