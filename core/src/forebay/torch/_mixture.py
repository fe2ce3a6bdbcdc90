"""What a sample of the stream is made of: one dataset's sample, one of several datasets', or one of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay._feed import SKIPPED, FeedRun
from forebay._plan import EpochPlan, share
from forebay.torch._deal import Run

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Choice", "Mixture", "Selection", "Single", "Zip"]

#: Passes over one dataset within an epoch have orders of their own: pass ``n`` is epoch ``epoch + n * PASS``.
PASS = 1 << 40
#: Says that a generator is that of a mixture's choices.
_MARK = 0x3117
#: Choices between two of the counts that are kept.
_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class Selection:
    """What a step is made of.

    ``wanted`` has the runs that each member reads, ``counts`` how many samples these are, and ``assemble`` makes the
    stream's items of one list of items a member. An item whose chunk was skipped stays `SKIPPED`.
    """

    wanted: list[list[FeedRun]]
    counts: list[int]
    assemble: Callable[[Sequence[list[Any]]], list[Any]]


class Mixture(ABC):
    """One epoch of a stream.

    Args:
        plans: The members' plans of the epoch, with the partitions of the stream.
    """

    def __init__(self, plans: Sequence[EpochPlan]) -> None:
        self.plans = tuple(plans)
        self.partitions = self.plans[0].partitions

    @property
    @abstractmethod
    def total(self) -> int:
        """Samples of the epoch."""

    @abstractmethod
    def select(self, runs: Sequence[Run]) -> Selection:
        """Return what the members have to read for the runs."""

    def fraction(self, member: int) -> float:
        """How many samples of a member one sample of the stream has on average."""
        return 1.0

    def plan(self, member: int, number: int) -> EpochPlan:
        """The plan of a member's pass ``number`` in this epoch."""
        plan = self.plans[member]
        return replace(plan, epoch=plan.epoch + number * PASS) if number else plan

    def _passes(self, member: int, partition: int, first: int, stop: int) -> list[FeedRun]:
        """Samples ``first`` to ``stop`` of a member's partition, which starts again where it ends."""
        length = self.plans[member].length(partition)
        runs = []
        while first < stop:
            number, begin = divmod(first, length)
            end = min(length, begin + stop - first)
            runs.append((number, partition, begin, end))
            first += end - begin
        return runs


class Single(Mixture):
    """One dataset."""

    @property
    def total(self) -> int:
        """See `Mixture`."""
        return self.plans[0].total

    def select(self, runs: Sequence[Run]) -> Selection:
        """See `Mixture`."""
        return Selection([[(0, *run) for run in runs]], [_size(runs)], _only)


class Zip(Mixture):
    """One sample of each member, as a tuple; ``count`` of them."""

    def __init__(self, plans: Sequence[EpochPlan], count: int) -> None:
        super().__init__(plans)
        self._count = count

    @property
    def total(self) -> int:
        """See `Mixture`."""
        return self._count

    def select(self, runs: Sequence[Run]) -> Selection:
        """See `Mixture`."""
        wanted = [[part for run in runs for part in self._passes(member, *run)] for member in range(len(self.plans))]
        return Selection(wanted, [_size(runs)] * len(self.plans), _zipped)


class Choice(Mixture):
    """Samples of the members in a random order, ``counts`` of each.

    Each partition has an order of choices of its own, drawn for the epoch; a member's samples come in its own order.
    """

    def __init__(self, plans: Sequence[EpochPlan], counts: Sequence[int], *, seed: int) -> None:
        # The samples of a member that cannot be divided evenly go to the partitions in turn, so that the sums are even.
        turns = [sum(counts[:member]) % plans[0].partitions for member in range(len(counts))]
        super().__init__([replace(plan, turn=turn) for plan, turn in zip(plans, turns, strict=True)])
        self._counts = counts
        self._seed = seed & (2**64 - 1)
        self._drawn: dict[int, tuple[NDArray[np.uint16], NDArray[np.int64]]] = {}

    @property
    def total(self) -> int:
        """See `Mixture`."""
        return sum(self._counts)

    def select(self, runs: Sequence[Run]) -> Selection:
        """See `Mixture`."""
        members = range(len(self.plans))
        wanted: list[list[FeedRun]] = [[] for _ in members]
        chosen: list[int] = []
        for partition, first, stop in runs:
            order, before = self._choices(partition)
            block = first // _BLOCK
            begins = before[block] + np.bincount(order[block * _BLOCK : first], minlength=len(members))
            ends = begins + np.bincount(order[first:stop], minlength=len(members))
            for member, begin, end in zip(members, begins.tolist(), ends.tolist(), strict=True):
                wanted[member] += self._passes(member, partition, begin, end)
            chosen += order[first:stop].tolist()
        counts = [sum(stop - first for _, _, first, stop in own) for own in wanted]
        return Selection(wanted, counts, lambda items: _chosen(chosen, items))

    def fraction(self, member: int) -> float:
        """See `Mixture`."""
        return self._counts[member] / max(self.total, 1)

    def _choices(self, partition: int) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
        """The member of each position of a partition, and how often each came before every block of positions."""
        found = self._drawn.get(partition)
        if found is None:
            members = len(self._counts)
            counts = [
                share(count, plan.partitions, partition, plan.turn)
                for count, plan in zip(self._counts, self.plans, strict=True)
            ]
            order = np.repeat(np.arange(members, dtype=np.uint16), counts)
            np.random.default_rng([self._seed, self.plans[0].epoch, _MARK, 1 + partition]).shuffle(order)
            blocks = [np.bincount(order[at : at + _BLOCK], minlength=members) for at in range(0, len(order), _BLOCK)]
            before = np.concatenate([np.zeros((1, members), np.int64), np.cumsum(blocks, axis=0).reshape(-1, members)])
            found = self._drawn[partition] = order, before
        return found


def _size(runs: Sequence[Run]) -> int:
    return sum(stop - first for _, first, stop in runs)


def _only(members: Sequence[list[Any]]) -> list[Any]:
    return members[0]


def _zipped(members: Sequence[list[Any]]) -> list[Any]:
    return [SKIPPED if any(item is SKIPPED for item in items) else items for items in zip(*members, strict=True)]


def _chosen(choices: list[int], members: Sequence[list[Any]]) -> list[Any]:
    streams = [iter(items) for items in members]
    return [next(streams[member]) for member in choices]
