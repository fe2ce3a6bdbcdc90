"""How an epoch is dealt to ranks: arithmetic, checked against a plain model for all small numbers."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.torch._deal import Deal


@st.composite
def deals(draw: st.DrawFn) -> Deal:
    total = draw(st.integers(0, 60))
    return Deal(
        total=total,
        end=total,
        partitions=draw(st.integers(1, 5)),
        consumed=draw(st.integers(0, total)),
        batch=draw(st.integers(1, 7)),
        world=draw(st.integers(1, 6)),
        rank=0,
        drop_last=draw(st.booleans()),
        pad=draw(st.booleans()),
    )


def ranks(deal: Deal) -> list[Deal]:
    return [replace(deal, rank=rank) for rank in range(deal.world)]


def given_at(deal: Deal, step: int) -> list[int]:
    """Numbers in the epoch of what a rank gets at a step, in order."""
    return [i * deal.partitions + p for p, first, stop in deal.runs(step) for i in range(first, stop)]


@settings(max_examples=300)
@given(deals())
def test_every_sample_is_dealt_once_in_the_step_that_it_belongs_to(deal: Deal) -> None:
    """Risk I1, I6: what a step holds depends on the global batch alone, whatever ranks and partitions there are."""
    whole = deal.batch * deal.world
    for step in range(deal.steps):
        expected = list(range(deal.consumed + step * whole, min(deal.consumed + (step + 1) * whole, deal.total)))
        shares = [given_at(each, step) for each in ranks(deal)]
        own = [share for each, share in zip(ranks(deal), shares, strict=True) if not each.repeats(step)]
        assert sorted(sample for share in own for sample in share) == expected
        for each, share in zip(ranks(deal), shares, strict=True):
            if each.repeats(step):
                assert len(share) == 1
                assert set(share) <= set(expected)
    left = deal.total - deal.consumed
    assert deal.steps == (left // whole if deal.drop_last else -(-left // whole))


@settings(max_examples=300)
@given(deals())
def test_ranks_have_equal_steps_and_sizes_that_differ_by_at_most_one(deal: Deal) -> None:
    """Risk I2: a rank with a batch less waits for the others for ever."""
    assert len({each.steps for each in ranks(deal)}) == 1
    for step in range(deal.steps):
        counts = [len(given_at(each, step)) for each in ranks(deal)]
        assert max(counts) - min(counts) <= 1
        if step < deal.steps - 1 or deal.drop_last:
            assert set(counts) == {deal.batch}
        if deal.pad:
            assert min(counts) >= 1
            assert not any(each.repeats(step) for each in ranks(deal)) or max(counts) == 1
        else:
            assert not any(each.repeats(step) for each in ranks(deal))
    for each in ranks(deal):
        assert each.samples == sum(len(given_at(each, step)) for step in range(each.steps))
        for worker in range(3):
            own = range(worker, each.steps, 3)
            assert each.samples_of(worker, 3) == sum(len(given_at(each, step)) for step in own)


@settings(max_examples=300)
@given(deals(), st.integers(1, 6), st.integers(1, 7), st.data())
def test_dealing_on_after_any_step_with_other_ranks_loses_and_repeats_nothing(
    deal: Deal, world: int, batch: int, data: st.DataObject
) -> None:
    """Risk H5, H14."""
    done = data.draw(st.integers(0, deal.steps))
    before = [s for step in range(done) for each in ranks(deal) if not each.repeats(step) for s in given_at(each, step)]
    after = replace(deal, consumed=deal.consumed_after(done), world=world, batch=batch, drop_last=False, pad=True)
    rest = [
        s
        for step in range(after.steps)
        for each in ranks(after)
        if not each.repeats(step)
        for s in given_at(each, step)
    ]
    assert len(set(before + rest)) == len(before) + len(rest)
    if done < deal.steps or not deal.drop_last:
        assert sorted(before + rest) == list(range(deal.consumed, deal.total))
    else:
        assert not rest, "a finished epoch gives nothing more, also where its last step was dropped"


@given(deals())
def test_neighbouring_ranks_read_the_same_partitions(deal: Deal) -> None:
    """The ranks of a machine are neighbours: where partitions are a multiple of machines each has its own."""
    machines = deal.partitions
    two = replace(deal, world=2 * machines, total=deal.partitions * 40, end=deal.partitions * 40, consumed=0, batch=3)
    for step in range(two.steps):
        if step == two.steps - 1 and not two.drop_last:
            continue
        for each in ranks(two):
            assert {partition for partition, _, _ in each.runs(step)} <= {each.rank // 2}
