"""Loaders of others, torch's ``DataLoader`` and torchdata's ``StatefulDataLoader``, and the dataset without any."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from servers.streams import TOO_MANY_WORKERS, as_list, flat, pack_numbers
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import forebay
from forebay.exceptions import ConfigError
from forebay.torch import StreamingDataLoader, StreamingDataset

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        TOO_MANY_WORKERS,
        "ignore:'set_vital' is deprecated:UserWarning",  # torchdata calls it
    ),
]

COUNT, PER_CHUNK, BATCH, STEPS = 44, 7, 8, 6
ORDER: dict[str, Any] = {"shuffle": True, "seed": 4, "shuffle_window": 3}
WORKERS: dict[str, Any] = {"multiprocessing_context": "forkserver", "collate_fn": as_list}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return pack_numbers(tmp_path_factory.mktemp("plain") / "data", COUNT, PER_CHUNK)


@pytest.fixture(scope="module")
def straight(url: str) -> list[list[int]]:
    with forebay.open_dataset(url, **ORDER) as plain:
        return [list(plain) for _ in range(5)]


@pytest.fixture(scope="module")
def unbroken(straight: list[list[int]]) -> list[list[list[int]]]:
    return [[epoch[at : at + BATCH] for at in range(0, COUNT, BATCH)] for epoch in straight]


@pytest.fixture
def dataset(url: str) -> Iterator[StreamingDataset]:
    with StreamingDataset(url, batch_size=BATCH, **ORDER) as dataset:
        yield dataset


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_a_plain_loader_has_the_same_steps_and_advances_the_epoch(
    dataset: StreamingDataset, unbroken: list[list[list[int]]], workers: int
) -> None:
    """Risk I1, I7: batches of the dataset's batch size come in the plan's order; workers start anew each epoch."""
    more = WORKERS if workers else {"collate_fn": as_list}
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=workers, **more)
    assert len(loader) == STEPS
    assert [list(loader) for _ in range(3)] == unbroken[:3]
    assert dataset.epoch == 3


def test_persistent_workers_advance_by_themselves_and_follow_set_epoch(
    dataset: StreamingDataset, unbroken: list[list[list[int]]]
) -> None:
    """Risk H10: a worker has a copy of the dataset from before the first epoch, and still hears of the next."""
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=2, persistent_workers=True, **WORKERS)
    assert [list(loader) for _ in range(2)] == unbroken[:2]
    for epoch in (4, 1, 1, 3):
        dataset.set_epoch(epoch)
        assert list(loader) == unbroken[epoch]
    position = {**dataset.state_dict(), "epoch": 2, "consumed": 2 * BATCH}
    dataset.load_state_dict(position)
    assert list(loader) == unbroken[2][2:]
    assert list(loader) == unbroken[3], "the loaded epoch is the later word, and the position was used up"
    assert list(islice(loader, 4)) == unbroken[4][:4]
    dataset.load_state_dict(position)  # while workers go on with what nobody waits for
    assert list(loader) == unbroken[2][2:]


def test_a_plain_loader_that_is_left_early_begins_the_epoch_anew(url: str, unbroken: list[list[list[int]]]) -> None:
    with StreamingDataset(url, batch_size=2, **ORDER) as dataset:
        loader = DataLoader(dataset, batch_size=2, num_workers=2, persistent_workers=True, **WORKERS)
        assert flat(islice(loader, 3)) == flat(unbroken[0])[:6]
        assert [flat(loader) for _ in range(2)] == [flat(unbroken[0]), flat(unbroken[1])]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_position_that_only_a_plain_loaders_workers_know_is_not_made_up(
    dataset: StreamingDataset, unbroken: list[list[list[int]]], persistent: bool
) -> None:
    """Risk H4, H11: between epochs the dataset knows; within one it would tell the begin, and all would come again."""
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=2, persistent_workers=persistent, **WORKERS)
    for epoch in range(2):
        assert dataset.state_dict()["epoch"] == epoch
        batches = iter(loader)
        assert [next(batches) for _ in range(2)] == unbroken[epoch][:2]
        with pytest.raises(ConfigError, match="StreamingDataLoader"):
            dataset.state_dict()
        assert list(batches) == unbroken[epoch][2:]
    assert dataset.state_dict()["consumed"] == 0
    list(islice(loader, 2))
    with pytest.raises(ConfigError, match="StreamingDataLoader"):
        dataset.state_dict()
    assert list(dataset) == flat(unbroken[2])
    assert (dataset.state_dict()["consumed"], dataset.epoch) == (COUNT, 3)
    list(islice(loader, 2))
    dataset.set_epoch(1)
    assert dataset.state_dict()["epoch"] == 1
    list(islice(loader, 2))
    dataset.load_state_dict({**StreamingDataset(dataset.url, **ORDER).state_dict(), "epoch": 2, "consumed": 2 * BATCH})
    assert dataset.state_dict()["consumed"] == 2 * BATCH
    assert list(loader) == unbroken[2][2:]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_plain_loader_with_workers_begins_at_a_loaded_position(
    dataset: StreamingDataset, unbroken: list[list[list[int]]], persistent: bool
) -> None:
    """Risk H2, H10: the rest of the epoch, then whole epochs."""
    ours = StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=as_list)
    for _ in islice(ours, 4):
        pass
    state = dataset.state_dict()
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=2, persistent_workers=persistent, **WORKERS)
    if persistent:
        assert list(loader) == unbroken[0]
    dataset.load_state_dict(state)
    assert [list(loader) for _ in range(3)] == [unbroken[0][4:], *unbroken[1:3]]


def test_the_dataset_alone_can_be_left_and_resumed_at_every_item(url: str, straight: list[list[int]]) -> None:
    """Risk H1, H7, H12: without any loader; the position counts samples."""
    with StreamingDataset(url, **ORDER) as dataset:
        states = [dataset.state_dict()]
        for item in dataset:
            states.append(dataset.state_dict())
            assert len(states) - 2 == straight[0].index(item)
    with StreamingDataset(url, **ORDER) as dataset:
        for taken in (0, 1, BATCH, 23, COUNT - 1, COUNT):
            dataset.load_state_dict(states[taken])
            assert dataset.state_dict()["consumed"] == taken % COUNT
            assert list(dataset) == (straight[0][taken:] or straight[1])
        assert list(dataset) == straight[2]


def test_ranks_without_a_batch_size_resume_as_they_were(url: str, straight: list[list[int]]) -> None:
    """Risk H3: each rank has a state of its own, inside of a step; another topology is refused, not guessed."""
    rest: list[int] = []
    for rank in range(2):
        with StreamingDataset(url, rank=rank, world_size=2, **ORDER) as dataset:
            taken = list(islice(dataset, 5 + rank))
            state = dataset.state_dict()
        with StreamingDataset(url, rank=rank, world_size=2, **ORDER) as dataset:
            dataset.load_state_dict(state)
            assert dataset.state_dict() == state
            rest += [*taken, *dataset]
            assert len(list(dataset)) == COUNT // 2, "the next epoch is a whole one"
        with StreamingDataset(url, **ORDER) as dataset:
            dataset.load_state_dict(state)
            with pytest.raises(ConfigError, match=r"2 ranks.*1 ranks.*StreamingDataLoader") as caught:
                iter(dataset)
            assert caught.value.option == "batch_size"
            with pytest.raises(ConfigError, match="inside of a batch"):
                iter(StreamingDataLoader(dataset, batch_size=BATCH))
    assert sorted(rest) == list(range(COUNT))


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True), (4, True)])
def test_torchdatas_stateful_loader_resumes_at_every_batch(
    url: str, straight: list[list[int]], workers: int, persistent: bool
) -> None:
    """Risk H3, H7, H9: what follows a state is what follows it in an unbroken run, behind the last batch too.

    Three steps an epoch: with two workers one of them has fewer steps, and of four one has none.
    """
    batch = 16
    more = {**WORKERS, "persistent_workers": persistent} if workers else {"collate_fn": as_list}

    def loader(dataset: StreamingDataset) -> StatefulDataLoader[Any]:
        return StatefulDataLoader(dataset, batch_size=batch, num_workers=workers, **more)

    following = [epoch[at : at + batch] for epoch in straight for at in range(0, COUNT, batch)]
    saved: list[bytes] = []
    with StreamingDataset(url, batch_size=batch, **ORDER) as dataset:
        saving = loader(dataset)
        for _ in range(2):
            for found in saving:
                assert found == following[len(saved) - len(saved) // 4]
                saved.append(pickle.dumps(saving.state_dict()))
            saved.append(pickle.dumps(saving.state_dict()))
    for number, state in enumerate(saved[2:], 2):
        done = number + 1 - (number + 1) // 4  # a state within the loop a batch, and one behind the loop
        with StreamingDataset(url, batch_size=batch, **ORDER) as dataset:
            resumed = loader(dataset)
            resumed.load_state_dict(pickle.loads(state))
            epochs = [list(resumed) for _ in range(2)]
        rest = flat(epochs)
        assert rest == following[done : done + len(rest)], f"saved behind batch {done}"
        assert len(epochs[1]) == 3, "later epochs are whole"
        # torchdata hears of the end of an epoch in the pass after its incomplete last batch; docs/pytorch.md says so.
        assert len(epochs[0]) == (0 if number % 4 == 2 else -done % 3 or 3)


def test_torchdatas_loader_with_another_batch_size_or_other_ranks_is_refused(url: str) -> None:
    """Risk H14: its state has a position a worker, inside of steps, and those would be others."""
    with StreamingDataset(url, batch_size=4, **ORDER) as dataset:
        saving = StatefulDataLoader(dataset, batch_size=4, num_workers=2, **WORKERS)
        for _ in islice(saving, 3):
            pass
        state = saving.state_dict()
    changes: list[dict[str, Any]] = [{"batch_size": 8}, {"batch_size": 4, "rank": 0, "world_size": 2}]
    for change in changes:
        with StreamingDataset(url, **ORDER, **change) as dataset:
            resumed = StatefulDataLoader(dataset, batch_size=change["batch_size"], num_workers=2, **WORKERS)
            resumed.load_state_dict(state)
            with pytest.raises(ConfigError, match="the state was taken inside of a batch"):
                list(resumed)
