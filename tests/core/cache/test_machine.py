"""The ledger against a simple model: any sequence of calls by three holders, any of whom may die, gives what it says.

The model is a few dicts for each holder. What it cannot know, which chunks an eviction takes and which waiting flight
gives way, it reads from the ledger and checks that it was allowed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from servers.cache_actor import bytes_below, declare, key, write
from servers.ledger import orphans

from forebay._cache import Busy, Flight, FlightLostError, PlanReader, Ready
from forebay._cache._layout import Layout
from forebay._cache._shared import SharedCache
from forebay.exceptions import BudgetTooSmallError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # some forty seconds where nothing else runs

COUNT = 5
CHUNKS = st.integers(0, COUNT - 1)
HOLDERS = st.integers(0, 2)
SIZES = st.integers(0, 12)
#: Chooses among what there is.
PICKS = st.integers(0, 11)
#: What a holder asks for; None takes what the directory has on record.
BUDGETS = st.sampled_from([10, 14, 6, None])


@dataclass(eq=False)
class Fetch:
    """A flight as the model sees it; ``lease`` is the kind of the lease that goes when it is aborted."""

    flight: Flight
    lease: bool
    reserved: int = 0
    written: int | None = None
    digest: str = ""
    waiting: bool = False
    lost: bool = False


@dataclass(eq=False)
class Holder:
    """One process as the model sees it; ``budget`` is what it asked for, or found on record."""

    cache: SharedCache
    asked: int | None
    budget: int
    leases: dict[tuple[int, bool], int] = field(default_factory=dict)
    flights: dict[int, Fetch] = field(default_factory=dict)
    windows: dict[int, tuple[int, int]] = field(default_factory=dict)
    plans: list[tuple[PlanReader, bytes]] = field(default_factory=list)

    @property
    def row(self) -> int:
        return self.cache.member._number

    def take(self, chunk: int, hard: bool, by: int = 1) -> None:
        self.leases[chunk, hard] = max(self.leases.get((chunk, hard), 0) + by, 0)

    def has(self, chunk: int, hard: bool) -> int:
        return self.leases.get((chunk, hard), 0)


class Ledger(RuleBasedStateMachine):
    """Three holders on one directory, and somebody who only looks on."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.recorded = 0
        self.slots: dict[int, Holder] = {}
        self.dead: list[Holder] = []
        self.used = self.claimed = 0
        self.may_lose: set[Fetch] = set()
        self.pinned: set[int] = set()  # ready with a hard lease
        self.observer = self._cache(None)

    def _cache(self, budget: int | None) -> SharedCache:
        layout = Layout(self.folder / "cache")
        layout.prepare(private=False)
        return SharedCache(layout, max_bytes=budget, on_close=lambda _: True)

    def _open(self, who: int, budget: int | None) -> Holder:
        cache = self._cache(budget)
        cache._by_plans = who != 2  # the third evicts what was used longest ago
        cache.member.register()
        self.dead.clear()  # whoever opens has buried them
        self.recorded = budget or self.recorded
        self.slots[who] = Holder(cache, budget, self.recorded)
        return self.slots[who]

    def _at(self, who: int) -> Holder:
        return self.slots.get(who) or self._open(who, None)

    def teardown(self) -> None:
        for holder in self.slots.values():
            holder.cache.close()
        self.observer.close()
        shutil.rmtree(self.folder)

    # What the ledger says, without changing it.

    def _read(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        ledger = self.observer.member.ledger
        return ledger.read(lambda connection: connection.execute(query, arguments).fetchall())

    def _unburied(self) -> list[Holder]:
        rows = {number for (number,) in self._read("SELECT id FROM holders")}
        return [holder for holder in self.dead if holder.row in rows]

    def _counted(self) -> list[Holder]:
        """Whose leases count: the living, and the dead of whom nobody has noticed yet."""
        return [*self.slots.values(), *self._unburied()]

    def _limit(self, holders: list[Holder] | None = None) -> int:
        return min([holder.budget for holder in holders or self._counted()], default=self.recorded)

    def _ready(self) -> set[int]:
        return {n for n in range(COUNT) if self.observer.meta(key(n)) is not None}

    def _leased(self, chunk: int, *kinds: bool) -> int:
        return sum(holder.has(chunk, hard) for holder in self._counted() for hard in kinds)

    def _wanted(self, chunk: int) -> int:
        return sum(holder.has(chunk, hard) for holder in self.slots.values() for hard in (True, False))

    def _fetches(self, chunk: int, holders: list[Holder]) -> list[Fetch]:
        return [one.flights[chunk] for one in holders if chunk in one.flights and not one.flights[chunk].lost]

    # Coming, going, dying.

    @initialize()
    def begin(self) -> None:
        self._open(0, 10)
        self._open(1, 10)

    @rule(who=HOLDERS, budget=BUDGETS)
    def restart(self, who: int, budget: int | None) -> None:
        """A holder leaves, with whatever it holds, and another comes; the smallest budget rules."""
        if who in self.slots:
            self.slots.pop(who).cache.close()
        self._open(who, budget)

    @precondition(lambda self: self.slots)
    @rule(pick=PICKS)
    def leave(self, pick: int) -> None:
        self._pop(pick).cache.close()

    @precondition(lambda self: self.slots)
    @rule(pick=PICKS)
    def die(self, pick: int) -> None:
        """As the kernel sees it: the lock and the connection go, rows and files stay."""
        holder = self._pop(pick)
        lock = holder.cache.member._lock
        assert lock is not None
        lock.forget()
        holder.cache.member.ledger.close()
        self.dead.append(holder)

    def _pop(self, pick: int) -> Holder:
        return self.slots.pop(sorted(self.slots)[pick % len(self.slots)])

    def _one(self, pick: int) -> Holder:
        return self.slots[sorted(self.slots)[pick % len(self.slots)]]

    @rule(who=HOLDERS, budget=st.sampled_from([6, 10, 14]))
    def lower(self, who: int, budget: int) -> None:
        """Another part of the same process opens the directory."""
        holder = self._at(who)
        holder.cache.member.ask_budget(budget)
        holder.asked = holder.budget = self.recorded = min(holder.asked or budget, budget)

    @precondition(lambda self: self.slots)
    @rule(pick=PICKS, look=st.sampled_from(["gc", "info", "report"]))
    def look_on(self, pick: int, look: str) -> None:
        """Whoever looks on sees the living only, and nothing of the dead is left."""
        getattr(self._one(pick).cache, look)()
        assert not self._unburied()
        self.dead.clear()
        temps = {f.flight.temp for one in self.slots.values() for f in one.flights.values() if f.written is not None}
        assert set((self.folder / "cache").rglob("*.tmp")) <= temps

    # Chunks.

    @rule(who=HOLDERS, chunk=CHUNKS, hard=st.booleans())
    def acquire(self, who: int, chunk: int, hard: bool) -> None:
        holder = self._at(who)
        outcome = holder.cache.acquire(key(chunk), hard=hard)
        holder.take(chunk, hard)
        self._outcome(holder, chunk, hard, outcome, self._counted())

    def _leases(self) -> list[tuple[Holder, int, bool]]:
        return [
            (self.slots[who], chunk, hard)
            for who in sorted(self.slots)
            for (chunk, hard), count in sorted(self.slots[who].leases.items())
            if count
        ]

    def _a_lease(self, pick: int) -> tuple[Holder, int, bool]:
        leases = self._leases()
        return leases[pick % len(leases)]

    def _flights(self) -> list[tuple[Holder, int]]:
        return [(self.slots[who], chunk) for who in sorted(self.slots) for chunk in sorted(self.slots[who].flights)]

    def _a_flight(self, pick: int) -> tuple[Holder, int]:
        flights = self._flights()
        return flights[pick % len(flights)]

    @precondition(lambda self: self._leases())
    @rule(pick=PICKS, stalled=st.booleans())
    def poll(self, pick: int, stalled: bool) -> None:
        """Look again, for who has a lease; a fetch by the dead, or one that stalls, is taken over."""
        self._poll(*self._a_lease(pick), stalled=stalled)

    def _poll(self, holder: Holder, chunk: int, hard: bool, *, stalled: bool) -> None:
        if stalled:
            holder.cache.stall_seconds = -1.0
        outcome = holder.cache.poll(key(chunk), hard=hard)
        holder.cache.stall_seconds = 60.0
        assert not (stalled and isinstance(outcome, Busy))
        if stalled and isinstance(outcome, Flight):
            for fetch in self._fetches(chunk, list(self.slots.values())):
                fetch.lost = True
        self._outcome(holder, chunk, hard, outcome, list(self.slots.values()))

    def _outcome(
        self, holder: Holder, chunk: int, hard: bool, outcome: Ready | Busy | Flight, holders: list[Holder]
    ) -> None:
        if isinstance(outcome, Flight):
            assert not self._fetches(chunk, list(self.slots.values()))
            self._abort(holder, chunk)
            holder.flights[chunk] = Fetch(outcome, hard)
        elif isinstance(outcome, Busy):
            assert self._fetches(chunk, holders)
        else:
            assert outcome.path.stat().st_size == outcome.bytes

    @precondition(lambda self: self._flights())
    @rule(pick=PICKS, size=SIZES, hard=st.booleans())
    def reserve(self, pick: int, size: int, hard: bool) -> None:
        self._reserve(*self._a_flight(pick), size, hard)

    def _reserve(self, holder: Holder, chunk: int, size: int, hard: bool) -> None:
        fetch = holder.flights[chunk]
        fetch.flight.hard = fetch.flight.hard or hard
        hard, before = fetch.flight.hard, {n for n in self._ready() if self._wanted(n)}
        must = hard and size <= self._certain_room(fetch)
        if hard:
            self.may_lose = {f for f in self._all_fetches() if f.waiting and f.reserved and f is not fetch}
        try:
            granted = fetch.flight.reserve(size)
        except FlightLostError:
            assert fetch.lost
            self._abort(holder, chunk)
        except BudgetTooSmallError:
            assert size > self._limit(list(self.slots.values()))
        else:
            assert granted or not must
            fetch.waiting = not granted
            fetch.reserved = max(size, fetch.reserved) if granted else fetch.reserved
        assert hard or before <= self._ready(), "a look-ahead takes nobody's chunk"

    def _certain_room(self, fetch: Fetch) -> int:
        """What a reader gets for its flight at once, if it is the first who waits: all that is not held for good."""
        queue = [f for f in self._all_fetches() if f.waiting and f.flight.hard and f is not fetch]
        if self._unburied() or queue or fetch.lost:
            return -1
        rows = self._read(
            "SELECT bytes FROM chunks c WHERE EXISTS (SELECT 1 FROM leases WHERE chunk = c.id AND hard > 0)"
            " UNION ALL SELECT reserved FROM flights WHERE id <> ?",
            fetch.flight._number,
        )
        weak = [f for f in self._all_fetches() if f.waiting and f.written is not None and not f.lost and f is not fetch]
        return self._limit() - sum(int(size) for (size,) in rows) + sum(f.reserved for f in weak)

    def _all_fetches(self) -> list[Fetch]:
        return [fetch for one in self.slots.values() for fetch in one.flights.values()]

    @precondition(lambda self: self._flights())
    @rule(pick=PICKS)
    def write(self, pick: int) -> None:
        """Write what is reserved; a flight that was lost meanwhile may still do so."""
        self._write(*self._a_flight(pick))

    def _write(self, holder: Holder, chunk: int) -> None:
        fetch = holder.flights[chunk]
        if fetch.written is None and not fetch.waiting:
            fetch.written = fetch.reserved
            fetch.digest = write(fetch.flight, chunk, fetch.reserved)

    @precondition(lambda self: self._flights())
    @rule(pick=PICKS)
    def publish(self, pick: int) -> None:
        self._publish(*self._a_flight(pick))

    def _publish(self, holder: Holder, chunk: int) -> None:
        fetch = holder.flights[chunk]
        if fetch.written is None:
            return
        try:
            ready = fetch.flight.publish(bytes=fetch.written, digest=fetch.digest)
            assert not fetch.lost
            assert ready.path.stat().st_size == fetch.written
            del holder.flights[chunk]
        except FlightLostError:
            assert fetch.lost
            self._abort(holder, chunk)

    @rule(who=HOLDERS, chunk=CHUNKS, size=SIZES, hard=st.booleans())
    def fetch(self, who: int, chunk: int, size: int, hard: bool) -> None:
        """All of it, so that chunks become ready soon."""
        self.acquire(who, chunk, hard)
        holder = self._at(who)
        steps: list[Callable[[], None]] = [
            lambda: self._reserve(holder, chunk, size, hard),
            lambda: self._write(holder, chunk),
            lambda: self._publish(holder, chunk),
        ]
        for step in steps:
            if chunk in holder.flights:
                step()
                self.flights_are_lost_to_readers_only()

    @precondition(lambda self: self._flights())
    @rule(pick=PICKS)
    def abort(self, pick: int) -> None:
        self._abort(*self._a_flight(pick))

    def _abort(self, holder: Holder, chunk: int) -> None:
        fetch = holder.flights.pop(chunk, None)
        if fetch is not None:
            fetch.flight.abort()
            holder.take(chunk, fetch.lease, -1)

    @precondition(lambda self: self._leases())
    @rule(pick=PICKS)
    def release(self, pick: int) -> None:
        self._release(*self._a_lease(pick))

    @rule(who=HOLDERS, chunk=CHUNKS, hard=st.booleans())
    def release_perhaps_too_often(self, who: int, chunk: int, hard: bool) -> None:
        self._release(self._at(who), chunk, hard)

    def _release(self, holder: Holder, chunk: int, hard: bool) -> None:
        holder.cache.release(key(chunk), hard=hard)
        holder.take(chunk, hard, -1)

    @rule(who=HOLDERS, chunks=st.lists(CHUNKS, max_size=6))
    def lease_ahead(self, who: int, chunks: list[int]) -> None:
        """Eager leases: all at once, there or not, and each counts."""
        holder = self._at(who)
        holder.cache.declare([key(chunk) for chunk in chunks])
        for chunk in chunks:
            holder.take(chunk, False)

    @precondition(lambda self: self._leases())
    @rule(pick=PICKS)
    def harden(self, pick: int) -> None:
        holder, chunk, _ = self._a_lease(pick)
        soft, hard = holder.has(chunk, False), holder.has(chunk, True)
        ready = holder.cache.meta(key(chunk)) is not None
        assert holder.cache.harden(key(chunk)) == (ready and soft + hard > 0)
        if soft:
            holder.take(chunk, False, -1)
            holder.take(chunk, True, int(ready))

    @precondition(lambda self: self._leases())
    @rule(pick=PICKS)
    def soften(self, pick: int) -> None:
        holder, chunk, _ = self._a_lease(pick)
        holder.cache.soften(key(chunk))
        if holder.has(chunk, True):
            holder.take(chunk, True, -1)
            holder.take(chunk, False)

    @rule(who=HOLDERS, chunk=CHUNKS)
    def discard(self, who: int, chunk: int) -> None:
        holder = self._at(who)
        holder.cache.discard(key(chunk))
        self.pinned.discard(chunk)
        assert holder.cache.meta(key(chunk)) is None

    # What single steps seldom come to: several of the above, in an order that matters.

    @rule(who=HOLDERS, chunk=CHUNKS, end=st.sampled_from(["release", "leave", "die"]))
    def squeeze(self, who: int, chunk: int, end: str) -> None:
        """A smaller budget comes while somebody holds more; what it holds goes with the lease, however that goes."""
        self.fetch(who, chunk, 7, True)
        self._check()
        self.lower((who + 1) % 3, 6)
        self._check()
        if end == "release":
            self._release(self.slots[who], chunk, True)
        else:
            getattr(self, end)(sorted(self.slots).index(who))
            self._check()
            self.look_on(0, "info")

    @rule(who=HOLDERS, chunk=CHUNKS)
    def come_back(self, who: int, chunk: int) -> None:
        """Who takes the budget on record brings a smaller one, where others have asked for more since."""
        self.lower(who, 6)
        self.leave(sorted(self.slots).index(who))
        self._check()
        self.fetch((who + 1) % 3, chunk, 8, False)
        self._abort(self._at((who + 1) % 3), chunk)
        self._check()
        self._release(self._at((who + 1) % 3), chunk, False)
        self._check()
        self._open(who, None)
        self._check()

    @rule(who=HOLDERS, chunk=CHUNKS, size=SIZES, first=st.booleans(), end=st.sampled_from(["publish", "die", "abort"]))
    def overtake(self, who: int, chunk: int, size: int, first: bool, end: str) -> None:
        """A flight is taken over before or after it wrote, or with its holder's death."""
        holder, other = self._at(who), self._at((who + 1) % 3)
        self.acquire(who, chunk, True)
        if chunk not in holder.flights:
            return
        self._reserve(holder, chunk, size, True)
        if chunk in holder.flights and first:
            self._write(holder, chunk)
        self._check()
        if end == "die":
            self.die(sorted(self.slots).index(who))
        other.cache.acquire(key(chunk), hard=True)
        other.take(chunk, True)
        self._poll(other, chunk, True, stalled=end != "die")
        self._check()
        if end != "die" and chunk in holder.flights:
            self._write(holder, chunk)
            self._check()
            (self._publish if end == "publish" else self._abort)(holder, chunk)

    @rule(who=HOLDERS, chunk=CHUNKS, sizes=st.tuples(st.integers(1, 5), st.integers(6, 10), st.integers(6, 10)))
    def both_want_more(self, who: int, chunk: int, sizes: tuple[int, int, int]) -> None:
        """Two flights hold a part each and wait for more: the look-ahead gives way."""
        weak, strong = (self._at(who), chunk), (self._at((who + 1) % 3), (chunk + 1) % COUNT)
        for (holder, number), hard in ((weak, False), (strong, True)):
            outcome = holder.cache.acquire(key(number), hard=hard)
            holder.take(number, hard)
            self._outcome(holder, number, hard, outcome, self._counted())
            if number in holder.flights:
                self._reserve(holder, number, sizes[0], hard)
            if number in holder.flights:
                self._write(holder, number)
            self._check()
        for (holder, number), size in ((weak, sizes[1]), (strong, sizes[2])):
            if number in holder.flights:
                self._reserve(holder, number, size, False)
            self._check()

    def _check(self) -> None:
        self.flights_are_lost_to_readers_only()
        self.the_budget_holds()
        self.hard_leases_keep_their_chunks()

    # Windows and plans.

    @precondition(lambda self: self.slots)
    @rule(pick=PICKS, kept=st.integers(0, 8), need=st.integers(1, 6))
    def claim_window(self, pick: int, kept: int, need: int) -> None:
        """Refused where it does not fit beside the claims of the living; those of the dead do not count."""
        holder = self._one(pick)
        claims = [claim for one in self.slots.values() for claim in one.windows.values()]
        left = self._limit(list(self.slots.values())) - sum(k for k, _ in claims) - max([need, *(n for _, n in claims)])
        alone = not self._unburied()
        number, told = holder.cache.claim_window(kept, need)
        assert (number is not None) == (kept <= left)
        assert told == left or not (alone or number is None)
        if number is not None:
            holder.windows[number] = kept, need

    @rule(who=HOLDERS)
    def drop_window(self, who: int) -> None:
        holder = self._at(who)
        for number in list(holder.windows)[:1]:
            del holder.windows[number]
            holder.cache.drop_window(number)

    @rule(who=st.integers(0, 1), now=st.lists(CHUNKS, max_size=5), then=st.lists(CHUNKS, max_size=5))
    def plan(self, who: int, now: list[int], then: list[int]) -> None:
        holder = self._at(who)
        reader = declare(holder.cache, now, then)
        holder.plans.append((reader, b"".join(n.to_bytes(4, "little") for n in now + then)))

    @rule(who=HOLDERS, place=st.integers(0, 5))
    def reached(self, who: int, place: int) -> None:
        for reader, _ in self._at(who).plans[:1]:
            reader.reached(place)

    @rule(who=HOLDERS)
    def withdraw(self, who: int) -> None:
        holder = self._at(who)
        if holder.plans:
            holder.plans.pop(0)[0].close()

    # What must hold after each step.

    @invariant()
    def flights_are_lost_to_readers_only(self) -> None:
        lost = dict(self._read("SELECT id, lost FROM flights"))
        for fetch in self._all_fetches():
            if not fetch.lost and lost[fetch.flight._number]:
                assert fetch in self.may_lose
                fetch.lost = True
        self.may_lose = set()

    @invariant()
    def counts_are_exact(self) -> None:
        names = {number: int(url.rpartition("/")[2]) for number, url in self._read("SELECT id, url FROM chunks")}
        for holder in self._counted():
            rows = self._read("SELECT chunk, hard, soft FROM leases WHERE holder = ?", holder.row)
            found = {
                (names[chunk], kind): n
                for chunk, *both in rows
                for kind, n in zip((True, False), both, strict=True)
                if n
            }
            assert found == {what: count for what, count in holder.leases.items() if count}
        assert self._read("SELECT count(DISTINCT holder) FROM leases WHERE holder NOT IN (SELECT id FROM holders)") == [
            (0,)
        ]

    @invariant()
    def nothing_belongs_to_nobody(self) -> None:
        """Holders are the living, and the dead that nobody buried; what else there is belongs to one of them."""
        assert self._read("SELECT count(*) FROM holders") == [(len(self._counted()),)]
        assert orphans(self._read) == {}
        for holder in self._counted():
            windows = self._read("SELECT id, bytes, need FROM windows WHERE holder = ?", holder.row)
            assert {number: claim for number, *claim in windows} == {n: list(c) for n, c in holder.windows.items()}
            orders = self._read(
                "SELECT chunks FROM plans JOIN orders ON plan = id WHERE holder = ? ORDER BY plans.rowid", holder.row
            )
            assert sorted(order for (order,) in orders) == sorted(order for _, order in holder.plans)

    @invariant()
    def the_budget_holds(self) -> None:
        """Where a smaller one came later, what is held goes down to it, and never up again."""
        budget, stored = self._limit(), self._read("SELECT used FROM account")[0][0]
        assert bytes_below(self.folder / "cache") <= stored <= max(budget, self.used)
        if stored > budget:
            assert all(self._leased(n, True, False) for n in self._ready()), "what nobody holds has to go"
        self.used = stored
        claimed, need = self._read("SELECT coalesce(sum(bytes), 0), coalesce(max(need), 0) FROM windows")[0]
        assert claimed + need <= max(budget, self.claimed)
        self.claimed = claimed + need

    @invariant()
    def hard_leases_keep_their_chunks(self) -> None:
        """What was ready under a hard lease before the step is so after it; ledger and directory agree."""
        over = self._read("SELECT used FROM account")[0][0] > self._limit()
        assert [problem.kind for problem in self.observer.verify()] == ["over budget"] * over
        ready = self._ready()
        for chunk in self.pinned:
            assert not self._leased(chunk, True) or chunk in ready, chunk
        self.pinned = {n for n in ready if self._leased(n, True)}


TestLedger = Ledger.TestCase
TestLedger.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
