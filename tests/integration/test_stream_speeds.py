"""Readers of different speed in room for two chunks: every item, in order, each time, whatever the look-ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from servers.crash_reader import CHUNK_BYTES, ITEMS, Job, Reader, items_of, put_random_dataset
from servers.watcher import Watcher

import forebay
from forebay.exceptions import BudgetTooSmallError
from forebay.testing import Fault, FaultServer

pytestmark = pytest.mark.slow

#: Seconds between two items of the first, second and third reader.
PACES = (0.0, 0.004, 0.001)
BUDGET = 2 * CHUNK_BYTES
DEADLINE = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultServer]:
    with FaultServer() as running:
        put_random_dataset(running, tmp_path, "plain", None)
        put_random_dataset(running, tmp_path, "zstd", "zstd")
        running.script(None, Fault(drip=(4000, 0.001)), times=None)
        yield running


def cleanly_closed(directory: Path) -> None:
    with forebay.ChunkCache(directory) as cache:
        info = cache.info()
        assert (info.leases, info.holders) == (0, 0)
        assert cache.verify() == []
    assert not list(directory.rglob("*.tmp"))


@pytest.mark.parametrize("readers", [2, 3])
@pytest.mark.parametrize("name", ["plain", "zstd"])
def test_processes_of_different_speed_all_read_everything_in_order(
    server: FaultServer, tmp_path: Path, name: str, readers: int
) -> None:
    """Risk C1, C2, A4, A7, A8: the fast one never takes what the slow one needs, and nobody waits for ever."""
    directory = tmp_path / "cache"
    with Watcher(directory) as watcher:
        for prefetch in range(5) if readers == 3 else (0, 1, 4):
            job = Job(
                url=server.url(name),
                cache_dir=str(directory),
                budget=BUDGET,
                expected=name,
                prefetch=prefetch,
                epochs=1,
            )
            running = [Reader(replace(job, pace=pace)) for pace in PACES[:readers]]
            try:
                for reader in running:
                    reader.process.join(DEADLINE)
                told = [reader.said() for reader in running]
                assert all("done" in one for one in told), (prefetch, told)
            finally:
                for reader in running:
                    reader.end()
        assert 0 < watcher.seen().peak <= BUDGET
    cleanly_closed(directory)


@pytest.mark.parametrize("readers", [2, 3])
@pytest.mark.parametrize("name", ["plain", "zstd"])
def test_threads_of_different_speed_all_read_everything_in_order(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, readers: int
) -> None:
    """Risk C1, A7, A8: each thread has a dataset of its own, on one engine."""
    monkeypatch.setenv("FOREBAY_PREFETCH_MIN", "0")
    monkeypatch.setenv("FOREBAY_WAIT_TIMEOUT", "30")
    directory, expected = tmp_path / "cache", items_of(name)
    found: dict[tuple[int, float], object] = {}

    def read(prefetch: int, pace: float) -> None:
        items = []
        with forebay.open_dataset(
            server.url(name), cache_dir=directory, max_cache_bytes=BUDGET, prefetch=prefetch
        ) as ds:
            for item in ds:
                items.append(item)
                if pace:
                    threading.Event().wait(pace)
        found[prefetch, pace] = items == expected

    with Watcher(directory) as watcher:
        for prefetch in range(5):
            threads = [threading.Thread(target=read, args=(prefetch, pace)) for pace in PACES[:readers]]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(DEADLINE)
        assert 0 < watcher.seen().peak <= BUDGET
    assert found == {(prefetch, pace): True for prefetch in range(5) for pace in PACES[:readers]}
    cleanly_closed(directory)


def test_look_aheads_of_different_reach_share_the_room(server: FaultServer, tmp_path: Path) -> None:
    """Each reader has its own look-ahead, its own dataset and its own speed, in room for two chunks."""
    directory = tmp_path / "cache"
    jobs = [
        Job(
            url=server.url(name),
            cache_dir=str(directory),
            budget=BUDGET,
            expected=name,
            prefetch=prefetch,
            pace=pace,
            epochs=2,
            most=ITEMS,
        )
        for name, prefetch, pace in (("plain", 4, 0.001), ("zstd", 0, 0.0), ("plain", 1, 0.002))
    ]
    with Watcher(directory) as watcher:
        running = [Reader(job) for job in jobs]
        try:
            for reader in running:
                reader.process.join(DEADLINE)
            assert all("done" in reader.said() for reader in running)
        finally:
            for reader in running:
                reader.end()
        assert 0 < watcher.seen().peak <= BUDGET
    cleanly_closed(directory)


@dataclass(frozen=True)
class Way:
    """How one of several readers reads; ``chunks`` is its budget, in the largest chunk."""

    chunks: int
    name: str = "plain"
    window: int = 0
    prefetch: int = 2
    pace: float = 0.0
    eviction: str = "clairvoyant"


#: Windows fit together: what all keep while they wait, all but one chunk each, leaves room for one.
MIXTURES = {
    "one chunk": [Way(1, prefetch=4), Way(1, "zstd", window=1, pace=0.001), Way(1, window=1, prefetch=0)],
    "one chunk, by both evictions": [Way(1, window=1, eviction="lru"), Way(1, pace=0.002), Way(1, eviction="lru")],
    "windows that just fit": [Way(4, window=3, prefetch=4), Way(4, "zstd", window=2, pace=0.001, eviction="lru")],
    "windows of all sizes": [Way(7, window=4, prefetch=0), Way(7, window=3), Way(7, "zstd", window=1), Way(7)],
    "all there is": [Way(30, window=8), Way(30, "zstd", window=10, eviction="lru"), Way(30, pace=0.001)],
    "two budgets": [Way(2, pace=0.001), Way(12, window=2, prefetch=4), Way(12, "zstd", window=1, eviction="lru")],
    "one chunk beside a large budget": [Way(1, window=1, pace=0.001), Way(20, "zstd", prefetch=4), Way(20, window=1)],
}


@pytest.mark.parametrize("mixture", MIXTURES)
def test_shuffled_readers_beside_others_all_read_everything(server: FaultServer, tmp_path: Path, mixture: str) -> None:
    """Issue 4, item 3: any budget that holds the largest chunk and the windows makes progress, in any company."""
    directory, ways = tmp_path / "cache", MIXTURES[mixture]
    largest = max(file.stat().st_size for file in (tmp_path / "plain").iterdir())
    with Watcher(directory) as watcher:
        running = [
            Reader(
                Job(
                    url=server.url(way.name),
                    cache_dir=str(directory),
                    budget=way.chunks * largest,
                    expected=way.name,
                    prefetch=way.prefetch,
                    pace=way.pace,
                    window=way.window,
                    eviction=way.eviction,
                )
            )
            for way in ways
        ]
        try:
            for reader in running:
                reader.process.join(DEADLINE)
            told = [reader.said() for reader in running]
            assert all("done" in one and "wrong" not in one for one in told), told
        finally:
            for reader in running:
                reader.end()
        assert 0 < watcher.seen().peak <= max(way.chunks for way in ways) * largest
    cleanly_closed(directory)


def test_one_reader_alone_shuffles_in_the_window_that_just_fits(server: FaultServer, tmp_path: Path) -> None:
    """Issue 4, item 3: each window and its own budget, to the byte; one byte less is refused with what would fit."""
    largest = max(file.stat().st_size for file in (tmp_path / "plain").iterdir())
    for window in (1, 2, 5):
        with forebay.open_dataset(
            server.url("plain"),
            cache_dir=tmp_path / f"cache-{window}",
            max_cache_bytes=window * largest,
            shuffle=True,
            shuffle_window=window,
        ) as ds:
            assert sorted(item["index"] for item in ds) == list(range(ITEMS))
        with pytest.raises(BudgetTooSmallError, match=f"{'largest window' if window > 1 else 'missing'}"):
            forebay.open_dataset(
                server.url("plain"),
                cache_dir=tmp_path / f"cache-{window}",
                max_cache_bytes=window * largest - 1,
                shuffle=True,
                shuffle_window=window,
            )
