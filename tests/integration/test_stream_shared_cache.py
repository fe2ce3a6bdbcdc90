"""Several runs on one directory: different budgets, chunks that they share, and harm while they read."""

from __future__ import annotations

import logging
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from servers.crash_reader import CHUNK_BYTES, ITEMS, PER_CHUNK, Job, Reader, items_of, put_random_dataset
from servers.datasets import expected_items, put_dataset
from servers.ledger import reading, rows
from servers.watcher import Watcher

import forebay
from forebay._url import redact
from forebay.exceptions import ObjectNotFoundError
from forebay.testing import Fault, FaultServer, Gate

DEADLINE = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultServer]:
    with FaultServer() as running:
        put_random_dataset(running, tmp_path, "plain", None)
        put_random_dataset(running, tmp_path, "zstd", "zstd")
        yield running


@pytest.fixture(autouse=True)
def no_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_PREFETCH_MIN", "0")


def test_the_smaller_of_two_budgets_rules_both_runs_and_says_so(
    server: FaultServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Risk D8, F5: while the small run lives, the large one stays below its budget too."""
    small, large = 2 * CHUNK_BYTES, 8 * CHUNK_BYTES
    directory = tmp_path / "cache"
    server.script(None, Fault(drip=(4000, 0.002)), times=None)
    job = Job(url=server.url("zstd"), cache_dir=str(directory), budget=large, expected="zstd", prefetch=4, epochs=2)
    with caplog.at_level(logging.WARNING, "forebay"):
        ds = forebay.open_dataset(server.url("plain"), cache_dir=directory, max_cache_bytes=small)
        with ds, Watcher(directory) as watcher:
            other = Reader(job)
            try:
                while other.process.is_alive():
                    assert list(ds) == items_of("plain")
                other.process.join(DEADLINE)
                assert "done" in other.said()
            finally:
                other.end()
            assert 0 < watcher.seen().peak <= small
            again = forebay.open_dataset(server.url("plain"), cache_dir=directory, max_cache_bytes=large)
            with again, forebay.ChunkCache(directory) as cache:
                assert cache.info().max_bytes == small
    assert "two budgets for the cache" in caplog.text
    assert "in this process" in caplog.text


def chunk_url(server: FaultServer, number: int) -> str:
    return redact(f"{server.url('plain')}/chunk-0-{number}.bin")


def test_a_reader_leases_what_it_shares_before_it_reads(server: FaultServer, tmp_path: Path) -> None:
    """SEED rows 10 and 11, Risk C1: counted before anyone reads, once, and not beyond its reading."""
    directory, chunks = tmp_path / "cache", ITEMS // PER_CHUNK
    with (
        forebay.open_dataset(server.url("plain"), cache_dir=directory, max_cache_bytes=5 * CHUNK_BYTES) as ds,
        forebay.ChunkCache(directory) as cache,
    ):
        mine = ds._source.session(list(range(chunks)), ahead=1, shared={0, 4, 9})
        try:
            assert [cache.refcount(chunk_url(server, n)) for n in (0, 3, 4, 9)] == [1, 0, 1, 1]
            for place in range(chunks):
                mine.take(place)
                assert cache.refcount(chunk_url(server, place)) == 1
                mine.done(place)
                assert cache.refcount(chunk_url(server, place)) == 0
                # Two for a moment while the look-ahead trades the lease; never none.
                assert bool(cache.refcount(chunk_url(server, 9))) == (place < 9)
        finally:
            mine.close()
        left = ds._source.session([1, 2], ahead=0, shared={1, 2})
        assert cache.info().leases == 2
        left.close()
        assert cache.info().leases == 0


def test_a_fast_reader_leaves_what_a_slow_one_declared(server: FaultServer, tmp_path: Path) -> None:
    """Risk C1, C2: the slow one finds the shared chunk there, though others were evicted for want of room."""
    directory = tmp_path / "cache"
    with forebay.open_dataset(server.url("plain"), cache_dir=directory, max_cache_bytes=3 * CHUNK_BYTES) as ds:
        slow = ds._source.session([0], ahead=0, shared={0})
        fast = ds._source.session(list(range(10)), ahead=0)
        for place in range(10):
            fast.take(place)
            fast.done(place)
        fast.close()
        assert ds.stats().evictions > 0
        server.forget_requests()
        slow.take(0)
        slow.close()
        assert server.requests == []


def test_a_fetch_that_fails_while_the_ledger_is_locked_leaves_no_flight(server: FaultServer, tmp_path: Path) -> None:
    """Risk E8: the chunk was to be leased again, that failed, and with it all that was to be given back."""
    directory, gate, caught = tmp_path / "cache", Gate(), []
    server.script("plain/chunk-0-0.bin", Fault(gate=gate, status=404), times=None)
    with forebay.open_dataset(server.url("plain"), cache_dir=directory) as ds:
        ds._source._engine.cache.member.ledger.timeout = 0.5  # type: ignore[attr-defined]
        mine = ds._source.session([0], ahead=0, shared={0})

        def take() -> None:
            try:
                mine.take(0)
            except Exception as exc:  # noqa: BLE001 - whatever the reader got
                caught.append(exc)

        reader = threading.Thread(target=take)
        reader.start()
        server.wait_for_requests(1, key="plain/chunk-0-0.bin")
        with closing(sqlite3.connect(directory / "ledger.sqlite", isolation_level=None)) as blocker:
            blocker.execute("BEGIN IMMEDIATE")
            gate.open()
            reader.join(DEADLINE)
            blocker.execute("ROLLBACK")
        mine.close()
        assert [type(exc) for exc in caught] == [ObjectNotFoundError]
        with forebay.ChunkCache(directory) as cache:
            cache.gc()
            assert cache.info().leases == 0
        assert rows(reading(directory / "ledger.sqlite")).keys() == {"holders"}


@pytest.mark.parametrize("prefetch", [0, 3])
def test_readers_that_declare_everything_still_share_little_room(
    server: FaultServer, tmp_path: Path, prefetch: int
) -> None:
    """Declared chunks give way where they have to: room for two of ten, three readers that declared all ten."""
    chunks, done = ITEMS // PER_CHUNK, []
    ds = forebay.open_dataset(server.url("plain"), cache_dir=tmp_path / "cache", max_cache_bytes=2 * CHUNK_BYTES)

    def read() -> None:
        mine = ds._source.session(list(range(chunks)), ahead=prefetch, shared=set(range(chunks)))
        for place in range(chunks):
            assert mine.take(place).stat().st_size <= CHUNK_BYTES
            mine.done(place)
        mine.close()
        done.append(True)

    with ds:
        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
        assert done == [True] * 3
        with forebay.ChunkCache(tmp_path / "cache") as cache:
            assert cache.info().leases == 0


@pytest.mark.parametrize("harm", ["overwritten", "removed"])
def test_a_ledger_harmed_while_readers_live_is_rebuilt_and_no_reader_notices(
    server: FaultServer, tmp_path: Path, harm: str
) -> None:
    """Risk E7, B9: two processes and this one are among their items when the ledger goes."""
    directory = tmp_path / "cache"
    job = Job(
        url=server.url("zstd"), cache_dir=str(directory), budget=4 * CHUNK_BYTES, expected="zstd", epochs=6, pace=0.001
    )
    readers = [Reader(job), Reader(job)]
    try:
        with forebay.open_dataset(
            server.url("plain"), cache_dir=directory, max_cache_bytes=4 * CHUNK_BYTES, prefetch=2
        ) as ds:
            items = iter(ds)
            found = [next(items) for _ in range(2 * PER_CHUNK)]
            for reader in readers:
                reader.wait_for_word(time.monotonic() + DEADLINE)
            if harm == "removed":
                for file in directory.glob("ledger.sqlite*"):
                    file.unlink()
            else:
                with open(directory / "ledger.sqlite", "r+b") as ledger:
                    ledger.write(b"\xff" * 4096)
                (directory / "ledger.sqlite-wal").unlink(missing_ok=True)
            found += list(items)
            assert found == items_of("plain")
            for reader in readers:
                reader.process.join(DEADLINE)
                told = reader.said()
                assert "done" in told, told
    finally:
        for reader in readers:
            reader.end()
    with forebay.ChunkCache(directory) as cache:
        cache.gc()
        assert (cache.info().leases, cache.info().holders, cache.verify()) == (0, 0, [])


def test_a_dataset_rewritten_under_its_reader_is_never_a_mixture(server: FaultServer, tmp_path: Path) -> None:
    """Risk R1: equal names and sizes, other bytes; the old reader fails rather than mix, the next one reads anew."""
    put_dataset(server, tmp_path / "one", prefix="d/")
    with forebay.open_dataset(server.url("d"), cache_dir=tmp_path / "cache", prefetch=0) as ds:
        items = iter(ds)
        found = [next(items) for _ in range(5)]
        newer = [{"index": 1000 + i, "blob": bytes([i % 7]) * 1000} for i in range(ITEMS)]
        forebay.pack(newer, tmp_path / "two", chunk_bytes=5 * 1040 + 60)
        for file in (tmp_path / "two").iterdir():
            server.put(f"d/{file.name}", file.read_bytes())
        with pytest.raises(forebay.exceptions.IntegrityError):
            found += list(items)
        assert found == expected_items()[: len(found)]
        with forebay.open_dataset(server.url("d"), cache_dir=tmp_path / "cache") as again:
            assert list(again) == newer


def test_bodies_of_unknown_size_never_pass_the_budget(server: FaultServer, tmp_path: Path) -> None:
    """Risk D1: no length anywhere, four at once, room for two; each grows by what it was granted."""
    directory, size, budget = tmp_path / "cache", 300_000, 700_000
    bodies = {f"free/{number}.bin": random.Random(number).randbytes(size) for number in range(4)}
    for name, body in bodies.items():
        server.put(name, body)
    server.script(None, Fault(framing="chunked", ignore_range=True, drip=(20_000, 0.002)), times=None)
    found: dict[str, bool] = {}

    def fetch(name: str) -> None:
        path = forebay.fetch(server.url(name), cache_dir=directory, max_cache_bytes=budget, revalidate=False)
        found[name] = path.read_bytes() == bodies[name]
        forebay.release(path)

    with Watcher(directory) as watcher:
        threads = [threading.Thread(target=fetch, args=(name,)) for name in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
        assert 0 < watcher.seen().peak <= budget
    assert found == dict.fromkeys(bodies, True)
