"""Canonical partitions: each a lane of its own, sought and read from any position, with chunks that epochs keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay._plan import EpochPlan, Lane, share

sizes = st.lists(st.integers(0, 7), max_size=12)


@st.composite
def plans(draw: st.DrawFn) -> EpochPlan:
    partitions = draw(st.integers(1, 6))
    return EpochPlan(
        sizes=np.array(draw(sizes), np.int64),
        seed=draw(st.integers(-(2**70), 2**70)),
        epoch=draw(st.integers(0, 1000)),
        window=draw(st.integers(0, 5)),
        partitions=partitions,
        turn=draw(st.integers(0, partitions - 1)),
    )


def samples(lane: Lane, count: int) -> list[tuple[int, int]]:
    """(chunk, sample of the chunk) of the next ``count`` samples."""
    places, offsets = lane.take(count)
    return list(zip(lane.chunks[places].tolist(), offsets.tolist(), strict=True))


def straight(plan: EpochPlan, partition: int) -> list[tuple[int, int]]:
    """A partition's order through `EpochPlan.steps`, which shares no seeking with `Lane.take`."""
    lane = plan.lane(partition)
    out = []
    for step in plan.steps(lane):
        places = np.full(len(step.offsets), step.place) if step.places is None else step.places
        out += list(zip(lane.chunks[places].tolist(), [int(offset) for offset in step.offsets], strict=True))
    return out


@given(plans())
def test_partitions_together_hold_every_sample_once_and_are_of_equal_length(plan: EpochPlan) -> None:
    lanes = [straight(plan, partition) for partition in range(plan.partitions)]
    everything = [(chunk, offset) for chunk, count in enumerate(plan.sizes.tolist()) for offset in range(count)]
    assert sorted(sample for lane in lanes for sample in lane) == everything
    lengths = [len(lane) for lane in lanes]
    assert lengths == [plan.length(partition) for partition in range(plan.partitions)]
    assert lengths == [plan.lane(partition).length for partition in range(plan.partitions)]
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(0, 100), st.integers(1, 9), st.integers(0, 8))
def test_those_with_one_more_begin_at_the_turn(total: int, shares: int, turn: int) -> None:
    given_to = [share(total, shares, number, turn) for number in range(shares)]
    assert sum(given_to) == total
    more = {(turn + extra) % shares for extra in range(total % shares)}
    assert given_to == [total // shares + (number in more) for number in range(shares)]


#: Fractions: how far to jump, and how much to read there.
hops = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=4)


@given(plans(), st.integers(0, 5), hops)
def test_reading_on_from_any_position_is_the_straight_order(
    plan: EpochPlan, partition: int, jumps: list[tuple[float, float]]
) -> None:
    """Risk H16: a position is found without reading what comes before it."""
    partition %= plan.partitions
    order = straight(plan, partition)
    lane = plan.lane(partition)
    for where, much in jumps:  # one lane for all: forwards and backwards, overlapping or not
        begin = round(where * len(order))
        count = round(much * (len(order) - begin))
        lane.seek(begin)
        assert samples(lane, count // 2) == order[begin : begin + count // 2]
        assert samples(lane, count - count // 2) == order[begin + count // 2 : begin + count]


@given(plans(), st.integers(0, 5), hops)
def test_what_lies_before_done_before_is_never_read_again(
    plan: EpochPlan, partition: int, jumps: list[tuple[float, float]]
) -> None:
    """A chunk that is given back too early would be read when it is gone, one given back too late holds the budget."""
    partition %= plan.partitions
    lane = plan.lane(partition)
    order = plan.lane(partition).take(lane.length)[0].tolist()
    position = 0
    for where, much in jumps:  # a worker jumps over the batches of the others
        position += round(where * (lane.length - position) / 2)
        count = round(much * (lane.length - position))
        lane.seek(position)
        lane.take(count)
        position += count
        later = order[position:]
        if later:
            assert lane.done_before <= min(later), "a place was given up that is read later"
            assert later[0] - lane.done_before < max(plan.window, 1)
        else:
            assert lane.done_before == len(lane.chunks), "places are kept to the end of the epoch"


@given(plans())
def test_a_partition_has_at_most_its_window_of_chunks_open(plan: EpochPlan) -> None:
    for partition in range(plan.partitions):
        lane = plan.lane(partition)
        front = -1
        for _ in range(lane.length):
            front = max(front, int(lane.take(1)[0][0]))
            assert front - lane.done_before + 1 <= max(plan.window, 1)


@pytest.mark.parametrize("window", [0, 4])
def test_a_partition_keeps_its_samples_over_the_epochs(window: int) -> None:
    """A machine finds in its cache what it fetched in the epoch before."""
    arguments: dict[str, Any] = {"sizes": np.full(12, 10), "seed": 5, "window": window, "partitions": 4}
    epochs = [EpochPlan(epoch=epoch, **arguments) for epoch in range(3)]
    for partition in range(4):
        orders = [straight(plan, partition) for plan in epochs]
        assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
        assert {chunk for chunk, _ in orders[0]} == set(epochs[1].chunks(partition).tolist())
        if window:
            assert orders[0] != orders[1] != orders[2]
        # Twelve chunks of ten in four parts of thirty: whole chunks, none of them another partition's.
        assert len(set(epochs[0].chunks(partition).tolist())) == 3


def test_a_chunk_is_cut_at_most_at_the_borders_of_partitions() -> None:
    plan = EpochPlan(sizes=np.full(30, 7), seed=2, window=3, partitions=4)
    owners = [chunk for partition in range(4) for chunk in plan.chunks(partition).tolist()]
    assert len(set(owners)) == 30
    assert len(owners) <= 30 + 3


def test_partitions_do_not_move_their_chunks_in_step() -> None:
    """Each partition is shuffled by itself: else chunks that lie side by side would come at the same time for ever."""
    moves = []
    for partition in (0, 1):
        one, two = (
            EpochPlan(sizes=np.full(64, 4), seed=1, epoch=epoch, window=2, partitions=2).chunks(partition).tolist()
            for epoch in (0, 1)
        )
        assert sorted(one) == sorted(two)
        moves.append([two.index(chunk) for chunk in one])
    assert moves[0] != moves[1]
