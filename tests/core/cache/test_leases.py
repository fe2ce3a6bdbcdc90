"""Refcounts: taken at once, given back once, never lost, never left behind by the dead."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from servers.cache_actor import Actor, key, put

from forebay import ChunkCache
from forebay._cache import Busy, Cache, Flight, Ready, open_cache
from forebay._cache._shared import SharedCache
from forebay.exceptions import CacheError, PrefetchClosedError


def count(cache: Cache, number: int) -> int:
    return cache.refcount(key(number).url)


def test_every_outcome_of_acquire_takes_a_lease_at_once(cache: Cache) -> None:
    """C1: a claim is made before the use, not when a reader gets there."""
    flight = cache.acquire(key(1), hard=True)
    assert isinstance(flight, Flight)
    assert count(cache, 1) == 1
    assert isinstance(cache.acquire(key(1), hard=False), Busy)
    assert count(cache, 1) == 2
    flight.abort()
    put(cache, 2)
    assert isinstance(cache.acquire(key(2), hard=True), Ready)
    assert count(cache, 2) == 2


def test_a_leased_chunk_is_not_evicted_for_another_process(directory: Path, cache: Cache) -> None:
    """C1, C2: the fast reader may not delete what the slow one holds."""
    path = put(cache, 1, 600).path
    with Actor(directory) as other:
        assert other.call("acquire", chunk=2) == "Flight"
        assert not other.call("reserve", chunk=2, total=600)
        assert path.exists()
        cache.release(key(1), hard=True)
        assert other.call("reserve", chunk=2, total=600)
        assert not path.exists()


def test_the_lease_of_a_killed_process_does_not_count(directory: Path, cache: Cache) -> None:
    """C3, E7, E8: no count outlives its process, so no chunk becomes immortal."""
    put(cache, 1)
    with Actor(directory) as other:
        assert other.call("acquire", chunk=1) == "Ready"
        assert other.call("acquire", chunk=1, hard=False) == "Ready"
        assert count(cache, 1) == 3
        assert cache.info().holders == 2
        other.kill()
        assert count(cache, 1) == 1
        assert cache.info().holders == 1
        assert len(list((directory / "holders").iterdir())) == 1


def test_an_observer_sees_leases_and_holds_none(directory: Path, cache: Cache) -> None:
    put(cache, 1)
    with Actor(directory) as other:
        assert other.call("acquire", chunk=1) == "Ready"
        with ChunkCache(directory) as observer:
            assert observer.refcount(key(1).url) == 2
            assert observer.info().holders == 2
    cache.close()
    with ChunkCache(directory) as observer:
        assert observer.info().holders == 0
        assert observer.refcount(key(1).url) == 0


def test_a_lease_given_back_twice_is_logged_and_the_count_stays_at_zero(
    cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    """C10: clamp and log; a later lease counts from zero again."""
    put(cache, 1)
    cache.release(key(1), hard=True)
    with caplog.at_level(logging.WARNING, "forebay"):
        cache.release(key(1), hard=True)
        cache.release(key(1), hard=False)
    assert len(caplog.records) == 2
    assert "more often than taken" in caplog.text
    assert count(cache, 1) == 0
    cache.acquire(key(1), hard=True)
    assert count(cache, 1) == 1


def test_soft_and_hard_leases_are_counted_apart(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    put(cache, 1, hard=False)
    with caplog.at_level(logging.WARNING, "forebay"):
        cache.release(key(1), hard=True)
    assert "hard lease" in caplog.text
    assert count(cache, 1) == 1
    assert cache.harden(key(1))
    cache.release(key(1), hard=True)
    assert count(cache, 1) == 0


def test_harden_keeps_a_ready_chunk_from_giving_way(directory: Path, cache: Cache) -> None:
    put(cache, 1, 600, hard=False)
    assert cache.harden(key(1))
    with Actor(directory) as other:
        other.call("acquire", chunk=2)
        assert not other.call("reserve", chunk=2, total=600)
        cache.soften(key(1))
        assert other.call("reserve", chunk=2, total=600)
    assert not cache.harden(key(1))
    assert count(cache, 1) == 0, "a lease on a chunk that is gone must be gone too"


def test_close_gives_everything_back(directory: Path) -> None:
    first, second = open_cache(directory, max_bytes=1000), open_cache(directory, max_bytes=None)
    assert first is second
    put(first, 1)
    pending = first.acquire(key(2), hard=True)
    assert isinstance(pending, Flight)
    assert pending.reserve(500)
    pending.temp.write_bytes(b"x" * 500)
    first.close()
    assert count(first, 1) == 1, "the second user is still there"
    second.close()
    with ChunkCache(directory) as observer:
        assert observer.info().leases == observer.info().holders == 0
        assert observer.info().bytes == 100
        assert observer.verify() == []
    pending.abort()
    first.release(key(1), hard=True)
    assert list((directory / "holders").iterdir()) == []


def test_threads_lose_no_count(cache: Cache) -> None:
    """C14: eight threads on four chunks; every lease is counted, every return too."""
    for number in range(4):
        put(cache, number, lease=False)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for turn in range(60):
                chunk, hard = key((seed + turn) % 4), turn % 2 == 0
                assert isinstance(cache.acquire(chunk, hard=hard), Ready)
                if not hard:
                    assert cache.harden(chunk)
                cache.release(chunk, hard=True)
            cache.acquire(key(seed % 4), hard=True)
        except BaseException as exc:  # noqa: BLE001 - carried to the test's own thread
            errors.append(exc)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert [count(cache, number) for number in range(4)] == [2, 2, 2, 2]


def test_a_run_lasts_as_long_as_somebody_uses_the_directory(directory: Path, cache: Cache) -> None:
    """What an earlier run left is not trusted before it is verified; what this run published is."""
    assert put(cache, 1, lease=False).trusted
    with Actor(directory) as other:
        assert other.call("read", chunk=1)["trusted"]
        cache.close()
        assert other.call("read", chunk=1)["trusted"]
    again = open_cache(directory, max_bytes=None)
    ready = again.acquire(key(1), hard=True)
    assert isinstance(ready, Ready)
    assert not ready.trusted
    again.trust(key(1))
    ready = again.poll(key(1), hard=True)
    assert isinstance(ready, Ready)
    assert ready.trusted
    assert again.meta(key(1)) == {"etag": None, "digest": ready.digest}
    assert again.meta(key(9)) is None


def test_discard_drops_the_file_and_keeps_the_lease(cache: Cache) -> None:
    """B11: what failed its check is fetched again by whoever polls."""
    path = put(cache, 1).path
    cache.discard(key(1))
    assert not path.exists()
    assert cache.info().bytes == 0
    assert count(cache, 1) == 1
    flight = cache.poll(key(1), hard=True)
    assert isinstance(flight, Flight)
    assert count(cache, 1) == 1
    flight.abort()
    assert count(cache, 1) == 0


def test_subscribers_hear_of_changes_and_the_version_moves(directory: Path, cache: Cache) -> None:
    heard = threading.Event()
    unsubscribe = cache.subscribe(heard.set)
    before = cache.version()
    put(cache, 1)
    assert heard.is_set()
    assert cache.version() > before
    unsubscribe()
    heard.clear()
    before = cache.version()
    assert cache.version() == before, "it moved although nothing happened"
    cache.release(key(1), hard=True)
    assert not heard.is_set()
    before = cache.version()
    with Actor(directory) as other:
        other.call("put", chunk=2)
        assert cache.version() > before


def test_a_finalizer_that_runs_inside_a_transaction_loses_no_lease(cache: Cache) -> None:
    """The collector may close a reader at any moment, also while this thread is inside a transaction of its own."""
    put(cache, 1)
    shared = cache
    shared.member.write(lambda connection, trash: cache.release(key(1), hard=True))  # type: ignore[attr-defined]
    cache.gc()
    assert count(cache, 1) == 0


def test_a_cache_that_was_closed_holds_nothing_for_whoever_is_late(directory: Path) -> None:
    """C10: it became a holder again; and a connection that a late call opens would be open at every fork."""
    late = open_cache(directory, max_bytes=1000)
    assert isinstance(late, SharedCache)
    late.close()
    for claim in (
        lambda: late.acquire(key(1), hard=True),
        lambda: late.poll(key(1), hard=True),
        lambda: late.declare([key(1)]),
        lambda: late.claim_window(100, 100),
    ):
        with pytest.raises(PrefetchClosedError, match="closed"):
            claim()
    assert late.info().holders == 0
    assert late.member.ledger._connection is None
    assert not list((directory / "holders").iterdir())


def test_an_acquire_that_fails_leaves_no_lease(cache: Cache) -> None:
    """C10: the lease was taken before the file was seen to be gone, and stayed where that could not be put right."""
    path = put(cache, 1, lease=False).path
    path.unlink()
    path.mkdir()
    for _ in range(2):
        with pytest.raises(CacheError, match="remove it by hand"):
            cache.acquire(key(1), hard=True)
    assert count(cache, 1) == 0


def test_a_waiter_that_cannot_take_over_keeps_its_lease_and_the_others_theirs(directory: Path, cache: Cache) -> None:
    """C10: the flight that could not begin took a lease along; its waiter gave one back once more: another reader's."""
    with Actor(directory) as other:
        other.call("acquire", chunk=1)
        assert isinstance(cache.acquire(key(1), hard=True), Busy)
        assert isinstance(cache.acquire(key(1), hard=True), Busy)
        other.kill()
    folder = directory / "chunks" / key(1).dataset
    folder.rmdir()
    folder.touch()
    with pytest.raises(FileExistsError):
        cache.poll(key(1), hard=True)
    assert count(cache, 1) == 2
    folder.unlink()
    flight = cache.poll(key(1), hard=True)
    assert isinstance(flight, Flight)
    flight.abort()
    assert count(cache, 1) == 1
