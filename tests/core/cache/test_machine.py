"""The ledger against a simple model: any sequence of calls by two holders gives what the model says."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from servers.cache_actor import bytes_below, key, write

from forebay._cache import Busy, Flight, FlightLostError
from forebay._cache._layout import Layout
from forebay._cache._shared import SharedCache

BUDGET = 10
CHUNKS = st.integers(0, 4)
HOLDERS = st.integers(0, 1)


class Ledger(RuleBasedStateMachine):
    """Two holders on one directory; the model knows leases and flights, and what may lie on the disk."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.caches = [self._open(), self._open()]
        self.leases: list[dict[tuple[int, bool], int]] = [{}, {}]
        self.flights: list[dict[int, tuple[Flight, bool]]] = [{}, {}]
        self.pinned: set[int] = set()  # ready with a hard lease

    def _open(self) -> SharedCache:
        layout = Layout(self.folder / "cache")
        layout.prepare(private=False)
        cache = SharedCache(layout, max_bytes=BUDGET, on_close=lambda _: True)
        cache.member.register()
        return cache

    def teardown(self) -> None:
        for cache in self.caches:
            cache.close()
        shutil.rmtree(self.folder)

    def _take(self, who: int, chunk: int, hard: bool, by: int = 1) -> None:
        self.leases[who][chunk, hard] = self.leases[who].get((chunk, hard), 0) + by

    def _fetched(self, chunk: int) -> bool:
        return any(chunk in flights for flights in self.flights)

    @rule(who=HOLDERS, chunk=CHUNKS, hard=st.booleans())
    def acquire(self, who: int, chunk: int, hard: bool) -> None:
        outcome = self.caches[who].acquire(key(chunk), hard=hard)
        self._take(who, chunk, hard)
        if isinstance(outcome, Flight):
            others = [flights[chunk][0] for flights in self.flights if chunk in flights]
            assert not any(map(self._is_current, others))
            if chunk in self.flights[who]:
                self.abort(who, chunk)
            self.flights[who][chunk] = outcome, hard
        elif isinstance(outcome, Busy):
            assert self._fetched(chunk)
        else:
            assert outcome.path.stat().st_size == outcome.bytes

    def _is_current(self, flight: Flight) -> bool:
        rows = self.caches[0].member.ledger.read(
            lambda connection: connection.execute("SELECT lost FROM flights WHERE id = ?", (flight._number,)).fetchall()
        )
        return rows == [(0,)]

    @rule(who=HOLDERS, chunk=CHUNKS, size=st.integers(0, 12))
    def fetch(self, who: int, chunk: int, size: int) -> None:
        if chunk not in self.flights[who]:
            return
        flight, _ = self.flights[who][chunk]
        try:
            if size <= BUDGET and flight.reserve(size) and not flight.temp.exists():
                ready = flight.publish(bytes=size, digest=write(flight, chunk, size))
                assert ready.path.stat().st_size == size
                del self.flights[who][chunk]
        except FlightLostError:
            self.abort(who, chunk)

    @rule(who=HOLDERS, chunk=CHUNKS)
    def abort(self, who: int, chunk: int) -> None:
        if chunk in self.flights[who]:
            flight, hard = self.flights[who].pop(chunk)
            had = self.leases[who].get((chunk, hard), 0)
            flight.abort()
            self.leases[who][chunk, hard] = max(had - 1, 0)

    @rule(who=HOLDERS, chunk=CHUNKS, hard=st.booleans())
    def release(self, who: int, chunk: int, hard: bool) -> None:
        self.caches[who].release(key(chunk), hard=hard)
        self.leases[who][chunk, hard] = max(self.leases[who].get((chunk, hard), 0) - 1, 0)

    @rule(who=HOLDERS, chunk=CHUNKS)
    def harden(self, who: int, chunk: int) -> None:
        soft, hard = self.leases[who].get((chunk, False), 0), self.leases[who].get((chunk, True), 0)
        ready = self.caches[who].meta(key(chunk)) is not None
        assert self.caches[who].harden(key(chunk)) == (ready and soft + hard > 0)
        if soft:
            self._take(who, chunk, False, -1)
            self._take(who, chunk, True, int(ready))

    @rule(who=HOLDERS, chunk=CHUNKS)
    def soften(self, who: int, chunk: int) -> None:
        self.caches[who].soften(key(chunk))
        if self.leases[who].get((chunk, True), 0):
            self._take(who, chunk, True, -1)
            self._take(who, chunk, False)

    @rule(who=HOLDERS, chunk=CHUNKS)
    def discard(self, who: int, chunk: int) -> None:
        self.caches[who].discard(key(chunk))
        self.pinned.discard(chunk)
        assert self.caches[who].meta(key(chunk)) is None

    @rule(who=HOLDERS)
    def collect(self, who: int) -> None:
        self.caches[who].gc()

    @rule(who=HOLDERS)
    def restart(self, who: int) -> None:
        """A holder leaves, with whatever it holds, and another comes."""
        self.caches[who].close()
        self.caches[who] = self._open()
        self.leases[who], self.flights[who] = {}, {}

    def _hard(self, chunk: int) -> int:
        return sum(leases.get((chunk, True), 0) for leases in self.leases)

    def _pin(self) -> None:
        self.pinned = {n for n in range(5) if self._hard(n) and self.caches[0].meta(key(n)) is not None}

    @invariant()
    def counts_are_exact(self) -> None:
        for chunk in range(5):
            wanted = sum(leases.get((chunk, hard), 0) for leases in self.leases for hard in (True, False))
            assert self.caches[0].refcount(key(chunk).url) == wanted, chunk

    @invariant()
    def the_budget_holds(self) -> None:
        assert bytes_below(self.folder / "cache") <= self.caches[0].info().bytes <= BUDGET

    @invariant()
    def hard_leases_keep_their_chunks(self) -> None:
        """What was ready under a hard lease before the step is so after it; ledger and directory agree."""
        assert self.caches[0].verify() == []
        for chunk in self.pinned:
            assert not self._hard(chunk) or self.caches[0].meta(key(chunk)) is not None, chunk
        self._pin()


TestLedger = Ledger.TestCase
TestLedger.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
