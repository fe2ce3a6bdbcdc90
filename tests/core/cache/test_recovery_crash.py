"""Whatever a dead run, a vandal or a full disk left: the next use goes on, and no wrong byte is served."""

from __future__ import annotations

import os
import random
import resource
import shutil
import threading
from pathlib import Path

import pytest
from servers.cache_actor import Actor, ActorError, body, bytes_below, key, put, until, write

from forebay._cache import Busy, Cache, Flight, Ready, open_cache
from forebay._cache._layout import Layout
from forebay.exceptions import CacheError

pytestmark = pytest.mark.slow


def test_twenty_kills_at_random_moments_leave_a_cache_that_works(directory: Path, cache: Cache) -> None:
    """E7: kill -9 anywhere; no lease, reservation or temporary survives it, and nothing has to be waited for."""
    rng = random.Random(7)
    for turn in range(20):
        with Actor(directory) as victim:
            for step in range(rng.randrange(1, 6)):
                number = turn * 10 + step
                victim.call("acquire", chunk=number, hard=rng.random() < 0.5)
                if victim.call("reserve", chunk=number, total=150) and rng.random() < 0.7:
                    victim.call("write", chunk=number, size=150)
                    if rng.random() < 0.6:
                        victim.call("publish", chunk=number, size=150)
            victim.send("put", chunk=turn * 10 + 9, size=150)
            threading.Event().wait(rng.random() * 0.01)
            victim.kill()
        info = cache.info()
        assert (info.leases, info.holders) == (0, 1)
        assert info.bytes == bytes_below(directory) <= 1000
    assert cache.verify() == []
    assert list((directory / "chunks").rglob("*.tmp")) == []
    flight = cache.acquire(key(1000), hard=True)
    assert isinstance(flight, Flight)
    assert flight.reserve(1000)
    flight.abort()


def test_a_process_killed_while_it_evicts_leaves_no_bytes_counted(directory: Path, cache: Cache) -> None:
    """C14: the file is gone, and nobody said so; whoever lives finds out, without waiting for the next run."""
    put(cache, 1, 600, lease=False)
    with Actor(directory) as victim:
        victim.call("acquire", chunk=2)
        with pytest.raises(ActorError, match="Died"):
            victim.call("evict_and_die", chunk=2, total=600)
    assert bytes_below(directory) == 0
    info = cache.info()
    assert (info.bytes, info.chunks, info.leases) == (0, 0, 0)
    assert cache.verify() == []


@pytest.mark.parametrize("harm", ["removed", "cut", "longer", "link", "folder gone"])
def test_a_ready_chunk_whose_file_is_harmed_is_fetched_again(
    directory: Path, cache: Cache, tmp_path: Path, harm: str
) -> None:
    """B9, C5, C7, C12: a name that is not what was published there is an absent chunk, and a link's target is safe."""
    path, canary = put(cache, 1, lease=False).path, tmp_path / "canary"
    canary.write_bytes(b"c" * 100)
    if harm == "removed":
        path.unlink()
    elif harm == "cut":
        os.truncate(path, 50)
    elif harm == "longer":
        path.write_bytes(b"x" * 101)
    elif harm == "link":
        path.unlink()
        path.symlink_to(canary)
    else:
        shutil.rmtree(path.parent)
    flight = cache.acquire(key(1), hard=True)
    assert isinstance(flight, Flight)
    assert cache.info().bytes == 0
    assert not os.path.lexists(path)
    assert flight.reserve(1000)
    ready = flight.publish(bytes=100, digest=write(flight, 1, 100))
    assert ready.path.read_bytes() == body(1, 100)[:100]
    assert canary.read_bytes() == b"c" * 100


def test_the_directory_may_be_removed_while_it_is_used(directory: Path, cache: Cache) -> None:
    """C5: it is made again; leases that we still hold are declared again, so that they cannot be lost."""
    put(cache, 1)
    waiting = cache.acquire(key(2), hard=True)
    assert isinstance(waiting, Flight)
    shutil.rmtree(directory)
    flight = cache.acquire(key(3), hard=True)
    assert isinstance(flight, Flight)
    assert flight.reserve(100)
    flight.publish(bytes=100, digest=write(flight, 3, 100))
    waiting.abort()
    assert cache.refcount(key(1).url) == cache.refcount(key(3).url) == 1
    assert isinstance(cache.poll(key(1), hard=True), Flight)
    for number in (1, 3):
        cache.release(key(number), hard=True)
    assert cache.info().holders == 1
    assert cache.info().leases == 0


def test_files_of_its_own_that_a_dead_process_did_not_finish_go_at_once(directory: Path) -> None:
    """Risk E8: with the next use, and not with one in ten minutes; what others put there stays."""
    open_cache(directory, max_bytes=1000).close()
    left = [directory / f"{name}.{'0' * 16}.tmp" for name in ("BUDGET", "FORMAT")]
    left.append(directory / "ledger.damaged.0a1b2c3d")
    other = directory / "mine.tmp"
    for path in (*left, other):
        path.write_bytes(b"x")
    open_cache(directory, max_bytes=None).close()
    assert not [path for path in left if path.exists()]
    assert other.exists()


def test_who_makes_a_directory_and_who_sweeps_it_do_not_disturb_each_other(directory: Path) -> None:
    """Risk E6: a file that is being written looks like one that a dead process left."""
    layout, over = Layout(directory), threading.Event()
    layout.prepare(private=False)

    def sweep() -> None:
        while not over.is_set():
            layout.sweep_births()

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for budget in range(1, 3000):
            layout.record_budget(budget)
            assert layout.recorded_budget() == budget
    finally:
        over.set()
        sweeper.join()


def test_a_holder_whose_lock_file_was_removed_registers_again(directory: Path, cache: Cache) -> None:
    """E1: somebody who tidies up makes a living process look dead; it keeps its leases all the same."""
    put(cache, 1)
    for path in (directory / "holders").iterdir():
        path.unlink()
    with Actor(directory) as other:
        assert other.call("info")["holders"] == 1
        put(cache, 2)
        assert other.call("info")["holders"] == 2
        assert cache.refcount(key(1).url) == 1
        other.call("acquire", chunk=3)
        assert not other.call("reserve", chunk=3, total=900)


def test_leftovers_of_ours_go_and_strangers_stay(directory: Path, cache: Cache, tmp_path: Path) -> None:
    """B19, C6, C7, C9, D9, E8: what has a name of ours is ours; everything else is neither followed nor deleted."""
    ready = put(cache, 1, lease=False)
    cache.close()
    folder, canary = ready.path.parent, tmp_path / "originals"
    canary.mkdir()
    (canary / "data.bin").write_bytes(b"original")
    strangers = [
        folder / "chunk.bin.ABCD1234",
        folder / f"{'0' * 32}.tmp.4711",
        directory / "chunks" / "da7a.cnt",
        directory / "chunks" / "NOTOURS" / "data.bin",
        directory / "holders" / "README",
    ]
    for path in strangers:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"3")
    links = [folder / f"{'1' * 32}.bin", folder / f"{'2' * 32}.{'3' * 16}.tmp", directory / "chunks" / "11ff"]
    for link in links:
        link.symlink_to(canary / "data.bin" if link.parent == folder else canary)
    ours = [folder / f"{'4' * 32}.{'5' * 16}.tmp", directory / "holders" / f"{'6' * 32}.lock"]
    for path in ours:
        path.write_bytes(b"left by the dead")
    again = open_cache(directory, max_bytes=1000)
    again.clear()
    again.gc()
    again.close()
    assert all(path.exists() for path in strangers)
    assert all(link.is_symlink() for link in links)
    assert (canary / "data.bin").read_bytes() == b"original"
    assert not any(path.exists() for path in (*ours, ready.path))


def test_verify_finds_what_is_wrong_and_changes_nothing(directory: Path, cache: Cache) -> None:
    paths = {number: put(cache, number, lease=False).path for number in range(4)}
    assert cache.verify() == []
    flipped = bytearray(paths[0].read_bytes())
    flipped[50] ^= 1
    paths[0].write_bytes(flipped)
    os.truncate(paths[1], 99)
    paths[2].unlink()
    (paths[3].parent / f"{'4' * 32}.{'5' * 16}.tmp").write_bytes(b"t")
    (paths[3].parent / "strange").write_bytes(b"s")
    problems = cache.verify()
    assert sorted(problem.kind for problem in problems) == ["digest", "missing", "size", "temporary", "unknown"]
    assert str(problems[0]).startswith(f"{problems[0].kind}: chunks/da7a/")
    assert problems == cache.verify()


def test_clear_refuses_what_is_in_use(directory: Path, cache: Cache) -> None:
    put(cache, 1, lease=False)
    cache.index_path("an index").write_text("{}")
    with Actor(directory) as other:
        other.call("put", chunk=2)
        with pytest.raises(CacheError, match=rf"1 chunks are in use.*process {other.pid}"):
            cache.clear()
        assert cache.info().chunks == 1
        other.kill()
        cache.clear()
    assert bytes_below(directory) == cache.info().chunks == 0
    assert list((directory / "chunks").iterdir()) == list((directory / "indexes").iterdir()) == []
    put(cache, 1)


def test_a_full_disk_fails_clearly_and_abort_gives_everything_back(directory: Path) -> None:
    """B16, D6: the temporary and the reservation go although the ledger cannot grow; then all continues."""
    with Actor(directory, max_bytes=1 << 20) as other:
        other.call("acquire", chunk=1)
        other.call("reserve", chunk=1, total=1 << 19)
        # A limit on the size of files is what a process may have of a full disk: the ledger's log cannot grow.
        hard = resource.prlimit(other.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(other.pid, resource.RLIMIT_FSIZE, (1000, hard))
        with pytest.raises(ActorError):
            other.call("write", chunk=1, size=1 << 19)
        other.call("abort", chunk=1)
        assert bytes_below(directory) == 0
        resource.prlimit(other.pid, resource.RLIMIT_FSIZE, (hard, hard))
        other.call("put", chunk=2, size=1 << 20)
        assert other.call("info")["leases"] == 1


def test_wake_up_in_another_process_is_prompt(directory: Path, cache: Cache) -> None:
    """Waiters see a publish, and room, within their poll: nobody waits for a time-out."""
    delays = []
    with Actor(directory) as other:
        for number in range(10):
            flight = cache.acquire(key(number), hard=True)
            assert isinstance(flight, Flight)
            assert flight.reserve(100)
            digest = write(flight, number, 100)
            assert other.call("acquire", chunk=number) == "Busy"
            other.send("poll_until", chunk=number, wanted="Ready")
            ready = flight.publish(bytes=100, digest=digest)
            delays.append(other.answer() - ready.path.stat().st_ctime)
            other.call("release", chunk=number)
    assert sorted(delays)[5] < 2, "most of them: two busy cores may hold one back"


def test_a_half_made_directory_is_finished(directory: Path) -> None:
    """The process that made it died early."""
    directory.mkdir()
    (directory / f"FORMAT.{'0' * 16}.tmp").write_bytes(b"fore")
    cache = open_cache(directory, max_bytes=1000)
    put(cache, 1)
    cache.close()


def test_many_processes_may_open_a_new_directory_at_once(directory: Path) -> None:
    """E6: the folders, the ledger and its tables are made once, whoever comes first."""
    actors: list[Actor] = []
    threads = [threading.Thread(target=lambda: actors.append(Actor(directory, max_bytes=5000))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    try:
        assert len(actors) == 6
        assert actors[0].call("info")["holders"] == 6
        for number, actor in enumerate(actors):
            actor.call("put", chunk=number)
        assert actors[0].call("info")["chunks"] == 6
    finally:
        for actor in actors:
            actor.kill()


def test_a_lease_taken_while_the_chunk_goes_is_never_on_a_missing_file(directory: Path, cache: Cache) -> None:
    """C1, C12: Ready means that the file is there and stays, whoever evicts at that moment."""
    stop = threading.Event()

    def evict() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            flight = cache.acquire(key(100 + number % 5), hard=True)
            if isinstance(flight, Flight):
                if flight.reserve(900):
                    flight.publish(bytes=900, digest=write(flight, number, 900))
                    cache.release(key(100 + number % 5), hard=True)
                else:
                    flight.abort()
            else:
                cache.release(key(100 + number % 5), hard=True)

    thread = threading.Thread(target=evict)
    thread.start()
    hits = 0
    try:
        with Actor(directory) as other:
            for _ in range(150):
                outcome = other.call("acquire", chunk=1)
                if outcome == "Flight":
                    if other.call("reserve", chunk=1, total=300):
                        other.call("write", chunk=1, size=300)
                        other.call("publish", chunk=1, size=300)
                    else:
                        other.call("abort", chunk=1)
                        continue
                hits += 1
                assert len(other.call("read", chunk=1)["data"]) == 300
                other.call("release", chunk=1)
                other.call("release", chunk=1)
    finally:
        stop.set()
        thread.join(60)
    assert hits
    assert isinstance(cache.acquire(key(1), hard=True), Ready | Flight | Busy)
    until(lambda: cache.verify() == [], "a sound cache")
