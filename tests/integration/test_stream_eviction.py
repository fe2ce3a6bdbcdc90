"""Clairvoyant eviction: a cache that holds half of the data fetches about half of it an epoch, whatever the order."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from servers.datasets import put_dataset
from servers.readers import send_part

import forebay
from forebay.testing import FaultServer

pytestmark = pytest.mark.slow

CHUNKS = 32
PER_CHUNK = 2
ITEMS = CHUNKS * PER_CHUNK
EPOCHS = 5
#: Of the dataset, an epoch, after the first; 0.5 is the least that a cache of half its size can do in every order.
LIMIT = 0.60


def half(
    server: FaultServer, folder: Path, monkeypatch: pytest.MonkeyPatch, prefetch: int, per_chunk: int = PER_CHUNK
) -> dict[str, Any]:
    """Put a dataset of equal chunks; what to open it with, so that half of them fit into the cache."""
    monkeypatch.setenv("FOREBAY_PREFETCH_MIN", "0")
    names = put_dataset(server, folder, count=CHUNKS * per_chunk, per_chunk=per_chunk)
    (size,) = {(folder / "dataset" / name).stat().st_size for name in names}
    assert len(names) == CHUNKS
    return {"cache_dir": folder / "cache", "max_cache_bytes": CHUNKS // 2 * size, "prefetch": prefetch}


def fetched_from(server: FaultServer) -> int:
    return sum("chunk-" in request.key for request in server.requests)


def read_epochs(server: FaultServer, arguments: dict[str, Any]) -> list[float]:
    """The share of the dataset that each epoch fetched, by ``stats()``, which has to agree with the server."""
    shares = []
    with forebay.open_dataset(server.url(), **arguments) as ds:
        for _ in range(EPOCHS):
            server.forget_requests()
            before = ds.stats().chunks_fetched
            assert sorted(item["index"] for item in ds) == list(range(ITEMS))
            assert ds.stats().chunks_fetched - before == fetched_from(server)
            shares.append(fetched_from(server) / CHUNKS)
    return shares


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("shuffle", [False, True])
def test_one_reader_fetches_half_of_the_data_an_epoch(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool, prefetch: int
) -> None:
    arguments = half(server, tmp_path, monkeypatch, prefetch)
    shares = read_epochs(server, {**arguments, "shuffle": shuffle, "shuffle_window": 1})
    assert shares[0] == 1
    assert sum(shares[1:]) / len(shares[1:]) <= LIMIT, shares


@pytest.mark.parametrize(("shuffle", "at_least"), [(False, 1.0), (True, 0.7)])
def test_the_setting_makes_it_lru(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool, at_least: float
) -> None:
    monkeypatch.setenv("FOREBAY_EVICTION", "lru")
    arguments = half(server, tmp_path, monkeypatch, 0)
    shares = read_epochs(server, {**arguments, "shuffle": shuffle, "shuffle_window": 1})
    assert sum(shares[1:]) / len(shares[1:]) >= at_least, shares


def read_as_ranks(server: FaultServer, arguments: dict[str, Any], ranks: int, *, in_step: bool = True) -> list[float]:
    """The same with a process a rank, each of which reads its part of one plan."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(ranks) if in_step else None
    ends = [context.Pipe(duplex=False) for _ in range(ranks)]
    processes = [
        context.Process(target=send_part, args=(write, barrier, rank, ranks, EPOCHS, server.url(), arguments))
        for rank, (_, write) in enumerate(ends)
    ]
    server.forget_requests()
    for process in processes:
        process.start()
    try:
        shares, before = [], 0
        for _ in range(EPOCHS):
            answers = []
            for read, _ in ends:
                assert read.poll(60)
                answers.append(read.recv())
            assert sorted(number for numbers, _ in answers for number in numbers) == list(range(ITEMS))
            total = sum(fetched for _, fetched in answers)
            shares.append((total - before) / CHUNKS)
            before = total
        assert before == fetched_from(server)
    finally:
        for process in processes:
            process.join(30)
            process.kill()
    assert [process.exitcode for process in processes] == [0] * ranks
    return shares


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("shuffle", [False, True])
def test_four_ranks_of_one_plan_fetch_half_of_the_data_an_epoch(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool, prefetch: int
) -> None:
    """Each knows the others' plans and places through the ledger, and does not evict what they read soon."""
    arguments = half(server, tmp_path, monkeypatch, prefetch)
    shares = read_as_ranks(server, {**arguments, "shuffle": shuffle, "shuffle_window": 1}, 4)
    assert sum(shares[1:]) / len(shares[1:]) <= LIMIT, shares


@pytest.mark.parametrize(("shuffle", "prefetch"), [(False, 0), (False, 3), (True, 0), (True, 3)])
def test_ranks_of_a_stream_in_step_fetch_half_of_the_data_an_epoch(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool, prefetch: int
) -> None:
    """A rank says what it has read before it asks for more, and nothing that it has only planned to read."""
    forebay_torch = pytest.importorskip("forebay.torch")
    per_chunk = 8
    arguments = half(server, tmp_path, monkeypatch, prefetch, per_chunk)
    arguments |= {"shuffle": shuffle, "shuffle_window": 1, "partitions": 4, "batch_size": 4, "world_size": 4}
    streams = [forebay_torch.StreamingDataset(server.url(), rank=rank, **arguments) for rank in range(4)]
    shares = []
    for _ in range(EPOCHS):
        server.forget_requests()
        steps = list(zip(*streams, strict=True))  # one sample of each rank at a time
        assert sorted(int(item["index"]) for step in steps for item in step) == list(range(per_chunk * CHUNKS))
        shares.append(fetched_from(server) / CHUNKS)
    assert sum(stream.stats().chunks_fetched for stream in streams) == sum(shares) * CHUNKS
    for stream in streams:
        stream.close()
    assert sum(shares[1:]) / len(shares[1:]) <= LIMIT, shares
