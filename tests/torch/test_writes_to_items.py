"""Issue 5, item 8: a collate function that works in place changes what another pass gives: wrong data, silently."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

import forebay
from forebay.testing import FaultServer
from forebay.torch import CombinedStreamingDataset, ParallelStreamingDataset, StreamingDataLoader, StreamingDataset

ITEMS, SIZE = 48, 500
#: Added in place to what was read: whoever reads it again has more than all values together.
STAIN = 1_000_000
Make = Callable[..., Any]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Tensors of which the first element is the item's number: six chunks, and one that is read over and over."""
    folder = tmp_path_factory.mktemp("data")
    with FaultServer() as server:
        for name, count in (("many", ITEMS), ("few", 5)):
            items = (torch.arange(n, n + SIZE) for n in range(count))
            forebay.pack(items, folder / name, chunk_bytes=8 * (8 * SIZE + 16))
            for file in (folder / name).iterdir():
                server.put(f"{name}/{file.name}", file.read_bytes())
        yield [server.url("many"), server.url("few")]


def stain(batch: list[Any]) -> list[int]:
    """Numbers of the samples of a batch; then write to all of its tensors."""
    tensors = [tensor for item in batch for tensor in (item if isinstance(item, tuple) else (item,))]
    numbers = [int(tensor[0]) for tensor in tensors]
    for tensor in tensors:
        tensor += STAIN
    return numbers


def mixture(member: Make, **ranks: Any) -> Any:
    return CombinedStreamingDataset([member(0), member(1)], weights=[1, 1], cycle=True, **ranks)


def rows(member: Make, **ranks: Any) -> Any:
    return ParallelStreamingDataset([member(0), member(1)], cycle=True, **ranks)


def one(member: Make, **ranks: Any) -> Any:
    return member(0, **ranks)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("ranks", "workers", "partitions"), [(1, 0, 1), (1, 0, 2), (1, 1, 1), (5, 0, 1), (5, 0, 2)])
@pytest.mark.parametrize("make", [mixture, rows, one])
def test_writing_to_samples_changes_no_other_sample(
    urls: list[str], tmp_path: Path, make: Make, ranks: int, workers: int, partitions: int, shuffle: bool
) -> None:
    """Passes that meet in an open chunk, samples that fill up the last batch of five ranks, two epochs."""

    def member(number: int, **ranks: Any) -> StreamingDataset:
        order: dict[str, Any] = {"shuffle": shuffle, "shuffle_window": 3}
        return StreamingDataset(urls[number], cache_dir=tmp_path / "cache", **order, **ranks)

    for rank in range(ranks):
        dataset = make(member, rank=rank, world_size=ranks, partitions=partitions)
        loader = StreamingDataLoader(dataset, batch_size=7, num_workers=workers, collate_fn=stain)
        for _ in range(2):
            numbers = [number for batch in loader for number in batch]
            assert numbers
            assert max(numbers) < ITEMS
        dataset.close()
        for each in getattr(dataset, "datasets", ()):
            each.close()


def test_a_pass_that_meets_another_finds_its_chunk_evicted(urls: list[str], tmp_path: Path) -> None:
    """Room for one chunk and two readers in step: what a pass still reads is fetched again for the next one."""
    room: dict[str, Any] = {"max_cache_bytes": 8 * (8 * SIZE + 16) + 200, "prefetch": 0}
    with ExitStack() as stack:
        members = [stack.enter_context(StreamingDataset(url, cache_dir=tmp_path / "cache", **room)) for url in urls]
        row = stack.enter_context(ParallelStreamingDataset(members, cycle=True))
        numbers = [number for batch in StreamingDataLoader(row, batch_size=3, collate_fn=stain) for number in batch]
        assert numbers == [number for n in range(ITEMS) for number in (n, n % 5)]
        assert row.stats().chunks_fetched > 7, "more often than there are chunks"


def test_a_skipped_chunk_is_skipped_in_each_pass(urls: list[str], tmp_path: Path) -> None:
    """The second pass that meets one finds that nobody holds it, and that is no error."""
    forebay.pack((torch.arange(n, n + SIZE) for n in range(3)), tmp_path / "gone")
    with FaultServer() as server:
        server.put("gone/index.json", (tmp_path / "gone" / "index.json").read_bytes())
        with (
            StreamingDataset(urls[0], cache_dir=tmp_path / "cache") as there,
            StreamingDataset(server.url("gone"), cache_dir=tmp_path / "cache", on_error="skip") as gone,
            CombinedStreamingDataset([there, gone], weights=[1, 1], cycle=True) as dataset,
        ):
            assert sorted(int(item[0]) for item in dataset) == list(range(ITEMS))
            assert dataset.stats().skipped_chunks == 1


def test_samples_of_each_pass_are_views(urls: list[str], tmp_path: Path) -> None:
    """Neighbours of one chunk lie side by side in its map, also where another pass meets it."""
    with ExitStack() as stack:
        members = [stack.enter_context(StreamingDataset(url, cache_dir=tmp_path / "cache")) for url in urls]
        row = stack.enter_context(ParallelStreamingDataset(members, cycle=True))
        items = [item for _, item in row]  # five in each pass
        for begin in range(0, ITEMS - 5, 5):
            steps = {b.data_ptr() - a.data_ptr() for a, b in itertools.pairwise(items[begin : begin + 5])}
            assert len(steps) == 1
            assert 0 < steps.pop() - 8 * SIZE < 32
