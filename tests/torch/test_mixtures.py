"""Mixtures: exact proportions, the members' own orders, ranks and workers, cycling, resume, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from servers.streams import TOO_MANY_WORKERS, Job, flat, pack_numbers, serve_numbers

import forebay
from forebay.exceptions import ConfigError
from forebay.torch import CombinedStreamingDataset, ParallelStreamingDataset, StreamingDataset

pytestmark = pytest.mark.filterwarnings(TOO_MANY_WORKERS)

#: Lengths of the members; the numbers of each begin at a thousand of its own.
LENGTHS = (40, 30, 13)
ORDER: dict[str, Any] = {"shuffle": True, "seed": 4, "shuffle_window": 3}
Make = Callable[..., Any]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("mixtures")
    return [pack_numbers(folder / f"{n}", length, 6, first=1000 * n) for n, length in enumerate(LENGTHS)]


def combined(urls: list[str], **arguments: Any) -> Make:
    def make(**ranks: Any) -> CombinedStreamingDataset:
        return CombinedStreamingDataset([StreamingDataset(url, **ORDER) for url in urls], **arguments, **ranks)

    return make


def parallel(urls: list[str], **arguments: Any) -> Make:
    def make(**ranks: Any) -> ParallelStreamingDataset:
        return ParallelStreamingDataset([StreamingDataset(url, **ORDER) for url in urls], **arguments, **ranks)

    return make


def own_orders(urls: list[str], epoch: int = 0) -> list[list[int]]:
    orders = []
    for url in urls:
        with forebay.open_dataset(url, **ORDER) as plain:
            plain.set_epoch(epoch)
            orders.append(list(plain))
    return orders


def close(dataset: Any) -> None:
    dataset.close()
    for member in dataset.datasets:
        member.close()


def counts(items: list[int]) -> list[int]:
    counted = Counter(item // 1000 for item in items)
    return [counted[member] for member in range(len(LENGTHS))]


@pytest.mark.parametrize(
    ("weights", "cycle", "expected"),
    [
        (None, False, [40, 30, 13]),
        ((1, 1, 1), False, [13, 13, 13]),
        ((2, 1, 0), False, [40, 20, 0]),
        ((0.4, 0.3, 0.13), False, [40, 30, 13]),
        ((1, 2, 0.1), False, [15, 30, 1]),
        ((1, 1, 1), True, [40, 40, 40]),
        ((4, 1, 1), True, [120, 30, 30]),
        ((0, 1, 1), True, [0, 30, 30]),
        ((1, 0.1, 0.1), True, [300, 30, 30]),
    ],
)
def test_each_epoch_has_exactly_the_proportions_that_were_asked_for(
    urls: list[str], weights: Any, cycle: bool, expected: list[int]
) -> None:
    dataset = combined(urls, weights=weights, cycle=cycle)()
    for epoch in range(2):
        items = list(dataset)
        assert counts(items) == expected
        assert len(items) == len(dataset) == sum(expected)
        for member, order in enumerate(own_orders(urls, epoch)):
            mine = [item for item in items if item // 1000 == member]
            assert mine[: len(order)] == order[: len(mine)], "a member's samples come in its own order"
            for whole in range(0, len(mine) - len(order) + 1, len(order)):
                assert sorted(mine[whole : whole + len(order)]) == sorted(order), "each pass has each sample once"
            if len(mine) >= 2 * len(order):
                assert mine[: len(order)] != mine[len(order) : 2 * len(order)], "a pass has an order of its own"
    close(dataset)


def test_the_mixture_is_random_deterministic_and_anew_each_epoch(urls: list[str]) -> None:
    def members(**arguments: Any) -> list[list[int]]:
        dataset = combined(urls[:2], weights=(1, 1), **arguments)()
        epochs = [[item // 1000 for item in dataset] for _ in range(2)]
        close(dataset)
        return epochs

    first = members(seed=1)
    assert first == members(seed=1)
    assert first[0] != first[1]
    assert first != members(seed=2)
    # Sixty draws of two: by chance some neighbours are of the same member, not nearly all or none.
    same = sum(a == b for a, b in zip(first[0], first[0][1:], strict=False))
    assert 15 < same < 45


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("weights", [None, (3, 1, 2)])
def test_ranks_and_workers_get_the_same_steps(urls: list[str], weights: Any, partitions: int) -> None:
    """Risk I1, I6 for mixtures: each sample once, at the same global step on each topology."""
    arguments = {"weights": weights, "cycle": weights is not None, "partitions": partitions, "seed": 5}
    found = []
    for ranks, workers in ((1, 0), (2, 2), (4, 0)):
        with Job(combined(urls, **arguments), ranks=ranks, workers=workers) as job:
            found.append([[sorted(flat(step)) for step in job.steps()] for _ in range(2)])
        for dataset in job.datasets:
            close(dataset)
    whole = [[sorted(set(step)) for step in epoch] for epoch in found[0]]
    assert all([[sorted(set(step)) for step in epoch] for epoch in each] == whole for each in found)
    if weights is None:
        assert [sorted(flat(epoch)) for epoch in whole] == [sorted(flat(own_orders(urls)))] * 2


@pytest.mark.parametrize(
    ("make", "members", "arguments"),
    [
        (combined, 3, {"weights": (3, 1, 2), "cycle": True, "seed": 5}),
        (combined, 3, {"weights": (1, 2, 1), "partitions": 3}),
        (parallel, 3, {"cycle": True}),
        (parallel, 2, {"partitions": 2}),
    ],
    ids=["combined-cycle", "combined", "parallel-cycle", "parallel"],
)
def test_a_mixture_resumes_at_every_batch_on_other_topologies(
    urls: list[str], make: Callable[..., Make], members: int, arguments: dict[str, Any]
) -> None:
    """Risk H4, H5, H6, H11: one position over all members, that says where each of them is."""
    made = make(urls[:members], **arguments)
    with Job(made) as job:
        saved = job.states()
        following = [job.epoch() for _ in range(2)]
        unbroken = job.load(saved[0]).epoch()
    assert len(unbroken) == len(saved) - 1 >= 4
    for ranks, workers in ((1, 2), (2, 0), (4, 0)):
        with Job(made, ranks=ranks, workers=workers) as again:
            for done in reversed(range(0, len(saved) - 1, 1 + len(saved) // 8)):
                assert again.load(saved[done]).epoch() == unbroken[done:]
            assert again.load(saved[-1]).epoch() == following[0]
            again.load(saved[1])
            for _ in islice(again.steps(), 1):
                assert again.state() == saved[2]
            assert [again.epoch() for _ in range(3)] == [unbroken[1:], *following]
        for dataset in again.datasets:
            close(dataset)
    for dataset in job.datasets:
        close(dataset)


def test_a_position_far_into_a_long_mixture_is_found(tmp_path: Path) -> None:
    """Risk H16: choices are counted in blocks of some thousand, and a position lies in any of them."""
    long = [pack_numbers(tmp_path / f"{n}", 6000, 1500, first=100_000 * n) for n in range(2)]
    with Job(combined(long, weights=(1, 2), cycle=True), whole=500) as job:
        straight = flat(flat(step) for step in job.steps())
        state = {**job.state(), "epoch": 0}
        for position in (4095, 4096, 4097, 9000, 17_999):
            job.load({**state, "consumed": position})
            assert flat(flat(step) for step in job.steps()) == straight[position:]
    assert len(straight) == 18_000
    for dataset in job.datasets:
        close(dataset)


def test_parallel_gives_one_sample_of_each_and_ends_with_the_shortest(urls: list[str]) -> None:
    dataset = parallel(urls)()
    for epoch in range(2):
        assert list(dataset) == list(zip(*own_orders(urls, epoch), strict=False))
    assert len(dataset) == min(LENGTHS)
    close(dataset)


def test_parallel_with_cycle_reads_the_shorter_again_in_another_order(urls: list[str]) -> None:
    dataset = parallel(urls, cycle=True)()
    assert len(dataset) == max(LENGTHS)
    columns = list(zip(*dataset, strict=True))
    for column, order in zip(columns, own_orders(urls), strict=True):
        length = len(order)
        assert list(column[:length]) == order
        assert len(column) == max(LENGTHS)
        if 2 * length <= max(LENGTHS):
            assert sorted(column[length : 2 * length]) == sorted(order)
            assert list(column[length : 2 * length]) != order
    close(dataset)


def test_parallel_pairs_stay_together_over_ranks_and_workers(urls: list[str]) -> None:
    found = []
    for ranks, workers in ((1, 0), (2, 2), (4, 0)):
        with Job(parallel(urls[:2], partitions=2), ranks=ranks, workers=workers) as job:
            found.append(job.epoch())
        for dataset in job.datasets:
            close(dataset)
    assert found[0] == found[1] == found[2]
    assert len(flat(found[0])) == 30


def test_a_member_that_is_used_alone_too_is_not_disturbed(urls: list[str]) -> None:
    """A mixture has a position of its own; that of its members is theirs."""
    with StreamingDataset(urls[0], **ORDER) as member:
        alone = iter(member)
        first = list(islice(alone, 3))
        mixture = CombinedStreamingDataset([member, member])
        assert sorted(mixture) == sorted([*range(40)] * 2)
        assert [*first, *alone] == own_orders(urls)[0]
        assert member.state_dict()["epoch"] in (0, 1)


def test_each_member_is_fetched_once(tmp_path: Path) -> None:
    with (
        serve_numbers(tmp_path / "one", 24, 6) as (one, chunks),
        serve_numbers(tmp_path / "two", 24, 6) as (two, _),
    ):
        members = [StreamingDataset(server.url("data"), cache_dir=tmp_path / "cache", **ORDER) for server in (one, two)]
        with Job(lambda **ranks: CombinedStreamingDataset(members, seed=2, **ranks), ranks=2, workers=2) as job:
            for _ in range(2):
                assert sorted(flat(flat(step) for step in job.steps())) == sorted([*range(24)] * 2)
        for member in members:
            member.close()
        for server in (one, two):
            assert [len(server.requests_for(f"data/{chunk}", "GET")) for chunk in chunks] == [1] * 4


@pytest.mark.parametrize(
    "weights", [("a", 1), (1,), (1, 2, 3), (-1, 2), (0, 0), (float("nan"), 1), (float("inf"), 1)], ids=str
)
def test_weights_that_cannot_be_are_refused(urls: list[str], weights: Any) -> None:
    with pytest.raises(ConfigError, match="weights") as caught:
        combined(urls[:2], weights=weights)()
    assert caught.value.option == "weights"


def test_what_cannot_be_mixed_is_refused(urls: list[str], tmp_path: Path) -> None:
    empty = pack_numbers(tmp_path / "empty", 0, 3)
    cases: list[tuple[str, Callable[[], object]]] = [
        ("datasets", lambda: CombinedStreamingDataset([])),
        ("datasets", lambda: ParallelStreamingDataset([])),
        ("datasets", lambda: CombinedStreamingDataset([urls[0]])),  # type: ignore[list-item]
        ("cycle", combined(urls, cycle=1)),
        ("cycle", combined([urls[0], empty], weights=(1, 1), cycle=True)),
        ("cycle", parallel([urls[0], empty], cycle=True)),
        ("seed", combined(urls, seed=0.5)),
        ("seed", combined(urls, seed=True)),
        ("partitions", lambda: list(combined([urls[0], urls[2]], weights=(1, 1), cycle=True, partitions=14)())),
    ]
    for option, make in cases:
        with pytest.raises(ConfigError) as caught:
            make()
        assert caught.value.option == option


def test_empty_members_are_fine_where_nothing_is_asked_of_them(urls: list[str], tmp_path: Path) -> None:
    empty = pack_numbers(tmp_path / "empty", 0, 3)
    for make, length in (
        (combined([urls[2], empty]), 13),
        (combined([urls[2], empty], weights=(1, 0)), 13),
        (combined([urls[2], empty], weights=(1, 1)), 0),
        (combined([urls[2], empty], weights=(1, 0), cycle=True), 13),
        (parallel([urls[2], empty]), 0),
        (combined([empty]), 0),
        (parallel([empty, empty], cycle=True), 0),
    ):
        dataset = make()
        assert [len(list(dataset)) for _ in range(2)] == [length] * 2
        close(dataset)
