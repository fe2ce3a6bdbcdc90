"""Fork: no connection, lock or lease crosses it, and a dead parent is seen although its child lives."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from servers.cache_actor import Actor, key, put

from forebay._cache import Busy, Cache, Flight, FlightLostError, Ready


def in_child(work: Callable[[], object]) -> None:
    """Run ``work`` in a forked child and fail where it fails."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            signal.alarm(90)
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_child_is_a_holder_of_its_own(cache: Cache) -> None:
    """J1, J6: the parent's leases are the parent's; the child's are gone with the child."""
    put(cache, 1)

    def child() -> None:
        assert cache.refcount(key(1).url) == 1
        assert isinstance(cache.acquire(key(1), hard=True), Ready)
        assert cache.refcount(key(1).url) == 2
        assert cache.info().holders == 2

    in_child(child)
    assert cache.refcount(key(1).url) == 1
    cache.release(key(1), hard=True)
    assert cache.refcount(key(1).url) == 0


def test_a_child_can_neither_end_nor_use_the_parents_flight(cache: Cache) -> None:
    flight = cache.acquire(key(1), hard=True)
    assert isinstance(flight, Flight)
    assert flight.reserve(100)
    flight.temp.write_bytes(b"x" * 100)

    def child() -> None:
        flight.abort()
        with pytest.raises(FlightLostError, match="forked"):
            flight.publish(bytes=100, digest="xxh3-64:0")
        cache.release(key(1), hard=True)
        assert isinstance(cache.acquire(key(1), hard=True), Busy)

    in_child(child)
    assert flight.temp.exists()
    assert cache.refcount(key(1).url) == 1
    flight.publish(bytes=100, digest="xxh3-64:0")


def test_a_dead_parent_is_seen_while_its_child_lives(directory: Path, cache: Cache) -> None:
    """The child's copy of the lock's descriptor would keep the lock: it is closed at once."""
    with Actor(directory) as parent:
        parent.call("put", chunk=1)
        child = parent.call("fork")
        try:
            assert cache.refcount(key(1).url) == 1
            parent.kill()
            assert cache.refcount(key(1).url) == 0
            assert cache.info().holders == 1
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


def test_no_write_is_lost_on_either_side_of_a_fork(cache: Cache) -> None:
    """Measured with a connection open at the fork: parent and child lose each other's writes."""
    for number in range(4):
        put(cache, number, lease=False)

    def child() -> None:
        for turn in range(50):
            assert isinstance(cache.acquire(key(turn % 4), hard=True), Ready)
        assert cache.refcount(key(0).url) >= 13

    for _ in range(3):
        cache.acquire(key(0), hard=True)
        in_child(child)
        cache.acquire(key(1), hard=True)
    assert [cache.refcount(key(number).url) for number in range(4)] == [3, 3, 0, 0]
    assert cache.verify() == []


def test_the_connection_is_closed_before_a_fork(cache: Cache, directory: Path) -> None:
    """The cure itself: no descriptor of the ledger and none of the holder's lock is open in a child."""
    put(cache, 1)

    def child() -> None:
        open_files = {os.readlink(f"/proc/self/fd/{name}") for name in _descriptors()}
        assert not [name for name in open_files if name.startswith(str(directory))]

    if Path("/proc/self/fd").is_dir():
        in_child(child)
    assert isinstance(cache.acquire(key(1), hard=True), Ready)


def _descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        found.append(name)
    return found


@pytest.mark.slow
def test_fifty_forks_while_threads_use_the_cache(cache: Cache) -> None:
    """J4, J6: a fork waits for the transaction of another thread, and the child finds every lock free."""
    for number in range(4):
        put(cache, number, lease=False)
    stop, turns = threading.Event(), [0, 0, 0]

    def work(seed: int) -> None:
        while not stop.is_set():
            assert isinstance(cache.acquire(key(seed), hard=True), Ready)
            cache.release(key(seed), hard=True)
            turns[seed] += 1

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            in_child(lambda: isinstance(cache.acquire(key(3), hard=True), Ready) or os._exit(2))
    finally:
        stop.set()
        for thread in threads:
            thread.join(90)
    assert all(turns)
    assert cache.info().leases == 0
    assert cache.info().holders == 1


def test_closing_the_ledgers_file_elsewhere_would_drop_its_locks_so_nothing_here_opens_it(
    cache: Cache, directory: Path
) -> None:
    """Every call of ours leaves an open write transaction of this process intact, as another process sees it."""
    put(cache, 1)
    blocker = sqlite3.connect(directory / "ledger.sqlite", isolation_level=None)
    try:
        cache.info()
        blocker.execute("BEGIN IMMEDIATE")
        cache.verify()
        cache.describe()
        cache.version()
        assert _asked_from_outside(directory) == "locked"
        blocker.execute("ROLLBACK")
    finally:
        blocker.close()


def _asked_from_outside(directory: Path) -> str:
    code = (
        "import sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)\n"
        "try: c.execute('BEGIN IMMEDIATE'); print('free')\n"
        "except sqlite3.OperationalError: print('locked')\n"
    )
    command = [sys.executable, "-c", code, str(directory / "ledger.sqlite")]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=90).stdout.strip()
