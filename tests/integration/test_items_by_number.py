"""Risks of reading by number: a batch in another order, a loader's workers, a view that reaches the cache (K5, Q2)."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from servers.datasets import ITEMS, expected_items, put_dataset
from torch.utils.data import DataLoader

import forebay
from forebay._readers import MAX_OPEN
from forebay.exceptions import PrefetchClosedError
from forebay.testing import Fault, FaultServer, Gate

pytestmark = pytest.mark.slow


def plain(batch: list[Any]) -> list[Any]:
    """A collate function that a spawned worker can import."""
    return batch


def test_a_batch_comes_in_the_order_asked_for(server: FaultServer, tmp_path: Path) -> None:
    put_dataset(server, tmp_path)
    items = expected_items()
    rng = np.random.default_rng(0)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        for size in (1, 7, 64, 500):
            order = rng.integers(-ITEMS, ITEMS, size).tolist()
            wanted = [items[i] for i in order]
            assert ds.get_batch(order) == wanted
            assert ds.get_batch(np.array(order, dtype=np.int16)) == wanted
            assert ds.get_batch(torch.tensor(order)) == wanted  # type: ignore[arg-type]
            assert ds.__getitems__(order) == wanted
            assert [ds[i] for i in order] == wanted
        assert ds[::-3] == items[::-3]
        assert ds[5:5] == ds.get_batch([]) == ds.__getitems__([]) == []
        assert ds.stats().items == 5 * (1 + 7 + 64 + 500) + len(items[::-3])


@pytest.mark.parametrize("wrong", [ITEMS, -ITEMS - 1, 2**40])
def test_a_number_outside_of_the_dataset(server: FaultServer, tmp_path: Path, wrong: int) -> None:
    put_dataset(server, tmp_path)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        for read in (lambda: ds[wrong], lambda: ds.get_batch([0, wrong, 1]), lambda: ds.__getitems__([wrong])):
            with pytest.raises(IndexError, match=f"index {wrong} is out of range"):
                read()
        for not_a_number in (1.5, "1", None):
            with pytest.raises(TypeError):
                ds.get_batch([0, not_a_number])  # type: ignore[list-item]
        assert ds[0] == expected_items()[0]  # its chunk is open now
    for read in (lambda: ds[0], lambda: ds.get_batch([0]), lambda: ds.__getitems__([0])):
        with pytest.raises(PrefetchClosedError):
            read()


def test_more_chunks_than_stay_open_K5(tmp_path: Path) -> None:
    count = 3 * (MAX_OPEN + 6)
    forebay.pack(expected_items(count), tmp_path / "data", chunk_bytes=3 * 1040 + 60)
    items = expected_items(count)
    with forebay.open_dataset(tmp_path / "data") as ds:
        for seed in range(3):
            order = np.random.default_rng(seed).permutation(count).tolist()
            assert ds.get_batch(order) == [items[i] for i in order]


@pytest.mark.parametrize(("workers", "start"), [(0, None), (2, "spawn"), (2, "forkserver")])
def test_a_plain_loader_reads_by_number(server: FaultServer, tmp_path: Path, workers: int, start: str | None) -> None:
    """Item 8: torch's fetcher asks for a whole batch in one call; every item comes once, in the sampler's order."""
    put_dataset(server, tmp_path)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        assert list(ds[:3]) == expected_items()[:3]  # the parent has used the backend
        loader: DataLoader[Any] = DataLoader(
            ds,  # type: ignore[arg-type]
            batch_size=16,
            shuffle=True,
            generator=torch.Generator().manual_seed(3),
            num_workers=workers,
            multiprocessing_context=start,
            collate_fn=plain,
        )
        assert len(loader) == 3
        for _ in range(2):
            batches = list(loader)
            assert [len(batch) for batch in batches] == [16, 16, 8]
            numbers = [item["index"] for batch in batches for item in batch]
            assert sorted(numbers) == list(range(ITEMS))
            assert numbers != sorted(numbers)
            assert [item for batch in batches for item in batch] == [expected_items()[i] for i in numbers]


def test_a_batch_of_several_chunks_is_asked_for_together(server: FaultServer, tmp_path: Path) -> None:
    """One by one, the items of a batch wait for their chunks in turn; `__getitems__` has to be what torch calls."""
    names = put_dataset(server, tmp_path)
    gate = Gate()
    server.script(names[0], Fault(gate=gate, after=10))
    with (
        forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds,
        ThreadPoolExecutor(1) as pool,
    ):
        loader: DataLoader[Any] = DataLoader(ds, batch_size=ITEMS, collate_fn=plain)  # type: ignore[arg-type]
        batches = pool.submit(list, loader)
        try:
            server.wait_for_requests(1, key=names[1], timeout=20)
        finally:
            gate.open()
        assert batches.result(30) == [expected_items()]


def test_blocks_of_tokens_are_free_and_do_not_reach_the_cache(server: FaultServer, tmp_path: Path) -> None:
    """Item 8: contiguous blocks are neighbours in one map; writing to them changes neither cache nor other readers."""
    forebay.pack([torch.arange(n, n + 1000) for n in range(0, 20_000, 1000)], tmp_path / "data", tokens=True)
    for file in sorted((tmp_path / "data").iterdir()):
        server.put(file.name, file.read_bytes())
    options = {"block_size": 64}
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", format_options=options) as ds:
        blocks = list(itertools.islice(ds, 8, 72))
        assert {b.data_ptr() - a.data_ptr() for a, b in itertools.pairwise(blocks)} == {64 * 8}
        assert {block.untyped_storage().nbytes() for block in blocks} == {64 * 8}  # a worker sends one block, not all
        for block in blocks:
            block.zero_()
        assert sum(int(block.sum()) for block in blocks) == 0
        with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", format_options=options) as other:
            assert torch.equal(torch.cat(other.get_batch(range(8, 72))), torch.arange(8 * 64, 72 * 64))
    cache = forebay.ChunkCache(tmp_path / "cache")
    try:
        assert cache.info().chunks == 1
        assert cache.verify() == []
    finally:
        cache.close()
    assert all(int(block.sum()) == 0 for block in blocks)
