"""One worker's way through its share of an epoch: whole batches, read ahead of the consumer."""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from forebay._dataset import Pace
from forebay._feed import SKIPPED, ChunkFeed
from forebay._stats import merge_stats
from forebay.torch._deal import Deal
from forebay.torch._mixture import Mixture, Selection
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
            planned: deque[list[tuple[int, Selection]]] = deque()
            while True:
                while any(feed.wants_more for feed in feeds) and (block := next(upcoming, None)):
                    planned.append(self._plan(feeds, block))
                if not planned:
                    return
                before = sum(feed.decoding for feed in feeds)
                for feed in feeds:
                    feed.begin()
                for step, selected in planned.popleft():
                    read = [feed.read(count) for feed, count in zip(feeds, selected.counts, strict=True)]
                    items = [item for item in selected.assemble(read) if item is not SKIPPED]
                    yield StepItems(step, items, self.deal.repeats(step), step == numbers[-1], self.members)
                pace.took(sum(feed.decoding for feed in feeds) - before)

    def _blocks(self, numbers: range, pace: Pace) -> Iterator[range]:
        """Steps that are planned and decoded together, as many as one call decodes well."""
        at = 0
        while at < len(numbers):
            size = max(pace.items // self.deal.batch, 1)
            yield numbers[at : at + size]
            at += size

    def _plan(self, feeds: Sequence[ChunkFeed], block: range) -> list[tuple[int, Selection]]:
        """Tell the feeds what a block of steps needs."""
        selected = [self.mixture.select(self.deal.runs(step)) for step in block]
        for member, feed in enumerate(feeds):
            feed.add([run for one in selected for run in one.wanted[member]])
        return list(zip(block, selected, strict=True))

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
