"""The order of an epoch: every sample once, a pure function, and never more chunks open than the window says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay._plan import EpochPlan

sizes = st.lists(st.integers(0, 7), max_size=12)


def samples(plan: EpochPlan) -> list[tuple[int, int]]:
    lane = plan.lane()
    order = lane.chunks
    out: list[tuple[int, int]] = []
    for step in plan.steps(lane):
        places = np.full(len(step.offsets), step.place) if step.places is None else step.places
        out += [(int(order[place]), int(offset)) for place, offset in zip(places, step.offsets, strict=True)]
    return out


@given(sizes, st.integers(-(2**70), 2**70), st.integers(0, 1000), st.integers(0, 5))
def test_every_sample_comes_exactly_once(counts: list[int], seed: int, epoch: int, window: int) -> None:
    plan = EpochPlan(sizes=np.array(counts, np.int64), seed=seed, epoch=epoch, window=window)
    everything = [(chunk, offset) for chunk, count in enumerate(counts) for offset in range(count)]
    assert sorted(samples(plan)) == everything
    if window == 0:
        assert samples(plan) == everything


@given(sizes, st.integers(1, 5))
def test_no_more_chunks_are_open_than_the_window_holds(counts: list[int], window: int) -> None:
    plan = EpochPlan(sizes=np.array(counts, np.int64), seed=3, window=window)
    opened: set[int] = set()
    finished: set[int] = set()
    for step in plan.steps():
        opened.add(step.place)
        used = {step.place} if step.places is None else set(step.places.tolist())
        assert used <= opened, "a sample comes before its chunk"
        assert not used & finished, "a sample comes after its chunk was given back"
        assert len(opened) <= window
        opened -= set(step.finished)
        finished |= set(step.finished)
    assert not opened, "a chunk is never given back"


def test_the_order_is_a_pure_function_of_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[tuple[int, int]]:
        return samples(EpochPlan(sizes=np.full(10, 50), seed=seed, epoch=epoch, window=4))

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


@pytest.mark.parametrize("window", [1, 4])
def test_samples_are_mixed_over_the_window(window: int) -> None:
    plan = EpochPlan(sizes=np.full(20, 100), seed=0, window=window)
    neighbours = sum(a[0] == b[0] for a, b in zip(samples(plan), samples(plan)[1:], strict=False))
    # Within one chunk every neighbour is of the same chunk; in a window of four about one in four is.
    assert neighbours / 1999 > 0.95 if window == 1 else neighbours / 1999 < 0.4


def test_the_first_samples_need_the_first_chunk_alone() -> None:
    """Risk A15: the first item must not wait for a window of chunks."""
    first = next(iter(EpochPlan(sizes=np.full(10, 100), seed=0, window=8).steps()))
    assert first.place == 0
    assert len(first.offsets) > 0
