"""One worker's way through its share of an epoch: whole batches, read ahead of the consumer."""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from forebay._dataset import Pace
from forebay._feed import SKIPPED, ChunkFeed
from forebay._stats import merge_stats
from forebay.torch._deal import Deal
from forebay.torch._mixture import Assemble, Mixture
from forebay.types import Stats

if TYPE_CHECKING:
    from forebay._dataset import ChunkedDataset

__all__ = ["Share", "StepItems"]


@dataclass(frozen=True, slots=True)
class StepItems:
    """The rank's items of one step. ``repeated``: another rank has them too. ``last``: the worker's last step."""

    step: int
    items: list[Any]
    repeated: bool
    last: bool
    members: Sequence[ChunkedDataset]

    def count(self) -> tuple[str, Stats]:
        """Name the process that read them, and what it counted so far."""
        return _this_process(), merge_stats([member.stats() for member in self.members])


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one worker reads of an epoch.

    Args:
        members: The datasets.
        mixture: How the epoch's samples are made of theirs.
        then: The same of the epoch after it; the cache keeps what it can for it.
        deal: The rank's share.
        worker: Number of this worker, which reads the steps ``worker``, ``worker + workers``, ….
        workers: Workers of the rank.
        skip: Steps of this worker that were read before.
    """

    members: Sequence[ChunkedDataset]
    mixture: Mixture
    then: Mixture
    deal: Deal
    worker: int = 0
    workers: int = 1
    skip: int = 0

    def steps(self) -> Iterator[StepItems]:
        """Read the share step by step."""
        numbers = range(self.worker, self.deal.steps, self.workers)[self.skip :]
        if not numbers:
            return
        with ExitStack() as stack:
            feeds = [stack.enter_context(self._feed(member)) for member in range(len(self.members))]
            pace = Pace(max(min(member.batch_items for member in self.members), self.deal.batch))
            upcoming = self._blocks(numbers, pace)
            planned: deque[tuple[range, list[int], Assemble]] = deque()
            while True:
                while any(feed.wants_more for feed in feeds) and (steps := next(upcoming, None)):
                    planned.append((steps, *self._plan(feeds, steps)))
                if not planned:
                    return
                steps, counts, assemble = planned.popleft()
                before = sum(feed.decoding for feed in feeds)
                items = iter(assemble([feed.read() for feed in feeds]))
                pace.took(sum(feed.decoding for feed in feeds) - before)
                for step, count in zip(steps, counts, strict=True):
                    own = [item for item in islice(items, count) if item is not SKIPPED]
                    yield StepItems(step, own, self.deal.repeats(step), step == numbers[-1], self.members)

    def _blocks(self, numbers: range, pace: Pace) -> Iterator[range]:
        """Steps that are read together: few at first, since somebody waits, then what one call decodes well."""
        at = 0
        while at < len(numbers):
            size = max(pace.items // self.deal.batch, 1)
            yield numbers[at : at + size]
            at += size

    def _plan(self, feeds: Sequence[ChunkFeed], steps: range) -> tuple[list[int], Assemble]:
        """Tell the feeds what a block of steps needs; returns the samples of each step."""
        runs = [self.deal.runs(step) for step in steps]
        wanted, assemble = self.mixture.select([run for each in runs for run in each])
        for feed, own in zip(feeds, wanted, strict=True):
            feed.add(own)
        return [sum(stop - first for _, first, stop in each) for each in runs], assemble

    def _feed(self, member: int) -> ChunkFeed:
        deal, partitions = self.deal, self.mixture.partitions
        # Neighbouring ranks read neighbouring partitions: `Deal.runs` sorts a step's samples by partition.
        mine = range(deal.rank * partitions // deal.world, -(-(deal.rank + 1) * partitions // deal.world))
        return ChunkFeed(
            self.members[member],
            plan=partial(self.mixture.plan, member),
            then=self.then.plan(member, 0),
            partitions=mine,
            dense=self._dense(member),
        )

    def _dense(self, member: int) -> int:
        """Samples that a chunk needs in a lane so that each worker surely has one of them."""
        deal = self.deal
        between = self.workers * deal.world * max(2 * deal.batch, 16) / self.mixture.partitions
        return int(between / max(self.mixture.fraction(member), 1e-9)) + 1


_name: tuple[int, str] = (0, "")


def _this_process() -> str:
    """A name of this process that no other has, also where a pid comes again."""
    global _name
    if _name[0] != os.getpid():
        _name = (os.getpid(), f"{os.getpid()}-{secrets.token_hex(4)}")
    return _name[1]
