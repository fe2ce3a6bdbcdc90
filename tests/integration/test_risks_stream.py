"""Risks of streaming through the cache: who sees which file, what stays behind, what is asked for again."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.cache_actor import until
from servers.datasets import CHUNKS, ITEMS, expected_items, put_dataset
from servers.readers import send_indices

import forebay
from forebay import exceptions
from forebay.testing import Fault, FaultServer, Gate


def chunks_in(cache: Path) -> list[str]:
    return sorted(file.name for file in (cache / "chunks").rglob("*") if file.is_file())


def test_processes_that_start_together_read_one_whole_index(server: FaultServer, tmp_path: Path) -> None:
    """Risk B2, B4, B5: the index comes slowly, and each of them looks for it at once."""
    put_dataset(server, tmp_path)
    gate = Gate()
    server.script("index.json", Fault(gate=gate, after=100), times=None)
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for _ in range(3):
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=send_indices, args=(theirs, None, server.url(), str(tmp_path / "cache")))
        process.start()
        theirs.close()
        pipes.append(mine)
        processes.append(process)
    try:
        server.wait_for_requests(1, key="index.json")
        gate.open()
        assert [pipe.recv() for pipe in pipes] == [list(range(ITEMS))] * 3
    finally:
        gate.open()
        for process, pipe in zip(processes, pipes, strict=True):
            process.join(60)
            pipe.close()


def test_a_compressed_chunk_appears_only_whole(server: FaultServer, tmp_path: Path) -> None:
    """Risk G1, G2, B1: while half of the body has come there is no file that a reader would take for the chunk."""
    names = put_dataset(server, tmp_path, compression="zstd")
    cache, gate = tmp_path / "cache", Gate()
    server.script(names[0], Fault(gate=gate, after=len(server.get(names[0]) or b"") // 2), times=1)
    got: list[object] = []
    with forebay.open_dataset(server.url(), cache_dir=cache, prefetch=0) as ds:
        reader = threading.Thread(target=lambda: got.append(ds[0]))
        reader.start()
        try:
            until(lambda: [name for name in chunks_in(cache) if name.endswith(".tmp")], "a chunk under way")
            assert [name for name in chunks_in(cache) if not name.endswith(".tmp")] == []
        finally:
            gate.open()
            reader.join(60)
        assert got == [expected_items()[0]]
        (only,) = chunks_in(cache)
        assert not only.endswith(".tmp")


def test_only_the_ending_of_a_name_tells_how_it_is_compressed(server: FaultServer, tmp_path: Path) -> None:
    """Risk G7: ``.zstd`` in the middle of a name, or of a folder's, stays."""
    names = put_dataset(server, tmp_path, compression="zstd")
    index = json.loads(server.get("index.json") or b"")
    for number, (name, chunk) in enumerate(zip(names, index["chunks"], strict=True)):
        assert chunk["filename"] == name
        chunk["filename"] = f"a.zstd.v{number}.zstd.bin"
        server.put(f"x.zstd.d/{chunk['filename']}", server.get(name) or b"")
    server.put("x.zstd.d/index.json", json.dumps(index).encode())
    with forebay.open_dataset(server.url("x.zstd.d"), cache_dir=tmp_path / "cache") as ds:
        assert list(ds) == expected_items()
    assert len(chunks_in(tmp_path / "cache")) == CHUNKS


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_nothing_but_chunks_and_the_index_stays(server: FaultServer, tmp_path: Path, compression: str | None) -> None:
    """Risk E2, C4, D3: no lock, no temporary, no compressed copy, no lease."""
    put_dataset(server, tmp_path, compression=compression)
    cache = tmp_path / "cache"
    with forebay.open_dataset(server.url(), cache_dir=cache, max_cache_bytes=3 * (5 * 1040 + 60)) as ds:
        for _ in range(2):
            assert list(ds) == expected_items()
    kinds = {"BUDGET", "FORMAT", "chunks", "holders", "indexes"}
    assert {path.name for path in cache.iterdir() if not path.name.startswith("ledger.sqlite")} == kinds
    assert list((cache / "holders").iterdir()) == []
    assert {path.suffix for path in (cache / "indexes").iterdir()} <= {".json"}
    left = chunks_in(cache)
    assert 0 < len(left) <= 3
    assert not [name for name in left if name.endswith(".tmp") or "zst" in name]
    with forebay.ChunkCache(cache) as observer:
        assert (observer.info().leases, observer.info().chunks, observer.verify()) == (0, len(left), [])


@pytest.mark.parametrize("off", [-1, 0, 1])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_size_that_is_a_multiple_of_the_part_is_complete(
    server: FaultServer, tmp_path: Path, off: int, parts: int
) -> None:
    """Risk B10, Q8: the last part is exactly full, one byte short, or one byte."""
    part = 64 * 1024
    data = os.urandom(parts * part + off)
    server.put("key.bin", data)
    path = forebay.fetch(server.url("key.bin"), cache_dir=tmp_path / "cache", options={"part_size": part})
    assert path.read_bytes() == data
    forebay.release(path)
    assert len(chunks_in(tmp_path / "cache")) == 1


def test_a_second_run_asks_for_the_index_and_for_nothing_else(server: FaultServer, tmp_path: Path) -> None:
    """Risk R6: whether the chunks are the right ones is known from the index; no request for each of them."""
    put_dataset(server, tmp_path)
    for _ in range(2):
        server.forget_requests()
        with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
            assert list(ds) == expected_items()
    assert [request.key for request in server.requests] == ["index.json"]


def test_epoch_after_epoch_takes_no_more_descriptors_threads_or_memory(server: FaultServer, tmp_path: Path) -> None:
    """Risk K2, K4, C16: chunks are evicted and fetched all the time, and what there is of each stays the same."""
    put_dataset(server, tmp_path, size=20_000)
    budget = 2 * (5 * 20_040 + 60)

    def state() -> tuple[int, int, int]:
        gc.collect()
        server.forget_requests()
        return len(os.listdir("/dev/fd")), threading.active_count(), tracemalloc.get_traced_memory()[0]

    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", max_cache_bytes=budget) as ds:
        tracemalloc.start()
        try:
            for _ in range(5):
                assert sum(1 for _ in ds) == ITEMS
            before = state()
            for _ in range(15):
                assert sum(1 for _ in ds) == ITEMS
            after = state()
        finally:
            tracemalloc.stop()
        assert ds.stats().evictions >= 15
    assert after[0] <= before[0] + 4, "a connection more or less"
    assert after[1] <= before[1] + 2
    assert after[2] - before[2] < 200_000, "of the eight hundred thousand bytes of each epoch"


def test_a_large_object_is_never_in_memory_as_a_whole(server: FaultServer, tmp_path: Path) -> None:
    """Risk K6, K3: what is in flight is bounded, whatever the size; a part that failed is not kept."""
    size, part = 48 << 20, 256 * 1024
    # The server's own copy, made before memory is counted; what it sends is cut into pieces of one part.
    server.put("key.bin", bytes(size))
    server.script("key.bin", Fault(cut=True, after=1000), times=3)
    options = {"part_size": part, "max_concurrency": 4}
    tracemalloc.start()
    try:
        path = forebay.fetch(server.url("key.bin"), cache_dir=tmp_path / "cache", options=options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size == size
    forebay.release(path)
    assert peak < size // 4


def test_two_writers_of_one_index_leave_one_whole_dataset(tmp_path: Path) -> None:
    """Risk E13: of two that pack into one place, one wins and the other hears it; nothing is mixed."""
    errors: list[BaseException] = []
    start = threading.Barrier(2)

    def write(value: int) -> None:
        def items() -> Iterator[dict[str, int]]:
            start.wait(30)
            for _ in range(50):
                yield {"value": value}

        try:
            forebay.pack(items(), tmp_path / "out")
        except exceptions.ForebayError as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(value,)) for value in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 1
    with forebay.open_dataset(tmp_path / "out") as ds:
        values = [item["value"] for item in ds]
    assert values in ([1] * 50, [2] * 50)


def test_workers_read_after_the_parent_has_read(server: FaultServer, tmp_path: Path) -> None:
    """Risk A5: first alone, then with two processes, then alone again, all in one script."""
    put_dataset(server, tmp_path)
    cache = str(tmp_path / "cache")
    with forebay.open_dataset(server.url(), cache_dir=cache) as ds:
        assert list(ds) == expected_items()
        context = multiprocessing.get_context("spawn")
        for _ in range(2):
            pipe, theirs = context.Pipe(duplex=False)
            child = context.Process(target=send_indices, args=(theirs, None, server.url(), cache))
            child.start()
            theirs.close()
            assert pipe.recv() == list(range(ITEMS))
            child.join(60)
            pipe.close()
            assert list(ds) == expected_items()
