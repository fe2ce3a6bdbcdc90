"""The cache of a directory that this process may write, shared with all others through the ledger."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import sqlite3
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from forebay import _config
from forebay._cache import _inspect, _recover, _steps
from forebay._cache._api import Cache
from forebay._cache._flight import Flight
from forebay._cache._holders import HolderLock
from forebay._cache._layout import Layout, Trash, chunk_name, empty_trash, remove
from forebay._cache._ledger import Ledger
from forebay._cache._room import budget_of, grant
from forebay._cache._rows import bury, drop_lease, end_flight, find, unready
from forebay._cache._types import Busy, ChunkKey, Problem, Ready
from forebay.exceptions import BudgetTooSmallError, CacheError
from forebay.types import CacheInfo

__all__ = ["SharedCache"]

T = TypeVar("T")
logger = logging.getLogger("forebay")

#: Share of the free space that a cache without a budget may use.
_SHARE_OF_FREE = 0.8
#: Seconds between two looks for dead holders by those who wait for room.
_REAP_INTERVAL = 0.02


@dataclass(slots=True)
class _Held:
    """Our own leases on one chunk, kept to be declared again should the ledger be replaced."""

    chunk: ChunkKey
    hard: int = 0
    soft: int = 0


class SharedCache(Cache):
    """See `Cache`. One object for each directory and process; a forked child becomes a holder of its own."""

    stall_seconds = 60.0

    def __init__(self, layout: Layout, *, max_bytes: int | None, on_close: Callable[[SharedCache], bool]) -> None:
        self.layout = layout
        self.directory = layout.directory
        self.evictions = 0
        self.process = object()
        self.ledger = Ledger(layout, lambda connection: _recover.adopt(connection, layout))
        self.entry = threading.RLock()  # guards becoming a holder; taken before the ledger's mutex
        self._asked = max_bytes
        self._holder: tuple[int, HolderLock] | None = None
        self._held: dict[str, _Held] = {}
        self._subscribers: dict[object, Callable[[], None]] = {}
        self._on_close = on_close
        self._reaped_at = 0.0
        self._closed = False
        used = self.ledger.read(lambda connection: budget_of(connection, 0)).used
        self._fallback = int(_SHARE_OF_FREE * (shutil.disk_usage(self.directory).free + used))
        self._bury_dead()

    # Becoming and being a holder.

    def register(self) -> int:
        """Become a holder, if this process is none yet; returns the row."""
        holder = self._holder
        if holder is not None:
            return holder[0]
        with self.entry:
            if self._holder is None:
                self._bury_dead()
                lock = HolderLock(self.layout.holders)
                try:
                    number, smaller = self._write(partial(self._insert_holder, token=lock.token))
                except BaseException:
                    lock.close()
                    raise
                self._holder = (number, lock)
                self._say_smaller(smaller)
            return self._holder[0]

    def ask_budget(self, max_bytes: int | None) -> None:
        """Another part of this process opened the directory: the smaller budget rules."""
        if max_bytes is None:
            return
        self._asked = max_bytes if self._asked is None else min(self._asked, max_bytes)
        asked, holder = self._asked, self._holder
        self._write(
            lambda connection, trash: _steps.lower_budget(
                connection, self.layout, asked, None if holder is None else holder[0], trash
            )
        )

    def _insert_holder(self, connection: sqlite3.Connection, trash: Trash, *, token: str) -> tuple[int, int | None]:
        _recover.begin_run(connection, self.layout, trash)
        others, recorded = connection.execute(
            "SELECT (SELECT min(budget) FROM holders), budget FROM account"
        ).fetchone()
        mine = self._asked if self._asked is not None else recorded if recorded is not None else self._fallback
        number = secrets.randbits(62)
        connection.execute(
            "INSERT INTO holders (id, token, pid, host, budget, since) VALUES (?, ?, ?, ?, ?, ?)",
            (number, token, os.getpid(), socket.gethostname(), mine, _config.wall_clock()),
        )
        for name, held in self._held.items():
            _steps.declare(connection, name, held.chunk, number, held.hard, held.soft)
        _steps.lower_budget(connection, self.layout, self._asked, None, trash)
        return number, others if others is not None and others != mine else None

    def _say_smaller(self, other: int | None) -> None:
        if other is None or self._asked is None:
            return
        size = _config.format_size
        logger.warning(
            "two budgets for the cache %s: %s here, %s by another living process; the smaller rules while both live",
            self.directory,
            size(self._asked),
            size(other),
        )

    def _forget_holder(self, number: int) -> None:
        """Our row is gone: the ledger was replaced, or somebody removed our lock file and we were taken for dead."""
        with self.entry:
            if self._holder is not None and self._holder[0] == number:
                self._holder[1].close()
                self._holder = None

    def forked(self) -> None:
        """In a forked child, before anything else runs: nothing of the parent's is ours."""
        holder, self._holder = self._holder, None
        if holder is not None:
            holder[1].forget()
        self.process = object()
        self.entry = threading.RLock()
        self.ledger.reset_after_fork()
        self._held.clear()
        self._subscribers.clear()
        self.evictions = 0

    # Leases.

    def acquire(self, chunk: ChunkKey, *, hard: bool) -> Ready | Busy | Flight:
        """See `Cache`."""
        return self._enter(chunk, hard=hard, lease=True)

    def poll(self, chunk: ChunkKey, *, hard: bool) -> Ready | Busy | Flight:
        """See `Cache`."""
        name, holder = chunk_name(chunk), self.register()
        seen = self.ledger.read(lambda connection: _steps.look(connection, self.layout, name, holder))
        if not seen.registered:
            self._forget_holder(holder)
            return self._enter(chunk, hard=hard, lease=False)
        if seen.ready is not None:
            return seen.ready
        if seen.busy is None:
            return self._enter(chunk, hard=hard, lease=False)
        if seen.holder != holder and _recover.reap_one(self.ledger, seen.holder, seen.token):
            self._notify()
            return self._enter(chunk, hard=hard, lease=False)
        if _config.monotonic() - seen.beat > self.stall_seconds:
            logger.warning("the fetch of %s by %s stalls; it is taken over", chunk.url, seen.busy.holder)
            return self._enter(chunk, hard=hard, lease=False, seize=seen.flight)
        return seen.busy

    def release(self, chunk: ChunkKey, *, hard: bool) -> None:
        """See `Cache`."""
        if self._closed:
            return  # every lease went when the cache was closed
        if self._count(chunk, hard=hard, by=-1):
            name, holder = chunk_name(chunk), self._holder
            number = -1 if holder is None else holder[0]
            now = _config.wall_clock()
            self.ledger.write_or_defer(lambda connection: drop_lease(connection, name, number, now, hard=hard))
            self._notify()

    def harden(self, chunk: ChunkKey) -> bool:
        """See `Cache`."""
        name = chunk_name(chunk)

        def kept(outcome: _steps.Hardened) -> None:
            held = self._held.get(name)
            if held is None or not held.soft:
                return
            held.soft -= outcome in ("hardened", "gone")
            held.hard += outcome == "hardened"
            if not held.hard + held.soft:
                del self._held[name]

        outcome = self._as_holder(
            lambda number: partial(_steps.harden, layout=self.layout, name=name, holder=number), kept
        )
        self._notify()
        return outcome in ("hardened", "already")

    def soften(self, chunk: ChunkKey) -> None:
        """See `Cache`."""
        if self._count(chunk, hard=True, by=-1):
            self._count(chunk, hard=False, by=1)
            name, number = chunk_name(chunk), self.register()
            self.ledger.write_or_defer(lambda connection: _steps.soften(connection, name, number))
            self._notify()

    def _count(self, chunk: ChunkKey, *, hard: bool, by: int) -> bool:
        """Keep our own account of our leases; False where one was to go that is not there."""
        name, kind = chunk_name(chunk), "hard" if hard else "soft"
        with self.ledger.mutex:
            held = self._held.setdefault(name, _Held(chunk))
            count = getattr(held, kind) + by
            if count >= 0:
                setattr(held, kind, count)
            if not held.hard + held.soft:
                del self._held[name]
        if count < 0:
            logger.warning("a %s lease on %s was given back more often than taken; ignored", kind, chunk.url)
        return count >= 0

    def _enter(self, chunk: ChunkKey, *, hard: bool, lease: bool, seize: int | None = None) -> Ready | Busy | Flight:
        name = chunk_name(chunk)
        outcome = self._as_holder(
            lambda number: partial(
                _steps.enter,
                layout=self.layout,
                name=name,
                chunk=chunk,
                holder=number,
                hard=hard,
                lease=lease,
                seize=seize,
            ),
            partial(self._took, chunk, hard) if lease else None,
        )
        if not isinstance(outcome, _steps.NewFlight):
            return outcome
        flight = Flight(self, chunk, outcome.id, Path(self.layout.final(outcome.temp)), hard=hard)
        try:
            self.layout.make_dataset_folder(name)
        except BaseException:
            flight.abort()
            raise
        return flight

    def _as_holder(
        self,
        step: Callable[[int], Callable[[sqlite3.Connection, Trash], T]],
        then: Callable[[T], object] | None,
    ) -> T:
        """Run a step that needs our row in the ledger, and register again where the row is gone."""
        for _ in range(5):
            number = self.register()
            try:
                return self._write(step(number), then)
            except _steps.UnregisteredError:
                self._forget_holder(number)
        raise CacheError(
            f"{self.directory}: the ledger forgets this process again and again; something removes its files",
            path=str(self.directory),
        )

    def _took(self, chunk: ChunkKey, hard: bool, _outcome: object) -> None:
        self._count(chunk, hard=hard, by=1)

    # A flight's way; called by `Flight`.

    def reserve(self, flight: int, total: int, *, hard: bool) -> bool:
        """Make a flight's reservation ``total`` bytes if there is room, evicting what may go."""
        try:
            done = self._grant(flight, total, hard=hard)
        except BudgetTooSmallError:
            if not self._bury_dead():  # the small budget may be a dead process's
                raise
            done = self._grant(flight, total, hard=hard)
        if done:
            return True
        now = _config.monotonic()
        if now - self._reaped_at < _REAP_INTERVAL:
            return False
        self._reaped_at = now
        return self._bury_dead() > 0 and self._grant(flight, total, hard=hard)

    def _grant(self, flight: int, total: int, *, hard: bool) -> bool:
        granted, evicted = self._write(
            lambda connection, trash: grant(
                connection, self.layout, flight, total, hard=hard, fallback=self._fallback, trash=trash
            )
        )
        self.evictions += evicted
        if evicted:
            self._notify()
        return granted

    def publish(self, chunk: ChunkKey, flight: int, temp: Path, *, size: int, digest: str, etag: str | None) -> Ready:
        """Give a finished file its name, and say so, in one transaction."""
        name = chunk_name(chunk)
        self.ledger.write(
            partial(
                _steps.publish,
                layout=self.layout,
                name=name,
                flight=flight,
                temp=temp,
                size=size,
                digest=digest,
                etag=etag,
                fallback=self._fallback,
            )
        )
        self._notify()
        return Ready(path=Path(self.layout.final(name)), bytes=size, digest=digest, trusted=True)

    def abort(self, chunk: ChunkKey, flight: int, temp: Path, *, hard: bool) -> None:
        """Forget a flight, its file and its lease, now or with the next change of the ledger."""
        trash: Trash = []
        remove(temp, trash)
        empty_trash(trash)
        if self._closed:
            return  # everything else of ours went with the holder
        counted = self._count(chunk, hard=hard, by=-1)
        name, number = chunk_name(chunk), -1 if self._holder is None else self._holder[0]
        now = _config.wall_clock()

        def forget(connection: sqlite3.Connection) -> None:
            end_flight(connection, self.layout, flight, trash)
            if counted:
                drop_lease(connection, name, number, now, hard=hard)
            empty_trash(trash)

        self.ledger.write_or_defer(forget)
        self._notify()

    def beat(self, flight: int, now: float) -> None:
        """Note that a flight moves."""
        self.ledger.write_or_defer(
            lambda connection: connection.execute("UPDATE flights SET beat = ? WHERE id = ?", (now, flight))
        )

    # Chunks.

    def discard(self, chunk: ChunkKey) -> None:
        """See `Cache`."""
        name = chunk_name(chunk)

        def drop(connection: sqlite3.Connection, trash: Trash) -> None:
            row = find(connection, name)
            if row is not None and row.ready and not unready(connection, self.layout, row.id, name, trash):
                path = self.layout.final(name)
                raise CacheError(f"{path} is damaged and cannot be removed: remove it by hand", path=path)

        self._write(drop)
        self._notify()

    def trust(self, chunk: ChunkKey) -> None:
        """See `Cache`."""
        name = chunk_name(chunk)
        self.ledger.write_or_defer(
            lambda connection: connection.execute(
                "UPDATE chunks SET run = (SELECT run FROM account) WHERE name = ? AND ready = 1", (name,)
            )
        )

    def meta(self, chunk: ChunkKey) -> Mapping[str, str | None] | None:
        """See `Cache`."""
        name = chunk_name(chunk)
        found = self.ledger.read(
            lambda connection: connection.execute(
                "SELECT etag, digest FROM chunks WHERE name = ? AND ready = 1", (name,)
            ).fetchone()
        )
        return None if found is None else {"etag": found[0], "digest": found[1]}

    # Looking on.

    @property
    def max_bytes(self) -> int:
        """See `Cache`."""
        return self.ledger.read(lambda connection: budget_of(connection, self._fallback)).limit

    def version(self) -> int:
        """See `Cache`."""
        return self.ledger.version()

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """See `Cache`."""
        key = object()
        self._subscribers[key] = callback

        def unsubscribe() -> None:
            self._subscribers.pop(key, None)

        return unsubscribe

    def _notify(self) -> None:
        for callback in list(self._subscribers.values()):
            callback()

    def describe(self) -> str:
        """See `Cache`."""
        return self.ledger.read(lambda connection: _inspect.describe(connection, self._fallback))

    def info(self) -> CacheInfo:
        """See `Cache`."""
        self._reap()
        return self.ledger.read(lambda connection: _inspect.info(connection, self._fallback))

    def refcount(self, chunk_url: str) -> int:
        """See `Cache`."""
        self._reap()
        return self.ledger.read(lambda connection: _inspect.refcount(connection, chunk_url))

    def verify(self) -> list[Problem]:
        """See `Cache`."""
        return _inspect.verify(self.ledger, self._fallback)

    def gc(self) -> None:
        """See `Cache`."""
        self._reap()
        self._write(lambda connection, trash: _steps.collect(connection, self.layout, self._fallback, trash))
        self._notify()

    def clear(self) -> None:
        """See `Cache`."""
        self._reap()
        kept = self._write(lambda connection, trash: _steps.clear(connection, self.layout, trash))
        self._notify()
        if kept:
            raise CacheError(
                f"{self.directory}: {kept} chunks are in use and stay, everything else is removed;"
                f" close their readers and clear again ({self.describe()})",
                path=str(self.directory),
            )

    def close(self) -> None:
        """See `Cache`."""
        if not self._on_close(self):
            return
        with self.entry:
            self._closed = True
            holder, self._holder = self._holder, None
            if holder is not None:
                self.ledger.write_or_defer(partial(self._leave, number=holder[0]))
                holder[1].close()
            self._held.clear()
            self._subscribers.clear()
            self.ledger.close()

    def _leave(self, connection: sqlite3.Connection, *, number: int) -> None:
        trash: Trash = []
        bury(connection, self.layout, number, trash)
        empty_trash(trash)

    def _bury_dead(self) -> int:
        """Bury dead holders; returns how many."""
        holder = self._holder
        return _recover.reap(self.ledger, None if holder is None else holder[0])

    def _reap(self) -> None:
        if self._bury_dead():
            self._notify()

    def _write(self, work: Callable[[sqlite3.Connection, Trash], T], then: Callable[[T], object] | None = None) -> T:
        """Run ``work`` in a transaction, and free the disk space of what it unlinked when that is over."""
        trash: Trash = []
        try:
            return self.ledger.write(lambda connection: work(connection, trash), then)
        finally:
            empty_trash(trash)
