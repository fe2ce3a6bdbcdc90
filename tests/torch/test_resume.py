"""Save and resume: at every batch, on other ranks, workers and batch sizes, and what happens to a loaded position."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from servers.streams import TOO_MANY_WORKERS, Job, as_list, flat, pack_numbers, serve_numbers

import forebay
from forebay.exceptions import PrefetchClosedError
from forebay.torch import StreamingDataLoader, StreamingDataset

pytestmark = pytest.mark.filterwarnings(TOO_MANY_WORKERS)

COUNT, PER_CHUNK, WHOLE, STEPS = 44, 7, 8, 6
ORDER: dict[str, Any] = {"shuffle": True, "seed": 4, "shuffle_window": 3}
TOPOLOGIES = [(1, 0), (2, 0), (4, 0), (1, 1), (1, 3), (2, 2)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return pack_numbers(tmp_path_factory.mktemp("resume") / "data", COUNT, PER_CHUNK)


@pytest.fixture(scope="module")
def straight(url: str) -> list[list[int]]:
    """Five epochs of the dataset's plain iteration, which has no positions."""
    with forebay.open_dataset(url, **ORDER) as plain:
        return [list(plain) for _ in range(5)]


@pytest.fixture(scope="module")
def unbroken(straight: list[list[int]]) -> list[list[list[int]]]:
    """The same epochs step by step."""
    return [steps(epoch) for epoch in straight]


@pytest.fixture(scope="module")
def states(url: str) -> list[dict[str, Any]]:
    """The state before each step of the first epoch and behind the last, saved by one rank without workers."""
    with Job(make(url)) as job:
        return job.states()


def steps(order: list[int], whole: int = WHOLE) -> list[list[int]]:
    return [sorted(order[at : at + whole]) for at in range(0, len(order), whole)]


def make(url: str, **arguments: Any) -> Any:
    return lambda **ranks: StreamingDataset(url, **ORDER, **arguments, **ranks)


@pytest.fixture(params=TOPOLOGIES, ids=lambda param: f"{param[0]}x{param[1]}")
def job(request: pytest.FixtureRequest, url: str) -> Iterator[Job]:
    ranks, workers = request.param
    with Job(make(url), ranks=ranks, workers=workers, whole=WHOLE) as job:
        yield job


def test_a_state_of_any_batch_continues_on_any_topology(
    job: Job, states: list[dict[str, Any]], unbroken: list[list[list[int]]]
) -> None:
    """Risk H1, H3, H5, H7, H10 and H11: a grid of saved positions, ranks and workers, prefetched batches left out.

    The states that a topology saves are those of any other, so loading one of them stands for all pairs.
    """
    assert len(states) == STEPS + 1
    assert job.states() == states
    for done in reversed(range(STEPS + 1)):
        rest = job.load(states[done]).epoch()
        if done < STEPS:
            assert rest == unbroken[0][done:]
        else:
            assert rest == unbroken[1], "behind the last batch the next epoch begins"
    # The last one loaded was the first: an epoch of its own, and two more.
    assert [job.epoch(), job.epoch()] == unbroken[1:3]


def test_a_break_inside_a_resumed_epoch_keeps_the_loaded_position(
    job: Job, states: list[dict[str, Any]], unbroken: list[list[list[int]]]
) -> None:
    """Risk H2, H6, H10: the rest from the loaded position once more, then full epochs in the unbroken order."""
    job.load(states[2])
    for number, step in enumerate(job.steps()):
        assert sorted(flat(step)) == unbroken[0][2 + number]
        if number == 1:
            break
    assert job.epoch() == unbroken[0][2:]
    assert [job.epoch() for _ in range(3)] == unbroken[1:4]


def test_a_collected_iterator_keeps_the_loaded_position(
    job: Job, states: list[dict[str, Any]], unbroken: list[list[list[int]]]
) -> None:
    """Risk H6: also where the loop was never begun, or its iterator was dropped without being closed."""
    job.load(states[3])
    iterators = [iter(loader) for loader in job.loaders]
    del iterators
    gc.collect()
    assert job.state() == states[3]
    iterators = [iter(loader) for loader in job.loaders]
    assert sorted(flat(next(iterator) for iterator in iterators)) == unbroken[0][3]
    assert job.state() == states[4]
    del iterators
    gc.collect()
    assert [job.epoch(), job.epoch()] == [unbroken[0][3:], unbroken[1]]


def test_the_state_is_current_within_a_resumed_epoch_and_right_after_the_load(
    job: Job, states: list[dict[str, Any]]
) -> None:
    """Risk H9 and H12: before the first batch it is what was loaded; then it moves with each batch, to the very end."""
    for done in (0, 2, STEPS - 1):
        assert job.load(states[done]).state() == states[done]
        assert job.states() == states[done:]


def test_a_run_that_is_handed_on_after_every_step(url: str, unbroken: list[list[list[int]]]) -> None:
    """Risk H9: the state of a resumed run is resumed, a dozen times, each time on another topology."""
    jobs = [Job(make(url), ranks=ranks, workers=workers, whole=WHOLE) for ranks, workers in TOPOLOGIES]
    state = jobs[0].state()
    delivered = []
    for turn in range(2 * STEPS + 3):
        job = jobs[turn % len(jobs)].load(state)
        delivered += [sorted(flat(step)) for step in islice(job.steps(), 1)]
        state = job.state()
    assert delivered == flat(unbroken)[: 2 * STEPS + 3]
    for job in jobs:
        job.__exit__()


@pytest.mark.parametrize(("ranks", "workers", "whole"), [(1, 0, 5), (3, 0, 6), (2, 2, 12), (1, 2, 3), (5, 0, 5)])
def test_another_batch_size_gets_each_remaining_sample_once(
    url: str, states: list[dict[str, Any]], straight: list[list[int]], ranks: int, workers: int, whole: int
) -> None:
    """Risk H5, H14: ranks, workers and batch size may change; the order stays, and is cut into other steps."""
    with Job(make(url), ranks=ranks, workers=workers, whole=whole) as job:
        for done in range(STEPS):
            assert job.load(states[done]).epoch() == steps(straight[0][done * WHOLE :], whole)
        assert job.epoch() == steps(straight[1], whole)


def test_another_batch_size_within_an_epoch_and_back(url: str, straight: list[list[int]]) -> None:
    """Risk H14: the position counts samples, not batches."""
    delivered: list[int] = []
    state = None
    for whole in (8, 3, 10, 4):
        with Job(make(url), whole=whole, ranks=1) as job:
            if state is not None:
                job.load(state)
            delivered += flat(flat(step) for step in islice(job.steps(), 2))
            state = job.state()
    assert state is not None
    assert delivered == straight[0][: len(delivered)]
    assert len(delivered) == state["consumed"] == COUNT
    with Job(make(url)) as job:
        assert job.load(state).epoch() == steps(straight[1])


@pytest.mark.parametrize("partitions", [2, 3])
def test_partitions_are_taken_from_the_state(url: str, partitions: int) -> None:
    """Risk H5: a run on other machines keeps the canonical partitions that it began with."""
    with Job(make(url, partitions=partitions), ranks=2) as job:
        saved = job.states()
        following = job.epoch()
    with Job(make(url, partitions=partitions)) as job:
        whole = job.epoch()
    assert sorted(flat(whole)) == list(range(COUNT))
    for ranks, workers in ((1, 0), (4, 0), (2, 2)):
        with Job(make(url), ranks=ranks, workers=workers) as job:
            for done in range(STEPS):
                assert job.load(saved[done]).epoch() == whole[done:]
            assert job.epoch() == following


def test_workers_that_are_started_anew_for_each_epoch(
    url: str, states: list[dict[str, Any]], unbroken: list[list[list[int]]]
) -> None:
    """Risk H2: what persistent workers do, those do that are not."""
    with Job(make(url), workers=2, persistent=False) as job:
        job.load(states[4])
        assert [sorted(flat(step)) for step in islice(job.steps(), 1)] == [unbroken[0][4]]
        assert [job.epoch() for _ in range(3)] == [unbroken[0][4:], *unbroken[1:3]]


@pytest.mark.parametrize("workers", [0, 2])
def test_drop_last_resumes_to_whole_steps_and_the_next_epoch(
    url: str, unbroken: list[list[list[int]]], workers: int
) -> None:
    with Job(make(url), workers=workers, ranks=2, drop_last=True) as job:
        saved = job.states()
        assert len(saved) == STEPS
        for done in range(STEPS):
            rest = unbroken[0][done : STEPS - 1] if done < STEPS - 1 else unbroken[1][:-1]
            assert job.load(saved[done]).epoch() == rest


def test_a_rest_that_is_smaller_than_a_dropped_step_leads_to_the_next_epoch(
    url: str, unbroken: list[list[list[int]]]
) -> None:
    """With ``drop_last`` and a larger batch nothing is left of the epoch: no endless resume, no error."""
    with Job(make(url), whole=4) as job:
        for _ in islice(job.steps(), 10):
            pass
        state = job.state()
    assert state["consumed"] == 40
    with Job(make(url), drop_last=True) as job:
        assert job.load(state).epoch() == []
        assert job.epoch() == unbroken[1][:-1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_goes_on_with_another_loader(
    url: str, states: list[dict[str, Any]], unbroken: list[list[list[int]]], workers: int
) -> None:
    """Risk H8: the position is the dataset's, whoever loaded it."""
    with StreamingDataset(url, **ORDER) as dataset:
        dataset.load_state_dict(states[2])
        for _ in range(2):  # the second loader finds the loaded position as the first one did
            loader = StreamingDataLoader(dataset, batch_size=WHOLE, num_workers=workers, collate_fn=as_list)
            assert [sorted(batch) for batch in islice(loader, 2)] == unbroken[0][2:4]
        loader = StreamingDataLoader(dataset, batch_size=WHOLE, collate_fn=as_list)
        loader.load_state_dict(dataset.state_dict())
        assert [sorted(batch) for batch in loader] == unbroken[0][4:]
        assert [sorted(batch) for batch in loader] == unbroken[1]


def test_set_epoch_keeps_a_position_that_was_loaded_for_that_epoch(url: str, unbroken: list[list[list[int]]]) -> None:
    """Risk H2: the usual loop calls ``set_epoch`` before each epoch, also before the one that is resumed."""
    with Job(make(url), workers=2) as job:
        job.epoch()
        for _ in islice(job.steps(), 3):
            pass
        state = job.state()
    assert state["epoch"] == 1
    with Job(make(url), workers=2) as job:
        job.load(state)
        found = []
        for epoch in (1, 2, 3):
            job.datasets[0].set_epoch(epoch)
            found.append(job.epoch())
        assert found == [unbroken[1][3:], *unbroken[2:4]]
        job.datasets[0].set_epoch(0)
        assert job.epoch() == unbroken[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_of_another_epoch_than_the_one_set_before_goes_on_to_the_next_epochs(
    url: str, states: list[dict[str, Any]], unbroken: list[list[list[int]]], workers: int
) -> None:
    """Risk H2: a script that sets epoch 5 first and loads its checkpoint then would read the loaded epoch for ever."""
    with Job(make(url), workers=workers) as job:
        job.datasets[0].set_epoch(5)
        job.load(states[2])
        assert [job.epoch() for _ in range(3)] == [unbroken[0][2:], *unbroken[1:3]]
    with Job(make(url), workers=workers) as job:
        job.datasets[0].set_epoch(0)
        job.load(states[2])
        found = [job.epoch() for _ in range(2)]
        assert found == [unbroken[0][2:], unbroken[0]], "a choice of the state's own epoch stands"


@pytest.mark.parametrize("made_by", ["loader", "dataset"])
@pytest.mark.parametrize("begun", [False, True])
def test_an_iterator_that_was_made_before_the_load_says_so(
    url: str, states: list[dict[str, Any]], unbroken: list[list[list[int]]], begun: bool, made_by: str
) -> None:
    """Risk H13: it neither goes on with the old position, nor spoils the new one."""
    with StreamingDataset(url, **ORDER) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=WHOLE, collate_fn=as_list)
        iterator: Iterator[Any] = iter(loader if made_by == "loader" else dataset)
        if begun:
            next(iterator)
        loader.load_state_dict(states[4])
        with pytest.raises(PrefetchClosedError, match="state was loaded"):
            next(iterator)
        assert loader.state_dict() == states[4]
        assert [sorted(batch) for batch in loader] == unbroken[0][4:]


def test_an_exhausted_iterator_stays_exhausted_after_a_load(url: str, states: list[dict[str, Any]]) -> None:
    """Risk H13: its end does not count as the end of the epoch that was loaded."""
    with Job(make(url)) as job:
        iterator = iter(job.loaders[0])
        for _ in range(STEPS):
            next(iterator)
        job.load(states[1])
        with pytest.raises((StopIteration, PrefetchClosedError)):
            next(iterator)
        assert job.state() == states[1]


def test_a_resumed_epoch_fetches_only_what_it_still_reads(tmp_path: Path) -> None:
    """Risk H16: the position is sought, not read up to."""
    with serve_numbers(tmp_path / "data", 96, 8) as (server, chunks):
        url = server.url("data")
        options: dict[str, Any] = {**ORDER, "prefetch": 2}
        with StreamingDataset(url, cache_dir=tmp_path / "one", **options) as dataset:
            loader = StreamingDataLoader(dataset, batch_size=8, collate_fn=as_list)
            for _ in islice(loader, 9):
                pass
            state = loader.state_dict()
            rest = flat(islice(loader, 9, None))
        server.forget_requests()
        with StreamingDataset(url, cache_dir=tmp_path / "two", **options) as dataset:
            loader = StreamingDataLoader(dataset, batch_size=8, collate_fn=as_list)
            loader.load_state_dict(state)
            assert flat(loader) == rest
        fetched = {name for name in chunks if server.requests_for(f"data/{name}", "GET")}
    assert fetched == {chunks[number // 8] for number in rest}
    # 24 of 96 samples are left: three chunks, and those that the window of three had begun.
    assert len(fetched) <= 3 + 2


def test_a_rank_with_a_cache_of_its_own_fetches_only_chunks_of_its_batches(tmp_path: Path) -> None:
    """Risk H16: looking ahead is no excuse either, where a batch is larger than a chunk: also after a resume."""
    with serve_numbers(tmp_path / "data", 128, 8) as (server, chunks):

        def make(rank: int, world_size: int) -> StreamingDataset:
            cache = tmp_path / f"cache{rank}"
            return StreamingDataset(server.url("data"), cache_dir=cache, rank=rank, world_size=world_size)

        with Job(make, ranks=2, whole=32) as job:
            job.load({**job.state(), "consumed": 32})
            shares = [flat(loader) for loader in job.loaders]
            fetched = [loader.stats().chunks_fetched for loader in job.loaders]
        assert [len(share) for share in shares] == [48, 48]
        assert fetched == [6, 6]
        asked = [len(server.requests_for(f"data/{chunk}", "GET")) for chunk in chunks]
        assert asked == [0] * 4 + [1] * 12
