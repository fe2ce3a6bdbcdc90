"""Leases declared before anybody reads: SEED rows 10 and 11, Risk C1 and C2."""

from __future__ import annotations

from pathlib import Path

from servers.cache_actor import Actor, body, key, put, until

from forebay._cache import Cache, Ready


def test_what_was_declared_counts_once_and_from_the_beginning(directory: Path, cache: Cache) -> None:
    cache.declare([key(1), key(2)])
    assert [cache.refcount(key(number).url) for number in (1, 2)] == [1, 1]
    with Actor(directory) as other:
        other.call("put", chunk=1)
        assert cache.refcount(key(1).url) == 2
    assert cache.refcount(key(1).url) == 1
    assert isinstance(cache.acquire(key(1), hard=True), Ready)
    cache.release(key(1), hard=False)
    assert cache.refcount(key(1).url) == 1


def test_a_fast_reader_evicts_what_was_not_declared_first(directory: Path, cache: Cache) -> None:
    """C1: the slow one has not come to chunk 0 yet; it is older than chunk 1, and stays all the same."""
    cache.declare([key(0)])
    with Actor(directory) as fast:
        for number in (0, 1, 2):
            fast.call("put", chunk=number, size=400, lease=False)
    assert isinstance(cache.acquire(key(0), hard=True), Ready)
    assert cache.meta(key(1)) is None


def test_a_declared_chunk_gives_way_to_a_reader_that_has_no_other_room(directory: Path, cache: Cache) -> None:
    """Declaring cannot stop anybody: what has to go goes, and is fetched again."""
    cache.declare([key(0)])
    with Actor(directory) as other:
        other.call("put", chunk=0, size=900, lease=False)
        other.call("put", chunk=1, size=900)
        assert cache.refcount(key(0).url) == 1
    put(cache, 0, 900, hard=True)
    assert Path(cache.acquire(key(0), hard=True).path).read_bytes() == body(0, 900)[:900]  # type: ignore[union-attr]


def test_the_declarations_of_a_killed_process_do_not_count(directory: Path, cache: Cache) -> None:
    """E8: nobody is left who would take them back."""
    with Actor(directory) as other:
        other.call("lease_ahead", chunks=[1, 2, 3])
        assert cache.info().leases == 3
        other.kill()
        assert until(lambda: cache.info().leases == 0, "the leases of the dead")
        assert cache.refcount(key(1).url) == 0


def test_declarations_survive_a_ledger_that_is_lost(directory: Path, cache: Cache) -> None:
    cache.declare([key(1)])
    for file in directory.glob("ledger.sqlite*"):
        file.unlink()
    put(cache, 2)
    assert cache.refcount(key(1).url) == 1
