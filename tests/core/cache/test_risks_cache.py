"""Risks of a cache directory that many processes write: what cannot be removed, what piles up, what moves meanwhile."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from servers.cache_actor import Actor, bytes_below, key, put, until, write

from forebay._cache import Cache, Flight, Ready, open_cache
from forebay._cache._holders import HolderLock, claim_if_dead, sweep_unlisted
from forebay._cache._platform import probe_locking, refuse_platform
from forebay.exceptions import CacheError


def test_a_file_that_cannot_be_removed_now_costs_its_room_and_nothing_else(
    directory: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Risk F7, C14: another chunk goes instead, the stubborn one stays counted, and goes once it can."""
    stubborn = put(cache, 1, 400, lease=False).path
    other = put(cache, 2, 400, lease=False).path
    unlink, refuse = os.unlink, True

    def fails(path: object, **given: object) -> None:
        if refuse and str(path) == str(stubborn):
            raise PermissionError(13, "somebody scans it for viruses", str(path))
        unlink(path, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "unlink", fails)
    flight = cache.acquire(key(3), hard=True)
    assert isinstance(flight, Flight)
    while not flight.reserve(400):
        assert cache.info().bytes == 800, "nothing was given out that is not free"
    assert stubborn.exists()
    assert not other.exists()
    assert cache.info().bytes == 800
    refuse = False
    assert flight.reserve(800)
    assert not stubborn.exists()
    flight.abort()
    assert cache.info().bytes == bytes_below(directory) == 0


def test_lock_files_of_many_runs_do_not_pile_up(directory: Path) -> None:
    """Risk E9, E2: a run that ends takes its own with it, the next one takes those of the killed."""
    for number in range(20):
        one = open_cache(directory, max_bytes=1000)
        put(one, number, lease=False)
        one.close()
        assert list((directory / "holders").iterdir()) == []
    for _ in range(3):
        with Actor(directory) as victim:
            victim.call("acquire", chunk=99)
            victim.kill()
    last = open_cache(directory, max_bytes=1000)
    try:
        assert last.info().holders == 1
        assert len(list((directory / "holders").iterdir())) == 1
        assert sorted(path.name.split(".")[0] for path in directory.iterdir()) == [
            "BUDGET", "FORMAT", "chunks", "holders", "indexes", *["ledger"] * len(list(directory.glob("ledger*"))),
        ]  # fmt: skip
    finally:
        last.close()


@pytest.mark.parametrize("left", ["ledger.sqlite-shm", "ledger.sqlite-wal", "both"])
def test_shared_memory_of_a_dead_run_stops_nobody(directory: Path, left: str) -> None:
    """Risk E11: the ledger's shared memory is made anew by the first of the next run, whatever lies there."""
    cache = open_cache(directory, max_bytes=1000)
    put(cache, 1)
    cache.close()
    for name in ("ledger.sqlite-shm", "ledger.sqlite-wal") if left == "both" else (left,):
        (directory / name).write_bytes(os.urandom(32768))
    with Actor(directory) as one, Actor(directory) as other:
        for number, actor in enumerate((one, other)):
            assert actor.call("acquire", chunk=1) == "Ready"
            assert actor.call("acquire", chunk=2 + number) == "Flight"
        assert other.call("info")["holders"] == 2


def test_a_probe_whose_process_was_killed_goes_with_the_next_use(directory: Path, cache: Cache) -> None:
    """Issue 4, item 6: who opens a cache tries out a lock, and killed there leaves its file; the campaign met that."""
    left = directory / "holders" / "probe.0123456789abcdef"
    left.write_bytes(b"")
    cache.gc()
    assert not left.exists()


def test_who_opens_a_cache_and_who_sweeps_do_not_disturb_each_other(directory: Path, cache: Cache) -> None:
    """Risk E5: a probe is the sweeper's until it is locked; then its owner makes another."""
    stop, folder = threading.Event(), directory / "holders"

    def sweep() -> None:
        while not stop.is_set():
            sweep_unlisted(folder, {path.stem for path in folder.glob("*.lock")})

    sweepers = [threading.Thread(target=sweep) for _ in range(3)]
    for sweeper in sweepers:
        sweeper.start()
    try:
        for _ in range(500):
            probe_locking(folder)
    finally:
        stop.set()
        for sweeper in sweepers:
            sweeper.join()
    assert not list(folder.glob("probe.*"))


def test_a_lock_file_of_nobody_is_waited_for_by_nobody(directory: Path) -> None:
    """Risk E5: who lives is asked of the kernel, not of a file's being there; what nobody holds goes at once."""
    open_cache(directory, max_bytes=1000).close()
    stale = directory / "holders" / f"{'0' * 32}.lock"
    stale.write_text("")
    one = open_cache(directory, max_bytes=1000)
    try:
        assert not stale.exists()
        put(one, 1)
        assert one.info().holders == 1
    finally:
        one.close()


def test_looking_through_the_directory_while_chunks_get_their_names_finds_no_fault(
    directory: Path, cache: Cache
) -> None:
    """Risk C15, C12: a temporary that becomes a chunk, or a chunk that is evicted, between listing and looking."""
    stop, failures = threading.Event(), []

    def fill() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                put(cache, number, 100, lease=False)
            except BaseException as error:  # noqa: BLE001 - the main thread shows it
                failures.append(error)
                return

    writer = threading.Thread(target=fill)
    writer.start()
    try:
        for _ in range(40):
            cache.gc()
            assert cache.verify() == []
            assert cache.info().bytes <= 1000
    finally:
        stop.set()
        writer.join()
    assert failures == []
    assert cache.info().bytes == bytes_below(directory)


def test_a_chunk_that_is_being_evicted_is_not_missing(directory: Path, cache: Cache) -> None:
    """Issue 4, item 8: its file is gone, and the ledger does not say so yet; the crash campaign met that."""
    path = put(cache, 1, 600, lease=False).path
    with Actor(directory) as other:
        assert other.call("acquire", chunk=2) == "Flight"
        other.send("evict_slowly", chunk=2, total=600, seconds=1.0)
        until(lambda: not path.exists(), "the eviction")
        assert cache.verify() == []
        other.answer()


def test_a_thousand_tiny_chunks_are_a_thousand_bytes(directory: Path, cache: Cache) -> None:
    """Risk D4, D8: the budget is of the files' sizes, not of disk blocks, and the numbers that people see agree."""
    for number in range(200):
        put(cache, number, 5, lease=False)
    assert (cache.info().chunks, cache.info().bytes, bytes_below(directory)) == (200, 1000, 1000)
    put(cache, 200, 5, lease=False)
    assert (cache.info().chunks, bytes_below(directory), cache.evictions) == (200, 1000, 1)


def test_an_empty_ledger_is_rebuilt_from_the_chunks(directory: Path) -> None:
    """Risk E10: what a crash left of the count is one rule for everybody: count anew from what is there."""
    one = open_cache(directory, max_bytes=1000)
    put(one, 1, lease=False)
    one.close()
    for file in directory.glob("ledger.sqlite*"):
        file.unlink()
    (directory / "ledger.sqlite").write_bytes(b"")
    again = open_cache(directory, max_bytes=1000)
    try:
        found = again.acquire(key(1), hard=True)
        assert isinstance(found, Ready)
        assert not found.trusted
        assert (again.info().leases, again.info().bytes) == (1, 100)
        again.release(key(1), hard=True)
        assert again.info().leases == 0
    finally:
        again.close()


def test_a_forced_fetch_while_others_hold_the_chunk_ends(directory: Path, cache: Cache) -> None:
    """Risk C3: two holders of a damaged chunk in other processes; it is fetched anew at once; their leases stay."""
    put(cache, 1)
    with Actor(directory) as first, Actor(directory) as second:
        for one in (first, second):
            assert one.call("acquire", chunk=1) == "Ready"
        cache.discard(key(1))
        flight = cache.poll(key(1), hard=True)
        assert isinstance(flight, Flight)
        assert flight.reserve(100)
        assert flight.publish(bytes=100, digest=write(flight, 1, 100)).trusted
        assert cache.refcount(key(1).url) == 3
        for one in (first, second):
            assert one.call("poll", chunk=1) == "Ready"
            one.call("release", chunk=1)
    assert cache.refcount(key(1).url) == 1


def test_windows_is_refused_with_the_ways_out() -> None:
    """Risk T3, E12: files that readers have mapped are deleted and replaced, which Windows would refuse later."""
    with pytest.raises(CacheError, match="WSL"):
        refuse_platform("win32")
    refuse_platform("linux")
    refuse_platform("darwin")


def test_a_lock_file_that_cannot_be_removed_is_unlocked_all_the_same(tmp_path: Path) -> None:
    """Who left with an error kept the lock, and looked alive for as long as its process lived."""
    lock = HolderLock(tmp_path)
    path = tmp_path / f"{lock.token}.lock"
    path.rename(tmp_path / "moved.lock")
    path.mkdir()
    with pytest.raises(OSError, match=path.name):
        lock.close()
    claim = claim_if_dead(tmp_path, "moved")
    assert claim is not None
    os.close(claim)
