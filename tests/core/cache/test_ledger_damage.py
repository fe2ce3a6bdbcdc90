"""A ledger that broke, was cut, removed or stays locked: rebuilt from the directory, and the budget outlives it."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import threading
from pathlib import Path

import pytest
from servers.cache_actor import Actor, key, put

from forebay._cache import Cache, Ready, open_cache


def _harm(ledger: Path, harm: str) -> None:
    data = bytearray(ledger.read_bytes())
    if harm == "garbage":
        data[:] = os.urandom(len(data))
    elif harm == "page":  # the header stays, every table is broken
        data[200:] = b"\xff" * (len(data) - 200)
    elif harm == "empty":
        data.clear()
    ledger.unlink()
    if harm != "removed":
        ledger.write_bytes(data)


@pytest.mark.parametrize("harm", ["garbage", "page", "empty", "removed"])
def test_a_damaged_ledger_is_rebuilt_from_the_directory(directory: Path, cache: Cache, harm: str) -> None:
    """Nothing is lost but the digests: chunks are found, unverified, and the budget holds."""
    for number in range(4):
        put(cache, number, 200, lease=False)
    cache.close()
    _harm(directory / "ledger.sqlite", harm)
    again = open_cache(directory, max_bytes=1000)
    try:
        assert again.info().chunks == 4
        assert again.info().bytes == 800
        ready = again.acquire(key(1), hard=True)
        assert isinstance(ready, Ready)
        assert ready.digest is None
        assert not ready.trusted
        assert again.refcount(key(1).url) == 1
        assert again.verify() == []
    finally:
        again.close()


@pytest.mark.parametrize("harm", ["garbage", "page", "empty", "removed"])
def test_the_budget_outlives_the_ledger(directory: Path, cache: Cache, harm: str) -> None:
    """Risk D8, D1: who names no budget gets the recorded one, not most of the disk, whatever became of the ledger."""
    for number in range(4):
        put(cache, number, 200, lease=False)
    cache.close()
    open_cache(directory, max_bytes=900).close()
    for number in (7, 8):
        _harm(directory / "ledger.sqlite", harm)
        again = open_cache(directory, max_bytes=None)
        try:
            assert again.max_bytes == 900
            assert again.info().bytes == 800
            put(again, number, 200, lease=False)
            assert again.info().bytes == 800
        finally:
            again.close()
    assert (directory / "BUDGET").read_text() == "900\n"


def test_a_living_run_without_a_budget_keeps_the_recorded_one_when_the_ledger_breaks(directory: Path) -> None:
    """Risk D8: it registers again in the new ledger, and must not bring a budget of its own along."""
    open_cache(directory, max_bytes=1000).close()
    cache = open_cache(directory, max_bytes=None)
    try:
        put(cache, 1)
        for name in ("ledger.sqlite-wal", "ledger.sqlite-shm", "ledger.sqlite"):
            (directory / name).unlink(missing_ok=True)
        (directory / "ledger.sqlite").write_bytes(b"not a database" * 400)
        assert isinstance(cache.acquire(key(1), hard=False), Ready)
        assert cache.max_bytes == 1000
    finally:
        cache.close()


@pytest.mark.parametrize("text", [b"", b"-5\n", b"0\n", b"many\n", b"\xff" * 50])
def test_a_damaged_budget_file_is_none(directory: Path, text: bytes) -> None:
    """A power cut may leave any bytes there; then the disk's free space decides, as in a new directory."""
    open_cache(directory, max_bytes=1000).close()
    (directory / "ledger.sqlite").unlink()
    (directory / "BUDGET").write_bytes(text)
    again = open_cache(directory, max_bytes=None)
    try:
        assert again.max_bytes > 1000
    finally:
        again.close()


def test_a_ledger_that_breaks_under_two_processes_is_rebuilt_once_and_leases_return(
    directory: Path, cache: Cache
) -> None:
    put(cache, 1)
    with Actor(directory) as other:
        other.call("acquire", chunk=1)
        # What a disk or a person does, behind SQLite's back.
        for name in ("ledger.sqlite-wal", "ledger.sqlite-shm", "ledger.sqlite"):
            (directory / name).unlink(missing_ok=True)
        (directory / "ledger.sqlite").write_bytes(b"not a database" * 400)
        assert isinstance(cache.acquire(key(1), hard=False), Ready)
        assert other.call("acquire", chunk=1) == "Ready"
        assert cache.refcount(key(1).url) == 4
        cache.release(key(1), hard=True)
        cache.release(key(1), hard=False)
        other.call("release", chunk=1)
        assert cache.refcount(key(1).url) == 1
        assert cache.info().holders == 2


@pytest.mark.parametrize("left", [0.0, 0.5])
@pytest.mark.parametrize("first", ["look", "change"])
def test_a_log_cut_short_under_two_processes_is_a_damaged_ledger(
    directory: Path, cache: Cache, left: float, first: str
) -> None:
    """Issue 4, item 6: SQLite calls it an I/O error, ends the transaction by itself."""
    put(cache, 1)
    with Actor(directory) as other:
        other.call("put", chunk=2)
        log = directory / "ledger.sqlite-wal"
        os.truncate(log, int(log.stat().st_size * left))
        if first == "look":
            assert cache.info().chunks == 2
        put(cache, 3)
        assert other.call("acquire", chunk=1) == "Ready"
        assert cache.refcount(key(1).url) == 2
        assert cache.info().holders == 2
        assert cache.verify() == []


def test_a_child_forked_during_a_repair_does_not_keep_the_next_one_out(directory: Path, cache: Cache) -> None:
    """Risk J1: the child has a copy of the descriptor that holds the lock, for as long as it lives."""
    children: list[int] = []

    class Forks(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "it is rebuilt" in record.getMessage() and not children:
                pid = os.fork()
                if not pid:
                    signal.pause()
                children.append(pid)

    forks = Forks()
    logging.getLogger("forebay").addHandler(forks)
    cache.member.ledger.timeout = 2.0  # type: ignore[attr-defined]
    try:
        for number in (1, 2):
            for name in ("ledger.sqlite-wal", "ledger.sqlite-shm", "ledger.sqlite"):
                (directory / name).unlink(missing_ok=True)
            (directory / "ledger.sqlite").write_bytes(b"not a database" * 400)
            put(cache, number)
            assert len(children) == 1
    finally:
        logging.getLogger("forebay").removeHandler(forks)
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_a_ledger_locked_for_a_while_is_waited_for_and_for_ever_is_an_error(directory: Path, cache: Cache) -> None:
    """Every wait has a deadline; a lease that could not be written down is given back with the next change."""
    put(cache, 1)
    cache.member.ledger.timeout = 2.0  # type: ignore[attr-defined]
    blocker = sqlite3.connect(directory / "ledger.sqlite", isolation_level=None, check_same_thread=False)
    try:
        blocker.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.1, blocker.execute, ("ROLLBACK",))
        timer.start()
        assert isinstance(cache.acquire(key(1), hard=True), Ready)
        timer.join()
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(TimeoutError, match="stayed locked"):
            cache.acquire(key(1), hard=True)
        cache.release(key(1), hard=True)
        blocker.execute("ROLLBACK")
    finally:
        blocker.close()
    assert isinstance(cache.acquire(key(1), hard=True), Ready)
    assert cache.refcount(key(1).url) == 2
