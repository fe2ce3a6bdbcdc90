"""Clairvoyant eviction: what goes is what all living readers need last, and a plan can neither leak nor pin a chunk."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from servers.cache_actor import Actor, declare, key, put, until, write

from forebay import _config
from forebay._cache import Cache, Flight, Ready, open_cache
from forebay._cache._foresight import PLAN_PATIENCE, Foresight
from forebay._cache._shared import SharedCache

SIZE = 100
#: Chunks of `SIZE` that the cache of the fixture holds.
ROOM = 10


def ready(cache: Cache, numbers: range | list[int]) -> set[int]:
    return {number for number in numbers if cache.meta(key(number)) is not None}


def fill(cache: Cache, numbers: range | list[int]) -> None:
    for number in numbers:
        put(cache, number, SIZE, lease=False)


def fly(cache: Cache, number: int, *, hard: bool = True) -> Flight:
    flight = cache.acquire(key(number), hard=hard)
    assert isinstance(flight, Flight)
    return flight


def evicted_for(cache: Cache, number: int) -> set[int]:
    """What goes when a reader waits for chunk ``number``, which is given up again."""
    before = ready(cache, range(100))
    flight = fly(cache, number)
    assert flight.reserve(SIZE)
    flight.abort()
    return before - ready(cache, range(100))


def plans(cache: Cache) -> list[tuple[int, int]]:
    """Place of each plan in the ledger, and the bytes of its order."""
    assert isinstance(cache, SharedCache)
    return cache.member.ledger.read(
        lambda connection: connection.execute(
            "SELECT place, length(chunks) FROM plans JOIN orders ON plan = id ORDER BY place"
        ).fetchall()
    )


def test_the_chunk_that_is_read_last_goes_first(cache: Cache) -> None:
    fill(cache, range(ROOM))
    order = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]
    declare(cache, order, [20, *order])
    flight = fly(cache, 20)
    for size, gone in ((1, {7}), (2, {7, 8}), (5, {7, 8, 6, 2, 9})):
        assert flight.reserve(size * SIZE)
        assert ready(cache, order) == set(order) - gone
    flight.abort()


def test_what_was_just_read_is_next_of_the_next_epoch(cache: Cache) -> None:
    fill(cache, range(ROOM))
    reader = declare(cache, list(range(ROOM)), list(range(ROOM - 1, -1, -1)))
    reader.reached(3)
    assert evicted_for(cache, 30) == {0}  # 3, 4, 5, 6, 7, 8, 9, 9, 8, …, 1, 0
    reader.reached(ROOM)
    put(cache, 0, SIZE, lease=False)
    assert evicted_for(cache, 30) == {0}
    assert evicted_for(cache, 31) == set()


def test_what_nobody_will_read_goes_before_and_the_longest_unused_of_it_first(cache: Cache) -> None:
    fill(cache, [50, 51, *range(8)])
    put_at = cache.acquire(key(50), hard=True)
    assert isinstance(put_at, Ready)
    cache.release(key(50), hard=True)
    declare(cache, list(range(8)), list(range(8)))
    assert evicted_for(cache, 20) == {51}
    fill(cache, [20])
    assert evicted_for(cache, 21) == {50}


def test_without_a_plan_or_by_the_setting_it_is_lru(
    directory: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cache, range(ROOM))
    reader = declare(cache, list(range(ROOM)), list(range(ROOM)))
    reader.close()
    assert evicted_for(cache, 20) == {0}
    cache.close()
    monkeypatch.setenv("FOREBAY_EVICTION", "lru")
    lru = open_cache(directory, max_bytes=1000)
    fill(lru, [0])
    declare(lru, list(range(ROOM)), list(range(ROOM)))
    assert plans(lru) == []
    assert evicted_for(lru, 20) == {1}
    lru.close()


def test_the_nearest_use_over_all_processes_counts(directory: Path, cache: Cache) -> None:
    fill(cache, range(ROOM))
    declare(cache, list(range(ROOM)), list(range(ROOM)))
    with Actor(directory) as other:
        other.call("declare", now=[9, 7], then=[])
        assert evicted_for(cache, 20) == {8}
        fill(cache, [8])
        other.call("reached", place=1)  # 9 is read there, and comes last here
        assert evicted_for(cache, 20) == {9}


def test_the_plan_of_a_dead_reader_counts_no_more(directory: Path, cache: Cache) -> None:
    """Risk C3: what a killed process said it would read must not keep chunks from the living."""
    fill(cache, range(ROOM))
    with Actor(directory) as other:
        other.call("declare", now=[0, 1, 2], then=[0, 1, 2])
        assert len(plans(cache)) == 1
    assert cache.info().holders == 1  # whoever looks reaps the dead
    assert plans(cache) == []
    assert evicted_for(cache, 20) == {0}


def test_a_reader_that_rests_for_long_keeps_nothing(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cache, range(ROOM))
    declare(cache, [0, 1, 2], [0, 1, 2])
    assert evicted_for(cache, 20) == {3}
    now = _config.wall_clock()
    monkeypatch.setattr(_config, "wall_clock", lambda: now + PLAN_PATIENCE + 1)
    fill(cache, [3])
    assert evicted_for(cache, 20) == {0}


def test_a_look_ahead_never_takes_the_room_of_what_is_read_before_it(cache: Cache) -> None:
    fill(cache, range(ROOM))
    declare(cache, [*range(ROOM), 20], [])
    assert not cache.has_room(key(20), SIZE)
    flight = fly(cache, 20, hard=False)
    assert not flight.reserve(SIZE)
    flight.hard = True
    assert flight.reserve(SIZE)
    assert ready(cache, range(ROOM)) == set(range(9))
    flight.abort()


def test_prefetched_chunks_go_by_their_next_use_too(cache: Cache) -> None:
    """A soft lease is no reason to keep what is read late, and none to lose what is read soon."""
    fill(cache, range(ROOM))
    declare(cache, [*range(ROOM)], [*range(ROOM)])
    for soft in (1, 9):
        assert isinstance(cache.acquire(key(soft), hard=False), Ready)
    assert evicted_for(cache, 20) == {9}
    assert not cache.harden(key(9))
    fill(cache, [9])
    assert evicted_for(cache, 20) == {9}
    assert evicted_for(cache, 20) == set()
    fill(cache, [9])
    assert cache.harden(key(1))
    cache.release(key(1), hard=True)


def test_looking_ahead_takes_a_small_share_of_a_full_cache(cache: Cache) -> None:
    """What is fetched long before it is read keeps out what would have been a hit."""
    fill(cache, range(ROOM))
    absent = list(range(20, 20 + ROOM))
    declare(cache, [*absent, *range(ROOM)], [*absent, *range(ROOM)])
    first = fly(cache, 20, hard=False)
    assert first.reserve(SIZE)
    assert not cache.has_room(key(21), SIZE)
    second = fly(cache, 21, hard=False)
    assert not second.reserve(SIZE)
    put_ready(first, 20)
    assert not second.reserve(SIZE)
    assert cache.harden(key(20))  # now it is read, and the next one may come
    assert second.reserve(SIZE)
    second.abort()


def put_ready(flight: Flight, number: int) -> None:
    flight.publish(bytes=SIZE, digest=write(flight, number, SIZE))


def test_a_small_cache_of_a_large_dataset_looks_ahead_as_far_as_asked(cache: Cache) -> None:
    """There, hits are few whatever is kept, and waiting is what costs."""
    fill(cache, range(ROOM))
    absent = list(range(100, 1100))
    declare(cache, [*absent, *range(ROOM)], [])
    flights = [fly(cache, number, hard=False) for number in absent[: ROOM // 2]]
    assert all(flight.reserve(SIZE) for flight in flights)
    for flight in flights:
        flight.abort()


def in_child(work: Callable[[], object]) -> None:
    pid = os.fork()
    if not pid:
        code = 1
        try:
            signal.alarm(30)
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_forked_child_neither_moves_nor_replaces_its_parents_plan(cache: Cache) -> None:
    reader = declare(cache, [1, 2, 3], [4])

    def child() -> None:
        reader.reached(2)
        reader.declare(np.array([5], np.int64), np.array([6], np.int64))
        assert plans(cache) in ([(0, 16), (0, 8)], [(0, 8), (0, 16)])
        reader.close()

    in_child(child)
    assert plans(cache) == [(0, 16)]


def test_a_ledger_that_was_lost_hears_the_plans_again(directory: Path, cache: Cache) -> None:
    reader = declare(cache, list(range(ROOM)), list(range(ROOM - 1, -1, -1)))
    reader.reached(4)
    for ending in ("", "-wal", "-shm"):
        (directory / f"ledger.sqlite{ending}").unlink(missing_ok=True)
    fill(cache, range(ROOM))
    assert plans(cache) == [(4, 80)]
    assert evicted_for(cache, 20) == {0}


def test_the_place_is_known_to_others_once_a_chunk_is_given_back(directory: Path, cache: Cache) -> None:
    reader = declare(cache, [1, 2], [2, 1])
    put(cache, 1, SIZE)
    reader.reached(1)
    cache.release(key(1), hard=True)
    with sqlite3.connect(directory / "ledger.sqlite") as connection:
        assert connection.execute("SELECT place FROM plans").fetchall() == [(1,)]
    connection.close()


def test_closing_the_last_user_of_a_cache_takes_its_plans_along(directory: Path, cache: Cache) -> None:
    with Actor(directory) as other:
        other.call("declare", now=[1], then=[2])
        until(lambda: len(plans(cache)) == 1, "the plan")
        other.call("close")
        assert plans(cache) == []


@pytest.fixture
def connection(cache: Cache) -> sqlite3.Connection:
    assert isinstance(cache, SharedCache)
    return cache.member.ledger._connect()


@pytest.mark.parametrize("seed", range(8))
def test_any_plans_and_places_give_what_a_search_gives(cache: Cache, connection: sqlite3.Connection, seed: int) -> None:
    """Against the plain definition: the least number of chunks that a reader reads before this one."""
    dice = random.Random(seed)
    numbers = list(range(30))
    foresight, readers = Foresight(), []
    for _ in range(dice.randint(1, 4)):
        now, then = (dice.sample(numbers, dice.randint(0, 30)) for _ in range(2))
        readers.append((declare(cache, now, then), now, then, [0]))
    for number in numbers:
        put(cache, number, 1, lease=False)
    for _ in range(40):
        reader, now, then, place = dice.choice(readers)
        place[0] = dice.choice([place[0] + 1, place[0] + 3, len(now), 0])
        place[0] = min(place[0], len(now))
        reader.reached(place[0])
        cache.gc()
        foresight.refresh(connection)
        wanted = {}
        for number in numbers:
            left = [[*now, *then][place[0] :] for _, now, then, place in readers]
            wanted[number] = min((order.index(number) for order in left if number in order), default=None)
        rows = dict(connection.execute("SELECT id, number FROM chunks").fetchall())
        assert {rows[row] for row in foresight.unneeded()} == {n for n in numbers if wanted[n] is None}
        assert foresight.needed() == sum(distance is not None for distance in wanted.values())
        found = [wanted[rows[row]] for batch in foresight.furthest(4) for row in batch]
        assert found == sorted((d for d in wanted.values() if d is not None and d > 4), reverse=True)


def test_of_many_chunks_only_those_that_changed_are_looked_at_again(
    cache: Cache, connection: sqlite3.Connection
) -> None:
    """Six thousand chunks: the first to go is exact after any move, and the whole order is made anew rarely."""
    assert isinstance(cache, SharedCache)
    count, orders = 6000, 0
    rows = [(f"da7a/{number:032x}", number) for number in range(count) if number % 2]
    cache.member.ledger.write(
        lambda connection: connection.executemany(
            "INSERT INTO chunks (name, url, number, ready) VALUES (?, '', ?, 1)", rows
        )
    )
    dice = np.random.default_rng(1)
    now, then = dice.permutation(count), dice.permutation(count)
    reader = cache.plan_reader("da7a")
    reader.declare(now, then)
    whole, foresight, ranking = [*now.tolist(), *then.tolist()], Foresight(), None
    numbers = dict(connection.execute("SELECT id, number FROM chunks").fetchall())
    gone: set[int] = set()
    for place in range(0, 900, 9):
        reader.reached(place)
        cache.member.ledger.write(lambda _: None)
        foresight.refresh(connection)
        victim = next(row for batch in foresight.furthest(-1) for row in batch if row not in gone)
        orders, ranking = orders + (foresight._ranking is not ranking), foresight._ranking
        left = [number for row, number in numbers.items() if row not in gone]
        uses = {number: at for at, number in reversed([*enumerate(whole[place:])])}
        assert numbers[victim] == max(left, key=uses.__getitem__)
        gone.add(victim)
        if place % 2:
            foresight.forget(victim)
    assert orders <= 8
