"""This process as a holder of a cache directory: its lock, its row, and its own account of its leases."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from forebay import _config
from forebay._cache import _recover, _rows
from forebay._cache._holders import HolderLock
from forebay._cache._layout import Layout, Trash, chunk_name, dustbin
from forebay._cache._ledger import Ledger
from forebay._cache._plans import Plans
from forebay._cache._room import budget_of, shrink
from forebay._cache._types import CacheClosedError, ChunkKey, UnregisteredError
from forebay.exceptions import CacheError, CacheFullError

__all__ = ["Member"]

T = TypeVar("T")
#: A step inside a write transaction, with a place for what it unlinks.
Step = Callable[[sqlite3.Connection, Trash], T]
logger = logging.getLogger("forebay")

#: Share of the free space that a cache without a budget may use.
_SHARE_OF_FREE = 0.8
#: Times of use that are kept back before they are written down.
_MOST_STAMPS = 64
_NOBODY = -1


@dataclass(slots=True)
class _Held:
    chunk: ChunkKey
    hard: int = 0
    soft: int = 0


class Member:
    """The holder that this process is.

    What it holds, and what its readers will read, is known here too: that is declared again when the ledger was
    replaced, and a lease is given back by writing the count down, not by subtracting, so that it does not matter how
    often or when that is done.
    """

    def __init__(self, layout: Layout, *, max_bytes: int | None) -> None:
        self.layout = layout
        self.ledger = Ledger(layout, lambda connection: _recover.adopt(connection, layout), self._stamp)
        self.entry = threading.RLock()  # guards becoming a holder; taken before the ledger's mutex
        self.process = object()  # another one in each process
        self.buried = 0  # dead holders that this process found and buried
        self._asked = max_bytes
        self._number = _NOBODY
        self._lock: HolderLock | None = None
        self._left = False
        # Guarded by the ledger's mutex: our leases, and when we last used chunks.
        self._held: dict[str, _Held] = {}
        self._used: dict[str, float] = {}
        self.plans = Plans(self)
        used = self.ledger.read(lambda connection: budget_of(connection, 0)).used
        self.fallback = int(_SHARE_OF_FREE * (shutil.disk_usage(layout.directory).free + used))

    def write(self, step: Step[T], then: Callable[[T], object] | None = None) -> T:
        """Run ``step`` in a transaction, and free the disk space of what it unlinked when that is over."""
        with dustbin() as trash:
            return self.ledger.write(lambda connection: step(connection, trash), then)

    def write_as_holder(
        self,
        step: Callable[[sqlite3.Connection, Trash, int], T],
        then: Callable[[T], object] | None = None,
    ) -> T:
        """Run a step that needs our row, and register again where that is gone.

        The row goes when the ledger was replaced, or when somebody removed our lock file and we were taken for dead.
        """
        for _ in range(5):
            number = self.register()
            try:
                return self.write(partial(_with, step, number), then)
            except UnregisteredError:
                self.forget(number)
        raise CacheError(
            f"{self.layout.directory}: the ledger forgets this process again and again; something removes its files",
            path=str(self.layout.directory),
        )

    def register(self) -> int:
        """Become a holder, if this process is none yet; returns the row.

        Raises:
            CacheClosedError: It was closed: nobody would give back what is taken now.
        """
        if self._lock is not None:
            return self._number
        with self.entry:
            if self._left:
                raise CacheClosedError(f"closed: {self.layout.directory}", path=str(self.layout.directory))
            if self._lock is None:
                self.bury_dead()
                lock = HolderLock(self.layout.holders)
                try:
                    self.write(partial(self._insert, lock=lock), partial(self._registered, lock))
                except BaseException:  # a lock of no holder is let go of, whatever came; it is raised again
                    lock.close()
                    raise
            return self._number

    def forget(self, number: int) -> None:
        """Our row ``number`` is gone."""
        with self.entry, self.ledger.mutex:
            if self._lock is not None and self._number == number:
                self._lock.close()
                self._lock, self._number = None, _NOBODY

    def ask_budget(self, max_bytes: int | None) -> None:
        """Another part of this process opened the directory: the smaller budget rules."""
        if max_bytes is None:
            return
        if self._asked not in (None, max_bytes):
            logger.warning(
                "two budgets for the cache %s in this process: %s and %s; the smaller rules until it is closed",
                self.layout.directory,
                _config.format_size(self._asked or 0),
                _config.format_size(max_bytes),
            )
        asked = self._asked = max_bytes if self._asked is None else min(self._asked, max_bytes)

        def lower(connection: sqlite3.Connection, trash: Trash) -> None:
            connection.execute("UPDATE holders SET budget = ? WHERE id = ?", (asked, self._number))
            self._record_budget(connection, trash)

        self.write(lower)

    def bury_dead(self) -> int:
        """Bury dead holders; returns how many."""
        try:
            buried = _recover.reap(self.ledger, self._number)
        except CacheFullError:  # no room to say that they are dead; but what they left to remove went, and makes some
            buried = _recover.reap(self.ledger, self._number)
        self.buried += buried
        return buried

    def look(self, work: Callable[[sqlite3.Connection, int], T]) -> T:
        """Read the ledger as it is without the dead; ``work`` is told how many of them were found.

        Where the disk is so full that they cannot be buried, they are hidden for the length of this one look.
        """
        try:
            self.bury_dead()
        except CacheFullError:
            dead = _recover.find_dead(self.ledger, self._number)
        else:
            dead = []
        found = self.buried + len(dead)

        def past(connection: sqlite3.Connection) -> T:
            _rows.hide(connection, dead)
            return work(connection, found)

        return self.ledger.read(past)

    def leave(self) -> None:
        """Give back every lease and flight, and be a holder no more."""
        with self.entry:
            lock, number, self._left = self._lock, self._number, True
            self._lock, self._number = None, _NOBODY
            with self.ledger.mutex:
                self._held.clear()
                self.plans.clear()
            if lock is not None:
                self.ledger.write_or_defer(lambda connection: _bury(connection, self.layout, number))
                lock.close()
            self.ledger.close(for_good=True)

    def forked(self) -> None:
        """In a forked child, before anything else runs: nothing of the parent's is ours."""
        if self._lock is not None:
            self._lock.forget()
        self._lock, self._number = None, _NOBODY
        self.process = object()
        self.entry = threading.RLock()
        self.ledger.reset_after_fork()
        self._held.clear()
        self._used.clear()
        self.plans.clear()

    # Our leases.

    def count(self, chunk: ChunkKey, *, hard: int = 0, soft: int = 0) -> bool:
        """Change our account of a chunk; False, and nothing changed, where a lease was to go that is not there."""
        name = chunk_name(chunk)
        with self.ledger.mutex:
            held = self._held.get(name) or _Held(chunk)
            if held.hard + hard < 0 or held.soft + soft < 0:
                return False
            held.hard += hard
            held.soft += soft
            if held.hard or held.soft:
                self._held[name] = held
            else:
                self._held.pop(name, None)
        return True

    def held(self, name: str) -> tuple[int, int]:
        """Our hard and soft leases on a chunk."""
        held = self._held.get(name)
        return (0, 0) if held is None else (held.hard, held.soft)

    def settle(self, connection: sqlite3.Connection, name: str) -> None:
        """Write our account of a chunk into the ledger; inside a write transaction."""
        row = _rows.find(connection, name)
        if row is not None:
            self._set(connection, row)
            _rows.drop_unwanted(connection, row.id)

    def settle_quick(self, connection: sqlite3.Connection, name: str) -> bool | None:
        """`settle` in one statement; None, and nothing done, where more is to be done."""
        row = _rows.find(connection, name)
        if row is None or not row.ready or len(self._used) >= _MOST_STAMPS or self.plans.moved:
            return None
        if not any(self.held(name)) and budget_of(connection, self.fallback).free < 0:
            return None  # a smaller budget came while chunks were held: what is let go of has to go
        self._set(connection, row)
        return True

    def _set(self, connection: sqlite3.Connection, row: _rows.Row) -> None:
        hard, soft = self.held(row.name)
        _rows.set_lease(connection, row.id, self._number, hard=hard, soft=soft)
        if not hard and not soft:
            self._used[row.name] = _config.wall_clock()

    def _stamp(self, connection: sqlite3.Connection) -> None:
        """Write down when chunks were last used, and how far our readers are.

        Not at each release: that would double the time that one takes, and a time that comes late, or is lost with its
        process, makes a worse choice of what to evict and nothing else.
        """
        stamps = [(used, name) for name, used in self._used.items()]
        self._used.clear()
        connection.executemany("UPDATE chunks SET used = ?, early = 0 WHERE name = ? AND ready = 1", stamps)
        self.plans.stamp(connection)

    def _insert(self, connection: sqlite3.Connection, trash: Trash, *, lock: HolderLock) -> tuple[int, int | None]:
        _recover.begin_run(connection, self.layout, trash)
        others, recorded = connection.execute(
            "SELECT (SELECT min(budget) FROM holders), budget FROM account"
        ).fetchone()
        mine = self._asked if self._asked is not None else recorded if recorded is not None else self.fallback
        number = secrets.randbits(62)
        connection.execute(
            "INSERT INTO holders (id, token, pid, host, budget, since) VALUES (?, ?, ?, ?, ?, ?)",
            (number, lock.token, os.getpid(), socket.gethostname(), mine, _config.wall_clock()),
        )
        for name, held in self._held.items():
            row = _rows.find(connection, name) or _rows.new_row(connection, name, held.chunk)
            connection.execute("INSERT INTO leases VALUES (?, ?, ?, ?)", (row.id, number, held.hard, held.soft))
        self.plans.insert_all(connection, number)
        self._record_budget(connection, trash)
        if self._asked is None and recorded is not None:
            self.layout.record_budget(recorded)
        return number, others

    def _record_budget(self, connection: sqlite3.Connection, trash: Trash) -> None:
        if self._asked is not None:
            connection.execute("UPDATE account SET budget = ?", (self._asked,))
            self.layout.record_budget(self._asked)
        shrink(connection, self.layout, self.fallback, trash)  # also to what is on record: it may be the smallest

    def _registered(self, lock: HolderLock, outcome: tuple[int, int | None]) -> None:
        self._number, others = outcome
        self._lock = lock
        if self._asked is None or others in (None, self._asked):
            return
        logger.warning(
            "two budgets for the cache %s: %s here, %s by another living process; the smaller rules while both live",
            self.layout.directory,
            _config.format_size(self._asked),
            _config.format_size(others or 0),
        )


def _with(
    step: Callable[[sqlite3.Connection, Trash, int], T], number: int, connection: sqlite3.Connection, trash: Trash
) -> T:
    return step(connection, trash, number)


def _bury(connection: sqlite3.Connection, layout: Layout, number: int) -> None:
    with dustbin() as trash:
        _recover.settle_estate(connection, layout, number, trash)
