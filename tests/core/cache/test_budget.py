"""The hard budget: every file below ``chunks/`` counts, bytes are reserved before they are written, nobody starves."""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
from pathlib import Path

import pytest
from servers.cache_actor import Actor, ActorError, bytes_below, key, put, until, watched, write

from forebay._cache import Busy, Cache, Flight, FlightLostError, Ready, open_cache
from forebay.exceptions import BudgetTooSmallError


def fly(cache: Cache, number: int, *, hard: bool = True) -> Flight:
    flight = cache.acquire(key(number), hard=hard)
    assert isinstance(flight, Flight)
    return flight


def test_a_chunk_larger_than_the_budget_is_refused_with_the_arithmetic(cache: Cache) -> None:
    """D2: at once, as a ValueError too, and it says what to do."""
    flight = fly(cache, 1)
    with pytest.raises(BudgetTooSmallError, match=r"1001 bytes\).*1000\s+bytes\).*max_cache_bytes to at least 1001"):
        flight.reserve(1001)
    flight.abort()
    assert issubclass(BudgetTooSmallError, ValueError)
    assert cache.info().leases == 0


def test_the_least_recently_used_chunk_goes_first(cache: Cache) -> None:
    paths = {number: put(cache, number, 300, lease=False).path for number in (1, 2, 3)}
    cache.acquire(key(1), hard=True)
    cache.release(key(1), hard=True)
    flight = fly(cache, 4)
    assert flight.reserve(300)
    assert [number for number, path in paths.items() if path.exists()] == [1, 3]
    assert flight.reserve(600)
    assert [number for number, path in paths.items() if path.exists()] == [1]
    assert cache.evictions == 2
    flight.abort()


def test_nothing_is_evicted_where_that_would_not_be_enough(cache: Cache) -> None:
    held, free = put(cache, 1, 700), put(cache, 2, 200, lease=False)
    flight = fly(cache, 3)
    assert not flight.reserve(500)
    assert free.path.exists()
    assert held.path.exists()
    flight.abort()


def test_reservations_count_before_a_byte_is_written(directory: Path, cache: Cache) -> None:
    """D5: two that both saw enough space cannot both have it."""
    assert fly(cache, 1).reserve(600)
    with Actor(directory) as other:
        other.call("acquire", chunk=2)
        assert not other.call("reserve", chunk=2, total=600)
        assert other.call("reserve", chunk=2, total=400)
        assert cache.info().bytes == 1000


def test_prefetched_chunks_give_way_to_a_reader_and_not_to_prefetching(cache: Cache) -> None:
    prefetched = put(cache, 1, 800, hard=False)
    ahead = fly(cache, 2, hard=False)
    assert not ahead.reserve(800)
    assert prefetched.path.exists()
    reader = fly(cache, 3)
    assert reader.reserve(800)
    assert not prefetched.path.exists()
    assert not cache.harden(key(1))


def test_looking_ahead_leaves_the_room_of_a_reader_between_two_chunks(cache: Cache) -> None:
    """Risk C1: what took it would be evicted a moment later, and fetched again."""
    claims = [cache.claim_window(0, 500)[0] for _ in range(2)]  # two readers of chunks of 500 bytes
    put(cache, 1, 500)
    ahead = cache.acquire(key(2), hard=False)
    assert isinstance(ahead, Flight)
    assert not ahead.reserve(500)  # the other reader has no chunk at this moment
    assert not cache.has_room(key(3), 500)
    wanted = cache.acquire(key(4), hard=True)
    assert isinstance(wanted, Flight)
    assert wanted.reserve(500)
    wanted.abort()
    for claim in claims:
        assert claim is not None
        cache.drop_window(claim)
    assert cache.has_room(key(3), 500)
    assert ahead.reserve(500)
    ahead.abort()


def test_looking_ahead_takes_what_readers_do_not_need(cache: Cache) -> None:
    """Risk A7: with room for one chunk more than there are readers, one is fetched ahead, and one only."""
    for _ in range(2):
        cache.claim_window(0, 300)
    first, second = cache.acquire(key(1), hard=False), cache.acquire(key(2), hard=False)
    assert isinstance(first, Flight)
    assert isinstance(second, Flight)
    assert first.reserve(300)
    assert not second.reserve(300)
    assert not cache.has_room(key(3), 300)
    first.publish(bytes=300, digest=write(first, 1, 300))
    assert not second.reserve(300)
    assert cache.harden(key(1))  # its reader has come
    assert second.reserve(300)
    second.abort()


def test_one_huge_chunk_does_not_end_all_looking_ahead(cache: Cache) -> None:
    """Risk A7: two readers that may need 900 bytes some day, and 100 now."""
    for _ in range(2):
        cache.claim_window(0, 900)
    assert cache.has_room(key(1), 100)
    flight = cache.acquire(key(1), hard=False)
    assert isinstance(flight, Flight)
    assert flight.reserve(100)
    flight.abort()


def test_a_flight_that_a_reader_comes_to_wait_for_goes_ahead(cache: Cache) -> None:
    put(cache, 1, 800, hard=False)
    flight = fly(cache, 2, hard=False)
    assert not flight.reserve(800)
    flight.hard = True
    assert flight.reserve(800)


def test_readers_are_served_in_turn_and_prefetching_never_overtakes(directory: Path, cache: Cache) -> None:
    """The first in the queue may need more room than the second: it still comes first."""
    put(cache, 1, 900)
    with Actor(directory) as first, Actor(directory) as second:
        first.call("acquire", chunk=2)
        assert not first.call("reserve", chunk=2, total=900)
        second.call("acquire", chunk=3)
        assert not second.call("reserve", chunk=3, total=50)
        assert not fly(cache, 4, hard=False).reserve(50)
        cache.release(key(1), hard=True)
        assert not second.call("reserve", chunk=3, total=50)
        assert first.call("reserve", chunk=2, total=900)
        assert second.call("reserve", chunk=3, total=50)


def test_a_dead_or_impatient_waiter_holds_nobody_up(directory: Path, cache: Cache) -> None:
    put(cache, 1, 900)
    with Actor(directory) as dead, Actor(directory) as gone:
        for other, number in ((dead, 2), (gone, 3)):
            other.call("acquire", chunk=number)
            assert not other.call("reserve", chunk=number, total=900)
        mine = fly(cache, 4)
        assert not mine.reserve(900)
        cache.release(key(1), hard=True)
        dead.kill()
        gone.call("abort", chunk=3)
        assert until(lambda: mine.reserve(900), "my turn", 25)


def test_two_that_hold_half_each_do_not_wait_for_ever(cache: Cache) -> None:
    """Sizes that are not known grow step by step; the later one gives its half to the first."""
    first, second = fly(cache, 1), fly(cache, 2)
    assert first.reserve(500)
    assert second.reserve(500)
    for flight in (first, second):
        flight.temp.write_bytes(b"x" * 500)
    assert not second.reserve(800)
    assert not first.reserve(800), "second asked first, and first has not given up yet"
    assert second.reserve(800)
    with pytest.raises(FlightLostError, match="gave its room"):
        first.reserve(800)
    first.abort()
    assert cache.info().bytes == 800


def test_a_flight_that_waits_without_a_file_is_not_robbed(cache: Cache) -> None:
    """It may be about to create the file: bytes that may still be written are never given away."""
    first, second = fly(cache, 1), fly(cache, 2)
    assert first.reserve(500)
    assert second.reserve(500)
    assert not second.reserve(800)
    assert not first.reserve(800)
    assert not second.reserve(800)
    first.abort()
    assert second.reserve(800)


def test_the_smaller_of_two_budgets_rules_while_its_process_lives(
    directory: Path, cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2):
        put(cache, number, 400, lease=False)
    with Actor(directory, max_bytes=500) as other:
        assert cache.max_bytes == 500
        assert bytes_below(directory) == 400, "what nobody holds goes at once"
        flight = fly(cache, 3)
        with pytest.raises(BudgetTooSmallError):
            flight.reserve(600)
        other.kill()
        assert flight.reserve(600), "a dead process's budget does not rule"
        flight.abort()
    assert cache.max_bytes == 1000
    with Actor(directory, max_bytes=2000), caplog.at_level(logging.WARNING, "forebay"):
        assert cache.max_bytes == 1000


def test_a_second_budget_is_said_in_the_log(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Actor(directory, max_bytes=2000), caplog.at_level(logging.WARNING, "forebay"):
        cache = open_cache(directory, max_bytes=700)
        cache.close()
    assert "two budgets" in caplog.text
    assert str(directory) in caplog.text


def test_a_budget_is_recorded_for_the_next_run(directory: Path) -> None:
    open_cache(directory, max_bytes=777).close()
    cache = open_cache(directory, max_bytes=None)
    assert cache.max_bytes == cache.info().max_bytes == 777
    cache.close()


def test_without_a_budget_most_of_the_free_space_is_one(directory: Path) -> None:
    cache = open_cache(directory, max_bytes=None)
    assert cache.max_bytes > 1 << 20
    cache.close()


def test_a_smaller_budget_in_the_next_run_evicts_at_once(directory: Path, cache: Cache) -> None:
    for number in range(5):
        put(cache, number, 200, lease=False)
    cache.close()
    again = open_cache(directory, max_bytes=450)
    assert bytes_below(directory) == again.info().bytes == 400
    again.close()


@pytest.mark.parametrize("end", ["kill", "close"])
def test_what_one_holder_keeps_past_a_smaller_budget_goes_with_it(directory: Path, cache: Cache, end: str) -> None:
    """D1, E8: held when the smaller budget came, and nobody's once its holder has left or was killed."""
    with Actor(directory) as reader:
        reader.call("put", chunk=1, size=800)
        with Actor(directory, max_bytes=500):
            assert bytes_below(directory) == 800
            reader.kill() if end == "kill" else reader.call("close")
            assert cache.info().bytes == bytes_below(directory) == 0
            assert cache.verify() == []


def test_what_a_lost_flight_keeps_past_a_smaller_budget_goes_with_it(directory: Path, cache: Cache) -> None:
    """D1: its lease holds the chunk that another fetched in its place."""
    mine = fly(cache, 1)
    with Actor(directory, stall=-1.0) as other:
        assert other.call("acquire", chunk=1) == "Busy"
        assert other.call("poll", chunk=1) == "Flight"
        other.call("reserve", chunk=1, total=800)
        other.call("write", chunk=1, size=800)
        other.call("publish", chunk=1, size=800)
        other.call("release", chunk=1)
        with Actor(directory, max_bytes=500):
            assert bytes_below(directory) == 800
            mine.abort()
            assert cache.info().bytes == bytes_below(directory) == 0


def test_the_budget_on_record_evicts_at_once_as_one_that_is_named(directory: Path, cache: Cache) -> None:
    """D1: it was the last one that somebody named; those who live since before had a larger one."""
    with Actor(directory, max_bytes=500) as other:
        other.call("close")
    for number in (1, 2):
        put(cache, number, 400, lease=False)
    assert bytes_below(directory) == 800
    with Actor(directory):
        assert cache.max_bytes == 500
        assert cache.info().bytes == bytes_below(directory) == 400


def test_a_file_that_is_not_ours_may_go_while_the_directory_is_looked_through(directory: Path, cache: Cache) -> None:
    """It is somebody else's to remove at any moment; opening the cache, and making room in it, failed over that."""
    put(cache, 1)
    stray = directory / "chunks" / "notes.txt"
    stray.write_bytes(b"x" * 10)

    def remove_before_it_is_looked_at(_frame: object, event: str, called: object) -> None:
        if event == "c_call" and isinstance(getattr(called, "__self__", None), os.DirEntry):
            stray.unlink(missing_ok=True)

    sys.setprofile(remove_before_it_is_looked_at)
    try:
        cache.gc()
    finally:
        sys.setprofile(None)
    assert not stray.exists()
    assert cache.info().bytes == 100


def test_files_that_are_not_ours_count_and_stay(directory: Path, cache: Cache) -> None:
    """D1, D3: the budget is about the directory, whoever wrote there."""
    stranger = directory / "chunks" / "notes.txt"
    stranger.write_bytes(b"n" * 300)
    cache.gc()
    assert cache.info().bytes == 300
    assert fly(cache, 1).reserve(700)
    with pytest.raises(BudgetTooSmallError, match="not the cache's own"):
        fly(cache, 2).reserve(701)
    assert stranger.exists()


def test_an_outside_watcher_never_sees_more_than_the_budget(directory: Path, cache: Cache) -> None:
    """D1, C14: threads and processes fill, read, fail and evict; at no instant does the directory hold more."""
    with watched(directory) as highest, Actor(directory) as one, Actor(directory) as two:
        threads = [threading.Thread(target=_churn, args=(cache, seed)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for turn in range(60):
            for actor in (one, two):
                number, size = 100 + turn % 7, 50 + turn
                outcome = actor.call("acquire", chunk=number, hard=False)
                if outcome == "Flight":
                    if actor.call("reserve", chunk=number, total=size):
                        actor.call("write", chunk=number, size=size)
                        actor.call("publish", chunk=number, size=size)
                        actor.call("release", chunk=number, hard=False)
                    else:
                        actor.call("abort", chunk=number)
                else:
                    actor.call("release", chunk=number, hard=False)
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert 0 < highest[0] <= 1000
    assert cache.info().leases == 0
    assert cache.verify() == []
    assert cache.info().bytes == bytes_below(directory)


def _churn(cache: Cache, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        number, size = rng.randrange(12), rng.randrange(1, 400)
        outcome = cache.acquire(key(number), hard=True)
        if not isinstance(outcome, Flight):
            if isinstance(outcome, Ready):
                assert outcome.path.exists(), "a leased chunk vanished"
            assert isinstance(outcome, Ready | Busy)
            cache.release(key(number), hard=True)
        elif outcome.reserve(size) and rng.random() < 0.8:
            outcome.publish(bytes=size, digest=write(outcome, number, size))
            cache.release(key(number), hard=True)
        else:
            outcome.abort()


def test_a_full_cache_names_who_holds_what(directory: Path, cache: Cache) -> None:
    with Actor(directory) as other:
        other.call("put", chunk=1, size=900)
        text = cache.describe()
        assert f"process {other.pid}" in text
        assert "budget 1000 B, used 900 B" in text
        assert "holds 1 chunks (900 B" in text


def test_a_refused_reservation_in_another_process_is_the_same_error(directory: Path, cache: Cache) -> None:
    with Actor(directory) as other:
        other.call("acquire", chunk=1)
        with pytest.raises(ActorError, match="does not fit") as raised:
            other.call("reserve", chunk=1, total=5000)
        assert raised.value.kind == "BudgetTooSmallError"
