"""Single flight: one download however many want it, taken over when its process dies, fails or stalls."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from servers.cache_actor import Actor, ActorError, bytes_below, digest_of, key, put, until, write

from forebay._cache import Busy, Cache, Flight, FlightLostError, Ready
from forebay.exceptions import CacheError


def begin(cache: Cache, number: int, size: int = 100, *, hard: bool = True) -> Flight:
    flight = cache.acquire(key(number), hard=hard)
    assert isinstance(flight, Flight)
    assert flight.reserve(size)
    return flight


def test_many_processes_make_one_flight(directory: Path, cache: Cache) -> None:
    """B18: in progress is a state of its own; the others wait, and all read the same file."""
    actors = [Actor(directory) for _ in range(4)]
    try:
        outcomes = [actor.call("acquire", chunk=1) for actor in actors]
        assert sorted(outcomes) == ["Busy", "Busy", "Busy", "Flight"]
        fetcher = actors.pop(outcomes.index("Flight"))
        for actor in actors:
            assert actor.call("poll", chunk=1) == "Busy"
        with fetcher:
            fetcher.call("reserve", chunk=1, total=100)
            fetcher.call("write", chunk=1, size=100)
            fetcher.call("publish", chunk=1, size=100)
            assert [actor.call("poll", chunk=1) for actor in actors] == ["Ready"] * 3
            assert cache.refcount(key(1).url) == 4
    finally:
        for actor in actors:
            actor.kill()


def test_busy_says_who_fetches_since_when(directory: Path, cache: Cache) -> None:
    with Actor(directory) as other:
        other.call("acquire", chunk=1)
        busy = cache.acquire(key(1), hard=True)
        assert isinstance(busy, Busy)
        assert str(other.pid) in busy.holder
        assert abs(time.time() - busy.since) < 60
        assert f"process {other.pid}" in cache.describe()


def test_a_waiter_takes_over_from_a_killed_process_and_gets_its_room(directory: Path, cache: Cache) -> None:
    """E7, J15: the dead one's file and reservation are gone before the waiter reserves; nothing waits for a timeout."""
    with Actor(directory) as other:
        other.call("acquire", chunk=1)
        other.call("reserve", chunk=1, total=900)
        other.call("write", chunk=1, size=900)
        assert isinstance(cache.acquire(key(1), hard=True), Busy)
        other.kill()
        begin_of_wait = time.monotonic()
        flight = cache.poll(key(1), hard=True)
        assert isinstance(flight, Flight)
        assert time.monotonic() - begin_of_wait < cache.stall_seconds / 2  # type: ignore[attr-defined]
        assert bytes_below(directory) == 0
        assert flight.reserve(900)
        flight.publish(bytes=900, digest=write(flight, 1, 900))
        assert cache.verify() == []


def test_a_waiter_takes_over_when_the_fetcher_gives_up(directory: Path, cache: Cache) -> None:
    """J15: a failed fetch does not poison the chunk."""
    with Actor(directory) as other:
        other.call("acquire", chunk=1)
        assert isinstance(cache.acquire(key(1), hard=True), Busy)
        other.call("abort", chunk=1)
        assert isinstance(cache.poll(key(1), hard=True), Flight)
        assert other.call("acquire", chunk=1) == "Busy"


@pytest.mark.parametrize("written", [True, False])
def test_a_stopped_fetcher_is_taken_over_and_cannot_publish(directory: Path, cache: Cache, *, written: bool) -> None:
    """J15: whoever stalls loses the right to publish, and never writes past the budget afterwards."""
    cache.stall_seconds = 1.5  # type: ignore[attr-defined]
    with Actor(directory) as other:
        other.call("acquire", chunk=1)
        other.call("reserve", chunk=1, total=600)
        if written:
            other.call("write", chunk=1, size=600)
        other.stop()
        assert isinstance(cache.acquire(key(1), hard=True), Busy)
        flight = until(lambda: _flight(cache.poll(key(1), hard=True)), "take-over")
        # A file that does not exist yet may still be created: its bytes are not given away.
        assert flight.reserve(600) is written
        other.resume()
        with pytest.raises(ActorError, match="taken over") as raised:
            other.call("publish", chunk=1, size=600)
        assert raised.value.kind == "FlightLostError"
        other.call("abort", chunk=1)
        assert flight.reserve(600)
        flight.publish(bytes=600, digest=write(flight, 1, 600))
        assert cache.verify() == []
        assert cache.info().bytes == bytes_below(directory) == 600


def _flight(outcome: Ready | Busy | Flight) -> Flight | None:
    return outcome if isinstance(outcome, Flight) else None


def test_a_fetcher_that_moves_is_not_taken_over(cache: Cache) -> None:
    cache.stall_seconds = 3.0  # type: ignore[attr-defined]
    flight = begin(cache, 1)
    end = time.monotonic() + 4.0

    def beat_on() -> bool:
        flight.beat()
        assert isinstance(cache.poll(key(1), hard=True), Busy)
        return time.monotonic() > end

    until(beat_on, "a life longer than a stall")
    flight.publish(bytes=100, digest=write(flight, 1, 100))


def test_a_process_killed_between_rename_and_commit_leaves_nothing(directory: Path, cache: Cache) -> None:
    """A chunk appears whole, or not at all: a name without its row is not one."""
    with Actor(directory) as other:
        other.call("acquire", chunk=1)
        other.call("reserve", chunk=1, total=500)
        other.call("write", chunk=1, size=500)
        with pytest.raises(ActorError, match="Died"):
            other.call("publish_and_die", chunk=1, size=500)
    assert bytes_below(directory) == 500, "the test wants the moment after the rename"
    assert cache.info().bytes == 0
    assert bytes_below(directory) == 0
    flight = begin(cache, 1, 1000)
    flight.publish(bytes=1000, digest=write(flight, 1, 1000))
    assert cache.verify() == []


def test_abort_works_twice_and_gives_back_everything(directory: Path, cache: Cache) -> None:
    """B8: the temporary goes on every exit; an abort after the end does nothing."""
    flight = begin(cache, 1, 1000)
    flight.temp.write_bytes(b"x" * 400)
    flight.abort()
    flight.abort()
    assert bytes_below(directory) == cache.info().bytes == cache.info().leases == 0
    for step in (lambda: flight.reserve(10), lambda: flight.publish(bytes=1, digest="xxh3-64:0")):
        with pytest.raises(FlightLostError):
            step()
    flight.beat()
    ready = put(cache, 2)
    flight.abort()
    assert ready.path.exists()


def test_temporaries_are_unique_and_lie_beside_the_chunk(cache: Cache) -> None:
    """B14, B15: a random name that can be created exclusively, on the same file system as the final one."""
    names = set()
    for _ in range(20):
        flight = cache.acquire(key(1), hard=True)
        assert isinstance(flight, Flight)
        assert not flight.temp.exists()
        names.add(flight.temp.name)
        parent = flight.temp.parent
        assert parent.is_dir()
        flight.abort()
    assert len(names) == 20
    assert put(cache, 1).path.parent == parent


@pytest.mark.parametrize("size", [0, 99, 101])
def test_a_file_of_another_size_is_not_published(directory: Path, cache: Cache, size: int) -> None:
    """B9, B12, P11: what is published has the bytes that were promised."""
    flight = begin(cache, 1)
    flight.temp.write_bytes(b"x" * size)
    with pytest.raises(CacheError, match=rf"has {size} bytes where 100 bytes"):
        flight.publish(bytes=100, digest="xxh3-64:0")
    flight.abort()
    assert bytes_below(directory) == 0


def test_a_file_that_is_not_there_is_not_published(cache: Cache) -> None:
    flight = begin(cache, 1)
    with pytest.raises(CacheError, match="is missing"):
        flight.publish(bytes=100, digest="xxh3-64:0")
    flight.abort()


def test_more_bytes_than_reserved_are_published_only_where_there_is_room(cache: Cache) -> None:
    put(cache, 1, 500)
    flight = begin(cache, 2, 100)
    flight.temp.write_bytes(b"x" * 600)
    with pytest.raises(CacheError, match="100 were reserved"):
        flight.publish(bytes=600, digest="xxh3-64:0")
    flight.abort()
    assert cache.info().bytes == 500


def test_an_empty_chunk_is_a_chunk(cache: Cache) -> None:
    """Q1: zero bytes need no room and are not taken for an absent file."""
    put(cache, 1, 0, lease=False)
    ready = cache.acquire(key(1), hard=True)
    assert isinstance(ready, Ready)
    assert ready.path.read_bytes() == b""
    assert ready.digest == digest_of(b"")


def test_equal_names_in_two_datasets_are_two_chunks(cache: Cache) -> None:
    """C8: the whole location is the identity; suffixes are kept, cleaned."""
    first, second = key(1, "aa"), key(1, "bb")
    paths = []
    for chunk in (first, second):
        flight = cache.acquire(chunk, hard=True)
        assert isinstance(flight, Flight)
        flight.reserve(10)
        paths.append(flight.publish(bytes=10, digest=write(flight, 1, 10)).path)
    assert paths[0] != paths[1]
    assert {path.suffix for path in paths} == {".bin"}
