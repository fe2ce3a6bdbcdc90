"""Who trains with us: rank and number of ranks from arguments, the environment or the process group."""

from __future__ import annotations

import multiprocessing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from servers.streams import TOO_MANY_WORKERS, Job, as_list, flat, pack_numbers
from servers.torchjob import late_group

from forebay.exceptions import ConfigError
from forebay.torch import StreamingDataLoader, StreamingDataset

pytestmark = pytest.mark.filterwarnings(TOO_MANY_WORKERS)

COUNT, PER_CHUNK = 44, 7
ORDER: dict[str, Any] = {"shuffle": True, "shuffle_window": 3}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return pack_numbers(tmp_path_factory.mktemp("ranks") / "data", COUNT, PER_CHUNK)


def told(monkeypatch: pytest.MonkeyPatch, **numbers: object) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, number in numbers.items():
        monkeypatch.setenv(name, str(number))


def test_ranks_of_the_environment_read_disjoint_shares_of_one_order(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Risk I1, I5: nobody gave a seed, and all ranks have the same; workers hear of the ranks too."""
    shares = []
    for rank in range(3):
        told(monkeypatch, RANK=rank, WORLD_SIZE=3)
        with StreamingDataset(url, **ORDER) as dataset:
            shares.append(list(StreamingDataLoader(dataset, batch_size=4, collate_fn=as_list, num_workers=rank)))
    assert sorted(flat(flat(shares))) == list(range(COUNT))
    assert {len(share) for share in shares} == {4}
    with Job(lambda **ranks: StreamingDataset(url, **ORDER, **ranks), ranks=3, whole=12) as job:
        assert list(job.steps()) == [list(step) for step in zip(*shares, strict=True)]


def test_the_environment_is_asked_at_each_iteration(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Risk I3: a dataset that was made before the numbers were known is divided all the same."""
    told(monkeypatch)
    with StreamingDataset(url, **ORDER) as dataset:
        assert len(dataset) == COUNT
        loader = StreamingDataLoader(dataset, batch_size=4, num_workers=2, collate_fn=as_list)
        shares = []
        for rank in range(2):
            told(monkeypatch, RANK=rank, WORLD_SIZE=2)
            assert len(dataset) == COUNT // 2
            dataset.set_epoch(0)
            shares.append(flat(loader))
    assert sorted(flat(shares)) == list(range(COUNT))


def test_the_process_group_may_come_after_the_dataset_and_the_loader(url: str) -> None:
    """Risk I3: also with workers that are spawned, which know of no group."""
    context = multiprocessing.get_context("forkserver")
    pipes, processes = [], []
    with_store = Path(url).with_name("store")
    for rank in range(2):
        ours, theirs = context.Pipe()
        process = context.Process(target=late_group, args=(theirs, str(with_store), rank, 2, url, ORDER))
        process.start()
        pipes.append(ours)
        processes.append(process)
    answers = []
    for pipe in pipes:
        assert pipe.poll(60), "no answer"
        answers.append(pipe.recv())
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    alone, without_workers, with_workers = zip(*answers, strict=True)
    assert list(alone) == [COUNT, COUNT], "without a group each is alone"
    for shares in (without_workers, with_workers):
        assert sorted(flat(shares)) == list(range(COUNT))


def test_arguments_rule_over_the_environment_and_switch_the_division_off(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Risk I4: a validation set that each rank reads whole."""
    told(monkeypatch, RANK=1, WORLD_SIZE=4)
    with StreamingDataset(url, rank=0, world_size=1, **ORDER) as dataset:
        assert sorted(dataset) == list(range(COUNT))
        loader = StreamingDataLoader(dataset, batch_size=8, num_workers=2, collate_fn=as_list)
        assert sorted(flat(loader)) == list(range(COUNT))
    with StreamingDataset(url, rank=2, world_size=3, **ORDER) as dataset:
        assert len(list(dataset)) == len(dataset) < COUNT // 2


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("count", "world", "batch"), [(97, 2, 4), (3, 4, 2), (23, 1, 24), (23, 2, None)])
def test_length_is_the_share_that_the_newest_loader_gives(
    tmp_path: Path, count: int, world: int, batch: int | None, drop_last: bool
) -> None:
    """Who divides by `len(dataset)` divides by what comes, though only the loader knows batch size or drop_last."""
    url = pack_numbers(tmp_path / "data", count, 5)
    for rank in range(world):
        with StreamingDataset(url, rank=rank, world_size=world, drop_last=drop_last) as dataset:
            alone = len(dataset)
            assert alone == len(list(dataset))
            for size in (batch, 3):
                loader = StreamingDataLoader(dataset, batch_size=size, collate_fn=as_list if size else None)
                given = sum(len(part) if size else 1 for part in loader)
                assert len(dataset) == given
            before = dataset.state_dict()
            StreamingDataLoader(dataset, batch_size=5, drop_last=not drop_last)
            assert dataset.state_dict() == before, "making a loader changes no position"
            again = StreamingDataset(url, rank=rank, world_size=world, drop_last=drop_last)
            assert alone == len(again) == len(list(again))
            again.close()


@pytest.mark.parametrize(("ranks", "workers", "partitions"), [(3, 2, 2), (5, 0, 3), (6, 0, 4), (7, 0, 1), (2, 3, 5)])
def test_ranks_workers_and_partitions_that_do_not_divide_one_another(
    url: str, ranks: int, workers: int, partitions: int
) -> None:
    """Risk I6, I8: two epochs, each sample once in each; what is repeated is counted."""
    with Job(
        lambda **numbers: StreamingDataset(url, partitions=partitions, **ORDER, **numbers),
        ranks=ranks,
        workers=workers,
        whole=ranks,
    ) as job:
        for epoch in range(1, 3):
            items = flat(flat(step) for step in job.steps())
            padded = sum(loader.stats().padded for loader in job.loaders)
            assert set(items) == set(range(COUNT))
            assert len(items) == COUNT + padded // epoch
            assert padded == epoch * (-COUNT % ranks)


def test_no_worker_is_idle_and_none_reads_what_is_not_its_own(url: str) -> None:
    """Risk I7: one layer divides the samples; every worker decodes its batches and no more."""
    with Job(lambda **ranks: StreamingDataset(url, **ORDER, **ranks), ranks=2, workers=2, whole=8) as job:
        assert sorted(flat(job.epoch())) == list(range(COUNT))
        for loader in job.loaders:
            reports = list(loader._reports.values())
            assert len(reports) == 2
            assert sorted(report.items for report in reports) == [10, 12]
            assert loader.stats().items == 22


def test_machines_are_counted_and_become_the_partitions(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Risk I6: four machines of two ranks are four partitions, and a loaded state keeps its own."""
    found = []
    for local, partitions in ((2, 4), (8, 1), (1, 8), (3, 1), (16, 1)):
        told(monkeypatch, RANK=5, WORLD_SIZE=8, LOCAL_WORLD_SIZE=local)
        with StreamingDataset(url, **ORDER) as dataset:
            state = dataset.state_dict()
            assert state["partitions"] == partitions
            found.append(state)
    with StreamingDataset(url, partitions=6, **ORDER) as dataset:
        assert dataset.state_dict()["partitions"] == 6
    told(monkeypatch)
    with StreamingDataset(url, **ORDER) as dataset:
        dataset.load_state_dict(found[0])
        assert dataset.state_dict()["partitions"] == 4


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ({"rank": 0}, "world_size"),
        ({"world_size": 2}, "rank"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"rank": -1, "world_size": 2}, "rank"),
        ({"rank": 0, "world_size": 0}, "world_size"),
        ({"rank": True, "world_size": 2}, "rank"),
        ({"rank": "0", "world_size": 2}, "rank"),
        ({"partitions": 0}, "partitions"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"drop_last": 1}, "drop_last"),
    ],
)
def test_arguments_that_cannot_be_are_named(url: str, arguments: dict[str, Any], option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        StreamingDataset(url, **arguments)
    assert caught.value.option == option


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ({"RANK": 1}, "WORLD_SIZE"),
        ({"WORLD_SIZE": 2}, "RANK"),
        ({"RANK": 4, "WORLD_SIZE": 4}, "rank 4 of 4 ranks, from the environment"),
        ({"RANK": "one", "WORLD_SIZE": 4}, "RANK='one' in the environment"),
        ({"RANK": 0, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": "two"}, "LOCAL_WORLD_SIZE='two'"),
        ({"RANK": 0, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": -2}, "LOCAL_WORLD_SIZE"),
        ({"RANK": 0, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 0}, "LOCAL_WORLD_SIZE"),
    ],
)
def test_an_environment_that_cannot_be_is_an_error_and_not_a_guess(
    url: str, monkeypatch: pytest.MonkeyPatch, numbers: dict[str, object], text: str
) -> None:
    """Risk I2: ranks that guess differently wait for one another for ever."""
    told(monkeypatch, **numbers)
    with pytest.raises(ConfigError, match=text):
        StreamingDataset(url, **ORDER)


def test_the_batch_size_of_the_loader_is_not_that_of_the_dataset(url: str) -> None:
    """Each loader says its own; the dataset's is for plain loaders, and stays what it was."""
    with StreamingDataset(url, batch_size=3, **ORDER) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=10, collate_fn=as_list)
        assert [len(batch) for batch in islice(loader, 2)] == [10, 10]
        assert dataset.batch_size == 3
