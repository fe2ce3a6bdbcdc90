"""The order of an epoch over ranks and workers: the same samples at every global step, each once, whoever reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from servers.streams import TOO_MANY_WORKERS, Job, as_list, flat, pack_numbers, set_of

import forebay
from forebay.exceptions import PrefetchClosedError
from forebay.torch import StreamingDataLoader, StreamingDataset

pytestmark = pytest.mark.filterwarnings(TOO_MANY_WORKERS)

COUNT, PER_CHUNK, WHOLE = 60, 7, 8
TOPOLOGIES = [(ranks, workers) for ranks in (1, 2, 4) for workers in (0, 1, 3)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return pack_numbers(tmp_path_factory.mktemp("order") / "data", COUNT, PER_CHUNK)


def make(url: str, **arguments: Any) -> Any:
    def dataset(**ranks: Any) -> StreamingDataset:
        return StreamingDataset(url, **{"shuffle": True, "seed": 11, "shuffle_window": 3, **arguments}, **ranks)

    return dataset


@pytest.fixture(scope="module")
def expected(url: str) -> list[list[list[int]]]:
    """Three epochs of one process without workers, batch by batch, made from the dataset's plain iteration."""
    with forebay.open_dataset(url, shuffle=True, seed=11, shuffle_window=3) as plain:
        epochs = [list(plain) for _ in range(3)]
    return [[sorted(epoch[at : at + WHOLE]) for at in range(0, COUNT, WHOLE)] for epoch in epochs]


@pytest.mark.parametrize(("ranks", "workers"), TOPOLOGIES)
def test_every_global_step_holds_the_same_samples_over_three_epochs(
    url: str, expected: list[list[list[int]]], ranks: int, workers: int
) -> None:
    """Risk I1, I2, I8: no sample twice, none left out, the same at each step for each number of ranks and workers."""
    with Job(make(url), ranks=ranks, workers=workers, whole=WHOLE) as job:
        assert [len(loader) for loader in job.loaders] == [8] * ranks
        epochs = [job.epoch() for _ in range(3)]
    assert epochs == expected
    assert all(sorted(flat(epoch)) == list(range(COUNT)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("partitions", [2, 3, 4])
def test_canonical_partitions_are_an_order_of_their_own_and_ranks_do_not_change_it(url: str, partitions: int) -> None:
    """Risk I6: also ranks that the partitions do not divide."""
    found = []
    for ranks, workers in ((1, 0), (2, 2), (4, 0), (8, 0)):
        with Job(make(url, partitions=partitions), ranks=ranks, workers=workers, whole=WHOLE) as job:
            found.append([job.epoch() for _ in range(2)])
    assert all(epochs == found[0] for epochs in found)
    assert all(sorted(flat(epoch)) == list(range(COUNT)) for epoch in found[0])
    with Job(make(url), whole=WHOLE) as job:
        assert job.epoch() != found[0][0]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("count", [1000, 1001, 1013, 1019])
@pytest.mark.parametrize("machines", [2, 4])
def test_machines_share_chunks_at_borders_and_of_an_incomplete_last_batch_alone(
    tmp_path: Path, machines: int, count: int, drop_last: bool
) -> None:
    """Risk I6: what docs/pytorch.md says of chunks that two machines fetch, with a partition and a rank a machine."""
    url = pack_numbers(tmp_path / "data", count, 20)
    fetched = 0
    for rank in range(machines):
        ranks = {"rank": rank, "world_size": machines, "partitions": machines}
        with make(url, batch_size=4, drop_last=drop_last, **ranks)() as dataset:
            fetched += len({number // 20 for number in dataset})
    last = 0 if drop_last else count % (4 * machines)
    assert fetched - -(-count // 20) <= machines - 1 + last


def test_the_order_within_a_batch_is_that_of_the_plan_whatever_the_workers(url: str) -> None:
    with forebay.open_dataset(url, shuffle=True, seed=11, shuffle_window=3) as plain:
        straight = list(plain)
    for workers in (0, 2):
        with Job(make(url), workers=workers) as job:
            assert [item for step in job.steps() for item in step[0]] == straight


def test_unshuffled_is_storage_order(url: str) -> None:
    with Job(make(url, shuffle=False), workers=2) as job:
        assert [[item for step in job.steps() for item in step[0]] for _ in range(2)] == [list(range(COUNT))] * 2


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 16, 17, 19])
def test_the_last_global_batch_is_dealt_evenly_and_repeats_are_counted(tmp_path: Path, ranks: int, count: int) -> None:
    """Risk I2: all ranks have equally many batches, also one sample for four ranks."""
    whole = 2 * ranks
    url = pack_numbers(tmp_path / "data", count, 3)
    with Job(make(url, batch_size=2), ranks=ranks, whole=whole) as job:
        steps = list(job.steps())
        padded = [dataset.stats().padded for dataset in job.datasets]
        in_all = [loader.stats().padded for loader in job.loaders]
        assert [len(loader) for loader in job.loaders] == [len(steps)] * ranks
        assert sum(len(dataset) for dataset in job.datasets) == sum(len(batch) for step in steps for batch in step)
    sizes = [[len(batch) for batch in step] for step in steps]
    assert all(set(step) == {2} for step in sizes[:-1])
    assert max(sizes[-1]) - min(sizes[-1]) <= 1
    left = count - whole * (len(steps) - 1)
    missing = max(ranks - left, 0)
    assert sum(padded) == missing
    assert in_all == padded, "the loader counts what the dataset counted, once"
    samples = [item for step in steps for batch in step for item in batch]
    assert set(samples) == set(range(count))
    assert len(samples) == count + missing
    assert len(set_of(steps[-1])) == left


def test_repeats_are_counted_where_workers_read(tmp_path: Path) -> None:
    with Job(make(pack_numbers(tmp_path / "data", 9, 4)), ranks=4, workers=2, whole=8) as job:
        assert set(flat(job.epoch())) == set(range(9))
        assert sum(loader.stats().padded for loader in job.loaders) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_drop_last_leaves_out_the_incomplete_global_batch(url: str, workers: int) -> None:
    with Job(make(url), ranks=4, workers=workers, whole=WHOLE, drop_last=True) as job:
        steps = job.epoch()
        assert [len(loader) for loader in job.loaders] == [7] * 4
        assert [loader.stats().padded for loader in job.loaders] == [0] * 4
        again = job.epoch()
    assert [len(step) for step in steps] == [WHOLE] * 7
    assert len(set(flat(steps))) == 56
    assert set(flat(steps)) != set(flat(again)), "which samples are dropped changes with the epoch"


def test_drop_last_of_the_dataset_holds_where_the_loader_says_nothing(url: str) -> None:
    with Job(make(url, drop_last=True), ranks=2) as job:
        assert [len(step) for step in job.epoch()] == [8] * 7
    with Job(make(url, drop_last=True), ranks=2, drop_last=False) as job:
        assert [len(step) for step in job.epoch()] == [8] * 7 + [4]


def test_more_workers_than_chunks_and_than_batches(tmp_path: Path) -> None:
    """Risk I7: workers without work end quietly, and the others read it all."""
    with Job(make(pack_numbers(tmp_path / "data", 9, 5)), workers=5, whole=4) as job:
        assert [sorted(flat(job.epoch())) for _ in range(2)] == [list(range(9))] * 2
    with Job(make(str(tmp_path / "data")), workers=3, whole=16) as job:
        assert [[len(step) for step in job.epoch()] for _ in range(2)] == [[9], [9]]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_empty_dataset_has_epochs_without_a_batch(tmp_path: Path, workers: int) -> None:
    with Job(make(pack_numbers(tmp_path / "data", 0, 3)), ranks=2, workers=workers) as job:
        assert [len(loader) for loader in job.loaders] == [0, 0]
        assert [len(dataset) for dataset in job.datasets] == [0, 0]
        assert [job.epoch() for _ in range(3)] == [[], [], []]
        state = job.state()
        assert job.load(state).epoch() == []


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_tensors_where_nobody_says_how_to_make_them(url: str, workers: int) -> None:
    with StreamingDataset(url) as dataset:
        batches = list(StreamingDataLoader(dataset, batch_size=16, num_workers=workers))
    assert torch.equal(torch.cat(batches), torch.arange(COUNT))
    assert [len(batch) for batch in batches] == [16, 16, 16, 12]


def test_single_items_without_a_batch_size(url: str) -> None:
    """``batch_size=None`` of the loader: items come as they are, one by one."""
    with StreamingDataset(url, shuffle=True, seed=11, shuffle_window=3) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=None, num_workers=2, collate_fn=int)
        assert len(loader) == COUNT
        items = list(loader)
    with forebay.open_dataset(url, shuffle=True, seed=11, shuffle_window=3) as plain:
        assert items == list(plain)


def test_every_sample_comes_once_over_ranks_that_know_no_batch_size(url: str) -> None:
    datasets = [make(url)(rank=rank, world_size=3) for rank in range(3)]
    shares = [list(dataset) for dataset in datasets]
    assert [len(share) for share in shares] == [len(dataset) for dataset in datasets]
    assert sorted(flat(shares)) == list(range(COUNT))
    even = [make(url, drop_last=True)(rank=rank, world_size=3) for rank in range(3)]
    assert [len(list(dataset)) for dataset in even] == [20, 20, 20]
    for dataset in (*datasets, *even):
        dataset.close()


def test_set_epoch_chooses_the_order_until_it_is_chosen_again(url: str, expected: list[list[list[int]]]) -> None:
    with Job(make(url), workers=2) as job:
        job.datasets[0].set_epoch(2)
        assert job.epoch() == expected[2]
        assert job.epoch() == expected[2]
        job.datasets[0].set_epoch(1)
        assert job.epoch() == expected[1]
        assert job.datasets[0].epoch == 1


def test_leaving_an_epoch_early_begins_it_anew(url: str, expected: list[list[list[int]]]) -> None:
    """With workers that live on, too, and batches of the old iteration still under way."""
    with Job(make(url), workers=2) as job:
        for _, step in zip(range(3), job.steps(), strict=False):
            assert len(step[0]) == WHOLE
        assert [job.epoch() for _ in range(3)] == expected


def test_two_loaders_over_one_dataset_do_not_disturb_one_another(url: str, expected: list[list[list[int]]]) -> None:
    """Interleaved, each reads the epoch whole; each loader says its own batch size."""
    with StreamingDataset(url, shuffle=True, seed=11, shuffle_window=3) as dataset:
        small = StreamingDataLoader(dataset, batch_size=4, collate_fn=as_list)
        large = StreamingDataLoader(dataset, batch_size=WHOLE, collate_fn=as_list)
        first, second = iter(small), iter(large)
        halves = [next(first)]
        wholes = [next(second)]
        halves += first
        wholes += second
    assert flat(halves) == flat(wholes)
    assert [sorted(batch) for batch in wholes] == expected[0]


def test_an_iterator_whose_workers_serve_a_newer_one_says_so(url: str, expected: list[list[list[int]]]) -> None:
    """Risk H13, I8: workers that live on serve one iterator; the older one must not take the newer one's batches."""
    with StreamingDataset(url, shuffle=True, seed=11, shuffle_window=3) as dataset:
        loader = StreamingDataLoader(
            dataset, batch_size=WHOLE, num_workers=2, persistent_workers=True, collate_fn=as_list
        )
        older = iter(loader)
        first = next(older)
        newer = iter(loader)
        assert next(newer) == first
        with pytest.raises(PrefetchClosedError, match="another iterator"):
            next(older)
        assert [sorted(batch) for batch in (first, *newer)] == expected[0]
        assert [sorted(batch) for batch in loader] == expected[1]
