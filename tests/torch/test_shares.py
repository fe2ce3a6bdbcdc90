"""What one worker reads, over all that may be combined: compared with a plain model, without any process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from servers.streams import pack_numbers

import forebay
from forebay.testing import memory_put
from forebay.torch._deal import Deal
from forebay.torch._mixture import Choice, Mixture, Single, Zip
from forebay.torch._reading import Share

#: Samples and samples a chunk of the datasets.
SHAPES = [(1, 1), (5, 2), (13, 5), (24, 3), (37, 9)]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The datasets in a store, so that chunks are fetched, leased and let go of."""
    folder = tmp_path_factory.mktemp("shares")
    for number, (count, per_chunk) in enumerate(SHAPES):
        for file in Path(pack_numbers(folder / f"{number}", count, per_chunk)).iterdir():
            memory_put(f"memory://shares/{number}/{file.name}", file.read_bytes())
    return [f"memory://shares/{number}" for number in range(len(SHAPES))]


@dataclass(frozen=True)
class Case:
    """How a stream is made, and divided. ``counts``: samples of each member that a mixture has."""

    members: tuple[int, ...]
    kind: str
    counts: tuple[int, ...]
    window: int
    partitions: int
    epoch: int
    batch: int
    world: int
    workers: int
    done: float
    drop_last: bool


cases = st.builds(
    Case,
    members=st.lists(st.integers(0, len(SHAPES) - 1), min_size=1, max_size=3, unique=True).map(tuple),
    kind=st.sampled_from(["choice", "zip"]),
    counts=st.tuples(*[st.integers(0, 50)] * 3),
    window=st.sampled_from([0, 1, 2, 3, 8]),
    partitions=st.sampled_from([1, 1, 2, 3, 5]),
    epoch=st.integers(0, 2),
    batch=st.sampled_from([1, 2, 3, 8, 40]),
    world=st.integers(1, 4),
    workers=st.integers(1, 4),
    done=st.sampled_from([0, 0.3, 0.9]),
    drop_last=st.booleans(),
)


class Model:
    """Which sample has which number, from the plans alone."""

    def __init__(self, case: Case, datasets: Sequence[Any]) -> None:
        self.mixture = mixture(case, datasets, case.epoch)
        self._case = case
        self._orders: dict[tuple[int, int, int], list[int]] = {}

    def sample(self, partition: int, place: int) -> Any:
        if isinstance(self.mixture, Choice):
            chosen = self.mixture._choices(partition)[0]
            member = int(chosen[place])
            return self._member(member, partition, int((chosen[:place] == member).sum()))
        items = [self._member(member, partition, place) for member in range(len(self.mixture.plans))]
        return tuple(items) if isinstance(self.mixture, Zip) else items[0]

    def _member(self, member: int, partition: int, place: int) -> int:
        number, within = divmod(place, self.mixture.plans[member].length(partition))
        key = member, number, partition
        if key not in self._orders:
            plan = self.mixture.plan(member, number)
            lane = plan.lane(partition)
            places, offsets = lane.take(lane.length)
            starts = np.concatenate([[0], np.cumsum(plan.sizes)])
            self._orders[key] = (starts[lane.chunks[places]] + offsets).tolist()
        return self._orders[key][within]


def mixture(case: Case, datasets: Sequence[Any], epoch: int) -> Mixture:
    plans = [dataset.epoch_plan(epoch, case.partitions) for dataset in datasets]
    if len(plans) == 1:
        return Single(plans)
    return Zip(plans, case.counts[0]) if case.kind == "zip" else Choice(plans, case.counts[: len(plans)], seed=3)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(case=cases)
def test_workers_read_exactly_the_samples_of_their_steps_in_order(
    urls: list[str], tmp_path_factory: pytest.TempPathFactory, case: Case
) -> None:
    """Risk I1, I6, H16: from any position, over chunks, partitions, passes, ranks and workers that do not divide."""
    asked = [case.counts[0]] * 3 if case.kind == "zip" else case.counts
    for member, count in zip(case.members, asked, strict=False):
        assume(len(case.members) == 1 or count <= SHAPES[member][0] or case.partitions <= SHAPES[member][0])
    shuffle: dict[str, Any] = {"shuffle": case.window > 0, "shuffle_window": max(case.window, 1)}
    cache = tmp_path_factory.getbasetemp() / "shares-cache"
    with ExitStack() as stack:
        datasets = [
            stack.enter_context(forebay.open_dataset(urls[member], cache_dir=cache, **shuffle))
            for member in case.members
        ]
        model = Model(case, datasets)
        total = model.mixture.total
        for rank in range(case.world):
            deal = Deal(
                total=total,
                end=total,
                partitions=case.partitions,
                consumed=int(case.done * total),
                batch=case.batch,
                world=case.world,
                rank=rank,
                drop_last=case.drop_last,
                pad=True,
            )
            for worker in range(case.workers):
                share = Share(
                    members=datasets,
                    mixture=model.mixture,
                    then=mixture(case, datasets, case.epoch + 1),
                    deal=deal,
                    worker=worker,
                    workers=case.workers,
                )
                read = {step.step: step.items for step in share.steps()}
                assert read == {
                    step: [model.sample(part, i) for part, first, stop in deal.runs(step) for i in range(first, stop)]
                    for step in range(worker, deal.steps, case.workers)
                }
