"""Readers that stand in each other's way: one thread of several, ranks in step, paths in the user's hands."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from servers.datasets import CHUNKS, ITEMS, expected_items, put_dataset
from servers.readers import read_in_step
from servers.watcher import Watcher

import forebay
from forebay.exceptions import CacheFullError
from forebay.testing import Fault, FaultServer

pytestmark = pytest.mark.slow

PLAIN = 5 * 1040 + 60
DEADLINE = 15.0


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No floor under the look-ahead; and whoever waits for himself is told so within the test's patience."""
    monkeypatch.setenv("FOREBAY_PREFETCH_MIN", "0")
    monkeypatch.setenv("FOREBAY_WAIT_TIMEOUT", str(DEADLINE))


@pytest.fixture
def opened(server: FaultServer, tmp_path: Path) -> Iterator[Callable[..., forebay.ChunkedDataset]]:
    """Opens a dataset of its own name on the cache directory of the test."""
    with ExitStack() as stack:

        def open_one(name: str = "one", *, chunks: int = 1, **arguments: Any) -> forebay.ChunkedDataset:
            if not (tmp_path / name).exists():
                put_dataset(server, tmp_path, prefix=f"{name}/", compression=arguments.pop("compression", None))
            return stack.enter_context(
                forebay.open_dataset(
                    server.url(name), cache_dir=tmp_path / "cache", max_cache_bytes=chunks * PLAIN, **arguments
                )
            )

        yield open_one


def leases(cache: Path) -> int:
    with forebay.ChunkCache(cache) as look:
        return look.info().leases


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_an_item_of_another_chunk_is_read_in_the_middle_of_an_iteration(
    opened: Callable[..., forebay.ChunkedDataset], tmp_path: Path, prefetch: int, compression: str | None
) -> None:
    """Risk A7: ``for x in ds: ds[j]`` with room for one chunk waits for itself."""
    ds, expected = opened(prefetch=prefetch, compression=compression), expected_items()
    begin = time.monotonic()
    with Watcher(tmp_path / "cache") as watcher:
        for number, item in enumerate(ds):
            assert item == expected[number]
            if number % 5 in (1, 3):  # twice within each chunk
                other = (number + 11) % ITEMS
                assert ds[other] == expected[other]
        assert watcher.seen().peak <= PLAIN
    assert number + 1 == ITEMS
    assert time.monotonic() - begin < DEADLINE
    assert leases(tmp_path / "cache") == 0


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("eviction", ["clairvoyant", "lru"])
def test_three_datasets_are_read_side_by_side_in_one_thread(
    opened: Callable[..., forebay.ChunkedDataset],
    tmp_path: Path,
    prefetch: int,
    chunks: int,
    eviction: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Risk A7: ``zip(one, two, three)`` needs three chunks at a time, and the directory holds one or two."""
    monkeypatch.setenv("FOREBAY_EVICTION", eviction)
    sets = [opened(name, chunks=chunks, prefetch=prefetch) for name in ("one", "two", "three")]
    begin = time.monotonic()
    with Watcher(tmp_path / "cache") as watcher:
        for _ in range(2):
            assert list(zip(*sets, strict=True)) == [(item, item, item) for item in expected_items()]
        assert 0 < watcher.seen().peak <= chunks * PLAIN
    assert time.monotonic() - begin < DEADLINE
    assert leases(tmp_path / "cache") == 0


def test_two_iterations_of_one_dataset_are_interleaved(opened: Callable[..., forebay.ChunkedDataset]) -> None:
    """Risk A7: the second is a chunk behind, so that the two never want the same one."""
    ds, expected = opened(prefetch=1), expected_items()
    first, second = iter(ds), iter(ds)
    begin = time.monotonic()
    assert [next(first) for _ in range(5)] == expected[:5]
    assert list(zip(first, second, strict=False)) == list(zip(expected[5:], expected, strict=False))
    assert time.monotonic() - begin < DEADLINE


def test_shuffled_readers_whose_windows_fit_are_interleaved(opened: Callable[..., forebay.ChunkedDataset]) -> None:
    """Risk A7: each keeps one chunk while it waits, as was claimed, and two while it rests, as was not."""
    sets = [opened(name, chunks=3, shuffle=True, shuffle_window=2, prefetch=0) for name in ("one", "two")]
    begin = time.monotonic()
    pairs = list(zip(*sets, strict=True))
    for number in range(2):
        assert sorted(pair[number]["index"] for pair in pairs) == list(range(ITEMS))
    assert time.monotonic() - begin < DEADLINE


def test_a_reader_that_rests_in_another_thread_gives_way(opened: Callable[..., forebay.ChunkedDataset]) -> None:
    """Risk A7: it may rest for as long as it likes, for example until this one has come as far."""
    resting, reading = opened("one", prefetch=0), opened("two", prefetch=0)
    iterator = iter(resting)
    first: list[Any] = []
    thread = threading.Thread(target=lambda: first.append(next(iterator)))
    thread.start()
    thread.join(DEADLINE)
    begin = time.monotonic()
    assert list(reading) == expected_items()
    assert time.monotonic() - begin < DEADLINE
    assert first + list(iterator) == expected_items()


def test_a_reader_at_rest_gives_way_after_the_ledger_could_not_be_read_for_a_while(
    opened: Callable[..., forebay.ChunkedDataset], tmp_path: Path
) -> None:
    """Risk A7: the first error ended the watch over it, unheard, and whoever waited did so until the deadline."""
    resting, reading = opened("one", prefetch=0), opened("two", prefetch=0)
    kept: list[Any] = []
    iterator = iter(resting)
    thread = threading.Thread(target=lambda: kept.append(next(iterator)))
    thread.start()
    thread.join(DEADLINE)
    ledger = tmp_path / "cache" / "ledger.sqlite"
    ledger.rename(tmp_path / "ledger")
    ledger.mkdir()
    assert not threading.Event().wait(0.5), "several looks"
    ledger.rmdir()
    (tmp_path / "ledger").rename(ledger)
    assert list(reading) == expected_items()
    assert kept + list(iterator) == expected_items()


def test_a_coroutine_fetches_in_the_middle_of_an_iteration(
    server: FaultServer, tmp_path: Path, opened: Callable[..., forebay.ChunkedDataset]
) -> None:
    """Risk A7: no thread stands still while it waits, but the reader rests all the same."""
    ds, expected = opened(prefetch=1), expected_items()

    async def read() -> None:
        for number, item in enumerate(ds):
            assert item == expected[number]
            if number % 10 == 3:
                path = await forebay.afetch(server.url(f"one/chunk-0-{number % 8}.bin"), cache_dir=tmp_path / "cache")
                assert path.stat().st_size <= PLAIN
                forebay.release(path)

    begin = time.monotonic()
    asyncio.run(read())
    assert time.monotonic() - begin < DEADLINE


def test_a_view_of_what_a_reader_let_go_of_stays_valid(opened: Callable[..., forebay.ChunkedDataset]) -> None:
    """Risk C2: the file goes, the map does not."""
    one, two = opened("one", prefetch=0), opened("two", prefetch=0)
    first, second = iter(one), iter(two)
    kept = next(first)
    assert [next(second) for _ in range(ITEMS - 1)] == expected_items()[:-1]
    assert [kept, *first] == expected_items()


@pytest.mark.parametrize("datasets", [1, 2])
def test_ranks_in_step_share_room_for_one_chunk(server: FaultServer, tmp_path: Path, datasets: int) -> None:
    """Risk A7, C2: no rank goes on before all have their item; and each may read several datasets side by side."""
    names = [f"set{number}" for number in range(2 * datasets)]
    for name in names:
        put_dataset(server, tmp_path, prefix=f"{name}/")
    context = multiprocessing.get_context("forkserver")
    barrier = context.Barrier(2)
    pipes, ranks = [], []
    begin = time.monotonic()
    with Watcher(tmp_path / "cache") as watcher:
        for rank in range(2):
            ours, theirs = context.Pipe(duplex=False)
            urls = [server.url(name) for name in names[rank::2]]
            arguments = {"cache_dir": str(tmp_path / "cache"), "max_cache_bytes": PLAIN, "prefetch": 0}
            ranks.append(context.Process(target=read_in_step, args=(theirs, barrier, urls, arguments), daemon=True))
            ranks[-1].start()
            pipes.append(ours)
        try:
            for pipe in pipes:
                assert pipe.poll(4 * DEADLINE), "the ranks wait for each other"
                assert pipe.recv() == [[item["index"]] * datasets for item in expected_items()]
        finally:
            for rank_process in ranks:
                rank_process.join(1)
                rank_process.kill()
        assert watcher.seen().peak <= PLAIN
    assert time.monotonic() - begin < 4 * DEADLINE


READ_AT_ANOTHER_TIME = """
import sys, time
import forebay, forebay._config
forebay._config.wall_clock = lambda: time.time() + int(sys.argv[4])
with forebay.open_dataset(sys.argv[1], cache_dir=sys.argv[2], max_cache_bytes=int(sys.argv[3]), prefetch=0) as ds:
    assert len(list(ds)) == 40
"""


@pytest.mark.parametrize("offset", [-86400, 86400])
def test_a_reader_at_rest_gives_way_to_one_whose_clock_is_another(
    opened: Callable[..., forebay.ChunkedDataset], server: FaultServer, tmp_path: Path, offset: int
) -> None:
    """Risk A7: a clock that is set, or a container's, must not make a waiter look as if it had just come."""
    reading = iter(opened(prefetch=0))
    kept = next(reading)
    code = [sys.executable, "-c", READ_AT_ANOTHER_TIME, server.url("one"), str(tmp_path / "cache"), str(PLAIN)]
    done = subprocess.run([*code, str(offset)], capture_output=True, text=True, timeout=4 * DEADLINE, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [kept, *reading] == expected_items()


HOLD = """
import sys
import forebay
forebay.fetch(sys.argv[1], cache_dir=sys.argv[2], max_cache_bytes=int(sys.argv[3]))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_elsewhere(url: str, cache: Path, budget: int) -> Iterator[None]:
    """Another process holds what lies at ``url``."""
    code = [sys.executable, "-c", HOLD, url, str(cache), str(budget)]
    with subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            yield
        finally:
            holder.kill()


HOLD_AND_READ = """
import sys, time
import forebay
from forebay.exceptions import CacheFullError

url, cache, budget = sys.argv[1], sys.argv[2], int(sys.argv[3])
path = forebay.fetch(url + "/" + sys.argv[4], cache_dir=cache, max_cache_bytes=budget)
with forebay.open_dataset(url, cache_dir=cache, max_cache_bytes=budget, prefetch=1) as ds:
    for read in (lambda: list(ds), lambda: ds[20], lambda: forebay.fetch(url + "/" + sys.argv[5], cache_dir=cache)):
        begin = time.monotonic()
        try:
            read()
        except CacheFullError as exc:
            assert "forebay.release" in str(exc) and str(path) in str(exc), exc
        else:
            raise SystemExit("there was room")
        assert time.monotonic() - begin < 5, time.monotonic() - begin
    assert path.stat().st_size
    forebay.release(path)
    assert len(list(ds)) == 40
"""


def test_a_path_in_the_users_hands_that_leaves_no_room_is_named_at_once(server: FaultServer, tmp_path: Path) -> None:
    """Risk A7: the only thread waits, so nobody could release the path; once it is released all goes on."""
    names = put_dataset(server, tmp_path)
    budget = 2 * min(file.stat().st_size for file in (tmp_path / "dataset").glob("chunk-*")) - 1
    code = [sys.executable, "-c", HOLD_AND_READ, server.url(), str(tmp_path / "cache"), str(budget), *names[:2]]
    done = subprocess.run(
        code, timeout=60, capture_output=True, text=True, env={**os.environ, "FOREBAY_WAIT_TIMEOUT": "30"}
    )
    assert done.returncode == 0, done.stderr


def test_a_path_that_another_thread_may_release_is_waited_for(
    server: FaultServer, tmp_path: Path, opened: Callable[..., forebay.ChunkedDataset]
) -> None:
    """A worker that releases what it has done with must not find its producer dead."""
    ds = opened()
    path = forebay.fetch(server.url("one/chunk-0-7.bin"), cache_dir=tmp_path / "cache")
    worker = threading.Timer(1.5, forebay.release, [path])
    worker.start()
    try:
        assert list(ds) == expected_items()
    finally:
        worker.join()


def test_a_path_that_nobody_releases_is_named_in_time(
    server: FaultServer,
    tmp_path: Path,
    opened: Callable[..., forebay.ChunkedDataset],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where others might release it, a warning comes after some seconds, and the error at the deadline."""
    monkeypatch.setenv("FOREBAY_WAIT_TIMEOUT", "7")
    ds = opened()
    path = forebay.fetch(server.url("one/chunk-0-7.bin"), cache_dir=tmp_path / "cache")
    idle = threading.Event()
    other = threading.Thread(target=idle.wait)
    other.start()
    try:
        with caplog.at_level(logging.WARNING, "forebay"), pytest.raises(CacheFullError, match=r"forebay\.release"):
            list(ds)
    finally:
        idle.set()
        other.join()
    warnings = [record.getMessage() for record in caplog.records if "forebay.release" in record.getMessage()]
    assert len(warnings) == 1
    assert str(path) in warnings[0]
    assert path.exists()
    forebay.release(path)


def test_what_a_reader_let_go_of_is_read_to_its_end_and_fetched_once(
    server: FaultServer, opened: Callable[..., forebay.ChunkedDataset]
) -> None:
    """A reader that gave way keeps its map: nothing is fetched twice for it."""
    one, two = opened("one", prefetch=0), opened("two", prefetch=0)
    pairs = list(zip(one, two, strict=True))
    assert pairs == [(item, item) for item in expected_items()]
    assert one.stats().chunks_fetched == CHUNKS
    assert two.stats().chunks_fetched == CHUNKS


STEP = 8 << 20


def test_an_object_of_unknown_size_that_finds_no_room_waits_no_longer_than_the_deadline(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Risk A7, D8: it gives its part of the room up every few seconds, and each new try must not wait from 0."""
    monkeypatch.setenv("FOREBAY_WAIT_TIMEOUT", "6")
    server.put("held", bytes(STEP - 1000))
    server.put("grows", bytes(STEP + 2000))
    server.script("grows", Fault(framing="chunked", ignore_range=True), times=None)
    arguments: dict[str, Any] = {"cache_dir": tmp_path / "cache", "max_cache_bytes": 2 * STEP}
    with held_elsewhere(server.url("held"), tmp_path / "cache", 2 * STEP):
        begin = time.monotonic()
        with pytest.raises(CacheFullError, match=r"no room for .* within 6 s.*process"):
            forebay.fetch(server.url("grows"), timeout=30, **arguments)
        assert time.monotonic() - begin < 20
    path = forebay.fetch(server.url("grows"), timeout=30, **arguments)
    assert path.stat().st_size == STEP + 2000
    forebay.release(path)
