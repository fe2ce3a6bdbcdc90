"""The cache of a directory that this process may write, shared with all others through the ledger."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from forebay import _config
from forebay._cache import _eager, _inspect, _recover, _report, _room, _steps, _windows
from forebay._cache._api import Cache
from forebay._cache._flight import Flight
from forebay._cache._layout import Layout, Trash, chunk_name, dustbin, remove
from forebay._cache._member import Member
from forebay._cache._plans import PlanReader, SharedPlanReader
from forebay._cache._room import budget_of, grant, has_room, shrink
from forebay._cache._rows import drop_unwanted, end_flight, find, lease_ready, set_lease, unready
from forebay._cache._types import Busy, ChunkKey, Problem, Ready
from forebay.exceptions import BudgetTooSmallError, CacheError, CacheFullError, CacheLockTimeoutError
from forebay.types import CacheInfo

if TYPE_CHECKING:
    from forebay._cache._foresight import Foresight

__all__ = ["SharedCache"]

T = TypeVar("T")
logger = logging.getLogger("forebay")

#: Seconds between two looks for dead holders by those who wait for room.
_REAP_INTERVAL = 0.02


class SharedCache(Cache):
    """See `Cache`. One object for each directory and process; a forked child becomes a holder of its own."""

    stall_seconds = 60.0

    def __init__(self, layout: Layout, *, max_bytes: int | None, on_close: Callable[[SharedCache], bool]) -> None:
        self.layout = layout
        self.directory = layout.directory
        self.evictions = 0
        self.member = Member(layout, max_bytes=max_bytes)
        self._ledger = self.member.ledger
        self._subscribers: dict[object, Callable[[], None]] = {}
        self._on_close = on_close
        self._reaped_at = 0.0
        self._by_plans = _config.eviction() == "clairvoyant"
        self._foresight: Foresight | None = None
        self._closed = False
        with suppress(CacheFullError):  # they stay for whoever comes when there is room; looking on works meanwhile
            self.member.bury_dead()

    def forked(self) -> None:
        """In a forked child, before anything else runs."""
        self.member.forked()
        self._subscribers.clear()
        self._foresight = None
        self.evictions = 0

    def acquire(self, chunk: ChunkKey, *, hard: bool) -> Ready | Busy | Flight:
        """See `Cache`."""
        name, holder, member = chunk_name(chunk), self.member.register(), self.member
        row = self._ledger.quick(
            lambda connection: lease_ready(connection, name, holder, hard=hard),
            lambda _: member.count(chunk, hard=int(hard), soft=int(not hard)),
        )
        if row is None:
            return self._enter(chunk, hard=hard, lease=True)
        try:  # the lease keeps the file, if it is there
            return _steps.as_ready(self.layout, row) or self._enter(chunk, hard=hard, lease=False)
        except BaseException:  # it is raised again
            self.release(chunk, hard=hard)
            raise

    def poll(self, chunk: ChunkKey, *, hard: bool) -> Ready | Busy | Flight:
        """See `Cache`."""
        name, holder = chunk_name(chunk), self.member.register()
        seen = self._ledger.read(lambda connection: _steps.look(connection, self.layout, name, holder))
        if seen.registered and seen.ready is not None:
            return seen.ready
        if not seen.registered or seen.busy is None:
            return self._enter(chunk, hard=hard, lease=False)
        if seen.holder != holder and _recover.reap_one(self._ledger, seen.holder, seen.token):
            self._notify()
            return self._enter(chunk, hard=hard, lease=False)
        if _config.monotonic() - seen.beat > self.stall_seconds:
            logger.warning("the fetch of %s by %s stalls; it is taken over", chunk.url, seen.busy.holder)
            return self._enter(chunk, hard=hard, lease=False, seize=seen.flight)
        return seen.busy

    def _enter(self, chunk: ChunkKey, *, hard: bool, lease: bool, seize: int | None = None) -> Ready | Busy | Flight:
        name, wanted = chunk_name(chunk), _steps.Wanted(chunk=chunk, hard=hard, lease=lease, seize=seize)
        outcome = self.member.write_as_holder(
            lambda connection, trash, holder: _steps.enter(
                connection, trash, layout=self.layout, name=name, wanted=wanted, holder=holder
            ),
            lambda _: lease and self.member.count(chunk, hard=int(hard), soft=int(not hard)),
        )
        if not isinstance(outcome, _steps.NewFlight):
            return outcome
        return Flight(self, chunk, outcome.id, Path(self.layout.final(outcome.temp)), hard=hard)

    def release(self, chunk: ChunkKey, *, hard: bool) -> None:
        """See `Cache`."""
        self._change(chunk, hard=-int(hard), soft=-int(not hard))

    def soften(self, chunk: ChunkKey) -> None:
        """See `Cache`."""
        self._change(chunk, hard=-1, soft=1)

    def _change(self, chunk: ChunkKey, *, hard: int, soft: int) -> None:
        if self._closed:
            return  # every lease went when the cache was closed
        if not self.member.count(chunk, hard=hard, soft=soft):
            kind = "hard" if hard < 0 else "soft"
            logger.warning("a %s lease on %s was given back more often than taken; ignored", kind, chunk.url)
            return
        name, member = chunk_name(chunk), self.member
        try:
            done = self._ledger.quick(lambda connection: member.settle_quick(connection, name), lambda _: None)
        except CacheLockTimeoutError as exc:
            self._ledger.defer(lambda connection: self._settle(connection, name), exc)
            done = True
        except (CacheError, OSError):
            done = None  # from within a transaction, or the ledger fails: the next call sees to both
        except BaseException as exc:  # an interrupt; it is raised again
            self._ledger.defer(lambda connection: self._settle(connection, name), exc)
            raise
        if not done:
            self._ledger.write_or_defer(lambda connection: self._settle(connection, name))
        self._notify()

    def _settle(self, connection: sqlite3.Connection, name: str) -> None:
        self.member.settle(connection, name)
        if budget_of(connection, self.member.fallback).free < 0:
            with dustbin() as trash:
                shrink(connection, self.layout, self.member.fallback, trash)

    def declare(self, chunks: Iterable[ChunkKey]) -> None:
        """See `Cache`."""
        _eager.declare(self.member, tuple(chunks))
        self._notify()

    def relieve(self, wanted: int | None) -> int:
        """See `Cache`."""
        freed, evicted = _eager.relieve(self.member, wanted)
        self.evictions += evicted
        self._notify()
        return freed

    def _with_room(self, write: Callable[[], T]) -> T:
        """Run what a reader writes before it begins; on a full disk a chunk that nobody reads makes the room for it."""
        try:
            return write()
        except CacheFullError:
            if not self.relieve(1):
                raise
            return write()

    def harden(self, chunk: ChunkKey, told: Callable[[bool], object] = bool) -> bool:
        """See `Cache`."""
        name, member = chunk_name(chunk), self.member

        def step(connection: sqlite3.Connection, _trash: Trash, holder: int) -> bool:
            row = _steps.check_in(connection, name, holder)
            hard, soft = member.held(name)
            ready = row is not None and _steps.as_ready(self.layout, row) is not None
            if row is not None and soft:
                set_lease(connection, row.id, holder, hard=hard + ready, soft=soft - 1)
                connection.execute("UPDATE chunks SET early = 0 WHERE id = ? AND early = 1", (row.id,))
                drop_unwanted(connection, row.id)
            return ready and hard + soft > 0

        def then(ready: bool) -> None:
            if member.held(name)[1]:
                member.count(chunk, hard=int(ready), soft=-1)
            told(ready)

        done = member.write_as_holder(step, then)
        self._notify()
        return done

    def plan_reader(self, dataset: str) -> PlanReader:
        """See `Cache`."""
        return SharedPlanReader(self.member.plans, dataset, self._with_room) if self._by_plans else PlanReader()

    def claim_window(self, kept: int, need: int, old: int | None = None) -> tuple[int | None, int]:
        """See `Cache`."""
        number, left = self._with_room(lambda: _windows.claim(self.member, kept, need, old))
        if number is None:
            self._reap()  # the others may be dead
            number, left = _windows.claim(self.member, kept, need, old)
        return number, left

    def drop_window(self, number: int) -> None:
        """See `Cache`."""
        if not self._closed:  # else it went with the holder
            _windows.drop(self.member, number)

    def has_room(self, chunk: ChunkKey, total: int) -> bool:
        """See `Cache`."""
        foresight, name = self._look_forward(), chunk_name(chunk)
        return self._ledger.read(
            lambda connection: has_room(
                connection,
                foresight,
                name=name,
                number=chunk.number,
                total=total,
                fallback=self.member.fallback,
            )
        )

    def starving(self) -> list[int]:
        """See `Cache`."""
        return self._ledger.read(_room.starving)

    def room_beside(self, chunks: Iterable[ChunkKey]) -> int:
        """See `Cache`."""
        names = {chunk_name(chunk) for chunk in chunks}
        return self._ledger.read(lambda connection: _room.room_beside(connection, names, self.member.fallback))

    # A flight's way; called by `Flight`.

    def reserve(self, flight: int, total: int, *, hard: bool) -> bool:
        """Make a flight's reservation ``total`` bytes if there is room, evicting what may go."""
        try:
            done = self._grant(flight, total, hard=hard)
        except BudgetTooSmallError:
            if not self.member.bury_dead():  # the small budget may be a dead process's
                raise
            done = self._grant(flight, total, hard=hard)
        if done:
            return True
        now = _config.monotonic()
        if now - self._reaped_at < _REAP_INTERVAL:
            return False
        self._reaped_at = now
        return self.member.bury_dead() > 0 and self._grant(flight, total, hard=hard)

    def _grant(self, flight: int, total: int, *, hard: bool) -> bool:
        foresight = self._look_forward()
        granted, evicted = self.member.write(
            lambda connection, trash: grant(
                connection,
                self.layout,
                flight,
                total,
                hard=hard,
                fallback=self.member.fallback,
                foresight=foresight,
                trash=trash,
            )
        )
        self.evictions += evicted
        if evicted:
            self._notify()
        return granted

    def _look_forward(self) -> Foresight | None:
        """What is known of the plans, brought up to date here, where nobody waits for it."""
        if not self._by_plans:
            return None
        if self._foresight is None:
            from forebay._cache._foresight import Foresight  # NumPy, which looking at a cache does not need

            self._foresight = Foresight()
        self._ledger.read(self._foresight.refresh)
        return self._foresight

    def publish(
        self,
        chunk: ChunkKey,
        flight: int,
        temp: Path,
        *,
        size: int,
        digest: str,
        etag: str | None,
        early: bool,
    ) -> Ready:
        """Give a finished file its name, and say so, in one transaction."""
        name = chunk_name(chunk)
        self._ledger.write(
            partial(
                _steps.publish,
                layout=self.layout,
                name=name,
                flight=flight,
                temp=temp,
                size=size,
                digest=digest,
                etag=etag,
                early=early,
                fallback=self.member.fallback,
            )
        )
        self._notify()
        return Ready(path=Path(self.layout.final(name)), bytes=size, digest=digest, trusted=True)

    def abort(self, chunk: ChunkKey, flight: int, temp: Path, *, hard: bool) -> None:
        """Forget a flight, its file and its lease, now or with the next change of the ledger."""
        with dustbin() as trash:
            remove(temp, trash)
        if self._closed:
            return  # everything else of ours went with the holder
        self.member.count(chunk, hard=-int(hard), soft=-int(not hard))
        name = chunk_name(chunk)

        def forget(connection: sqlite3.Connection) -> None:
            with dustbin() as trash:
                end_flight(connection, self.layout, flight, trash)
                self._settle(connection, name)

        self._ledger.write_or_defer(forget)
        self._notify()

    def beat(self, flight: int, now: float, *, hard: bool) -> None:
        """Note that a flight moves, and whether a reader waits for it."""
        self._ledger.write_or_defer(
            lambda connection: connection.execute(
                "UPDATE flights SET beat = ?, hard = ? WHERE id = ?", (now, int(hard), flight)
            )
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

        self.member.write(drop)
        self._notify()

    def trust(self, chunk: ChunkKey) -> None:
        """See `Cache`."""
        name = chunk_name(chunk)
        self._ledger.write_or_defer(
            lambda connection: connection.execute(
                "UPDATE chunks SET run = (SELECT run FROM account) WHERE name = ? AND ready = 1", (name,)
            )
        )

    def meta(self, chunk: ChunkKey) -> Mapping[str, str | None] | None:
        """See `Cache`."""
        name, query = chunk_name(chunk), "SELECT etag, digest FROM chunks WHERE name = ? AND ready = 1"
        found = self._ledger.read(lambda connection: connection.execute(query, (name,)).fetchone())
        return None if found is None else {"etag": found[0], "digest": found[1]}

    # Looking on.

    @property
    def max_bytes(self) -> int:
        """See `Cache`."""
        return self._ledger.read(lambda connection: budget_of(connection, self.member.fallback)).limit

    def version(self) -> int:
        """See `Cache`."""
        return self._ledger.version()

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
        return self._ledger.read(lambda connection: _inspect.describe(connection, self.member.fallback))

    def info(self) -> CacheInfo:
        """See `Cache`."""
        return self._look(lambda connection, _: _inspect.info(connection, self.member.fallback))

    def report(self) -> _report.Report:
        """See `Cache`."""
        return self._look(lambda connection, dead: _report.report(connection, self.member.fallback, dead))

    def refcount(self, chunk_url: str) -> int:
        """See `Cache`."""
        return self._look(lambda connection, _: _inspect.refcount(connection, chunk_url))

    def verify(self) -> list[Problem]:
        """See `Cache`."""
        return _inspect.verify(self._ledger, self.member.fallback)

    def gc(self) -> None:
        """See `Cache`."""
        self._reap()
        self.member.write(
            lambda connection, trash: _steps.collect(connection, self.layout, self.member.fallback, trash)
        )
        self._notify()

    def clear(self) -> None:
        """See `Cache`."""
        try:
            kept = self._clear()
        except CacheFullError:  # no room to say what went; but it went, and makes that room
            kept = self._clear()
        self._notify()
        if kept:
            raise CacheError(
                f"{self.directory}: {kept} chunks are in use and stay, everything else is removed;"
                f" close their readers and clear again ({self.describe()})",
                path=str(self.directory),
            )

    def _clear(self) -> int:
        with suppress(CacheFullError):  # what the dead hold stays then, for the next try
            self._reap()
        return self.member.write(lambda connection, trash: _steps.clear(connection, self.layout, trash))

    def close(self) -> None:
        """See `Cache`."""
        if not self._on_close(self):
            return
        self._closed = True
        self._subscribers.clear()
        self.member.leave()

    def _look(self, work: Callable[[sqlite3.Connection, int], T]) -> T:
        before = self.member.buried
        found = self.member.look(work)
        if self.member.buried > before:
            self._notify()
        return found

    def _reap(self) -> None:
        if self.member.bury_dead():
            self._notify()
