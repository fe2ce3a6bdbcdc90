"""What the training process tells its workers: epoch, position and ranks, in memory that they share.

A persistent worker keeps the dataset that it was given; only shared memory tells it of the next epoch. The memory has
no name that a killed run could leave behind: torch hands on its descriptor.
"""

from __future__ import annotations

import torch

__all__ = ["Control"]

#: Workers that can mark how far they are; where there are more, a plain loader's epochs do not advance by themselves.
MARKS = 1024
#: Mark of a worker that began its share; at its end the mark is the next epoch.
_BEGUN = -1
_EPOCH, _START, _EPOCH_IS_SET, _RANK, _WORLD, _PARTITIONS, _BATCH, _DROP_LAST, _ROUND, _FIRST_MARK = range(10)


class _Cell:
    """One number of the block, as an attribute."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, block: Control, _: type[Control]) -> int:
        return int(block.cells[self._place])

    def __set__(self, block: Control, value: int) -> None:
        block.cells[self._place] = value


class Control:
    """Numbers that the processes of one loader share; a copy made by pickle alone has its own."""

    epoch = _Cell(_EPOCH)
    start = _Cell(_START)
    epoch_is_set = _Cell(_EPOCH_IS_SET)
    rank = _Cell(_RANK)
    world = _Cell(_WORLD)
    partitions = _Cell(_PARTITIONS)
    batch = _Cell(_BATCH)
    drop_last = _Cell(_DROP_LAST)
    #: Another one whenever the workers of a plain loader read an epoch to its end, or a state was loaded: what was
    #: loaded or begun in an earlier round counts no more.
    round = _Cell(_ROUND)

    def __init__(self, memory: torch.Tensor | None = None) -> None:
        if memory is None:
            memory = torch.zeros(_FIRST_MARK + MARKS, dtype=torch.int64)
        if not memory.is_shared():  # type: ignore[no-untyped-call]
            memory.share_memory_()  # type: ignore[no-untyped-call]
        self._memory = memory
        self.cells = self._memory.numpy()

    def take_over(self, other: Control) -> None:
        """Take the numbers of another block, but for the marks."""
        self.cells[:_FIRST_MARK] = other.cells[:_FIRST_MARK]

    def begin(self, worker: int, workers: int, *, at_end: bool) -> None:
        """Note that a worker of a plain loader starts; ``at_end``: behind the last sample of its share."""
        self._advance(workers)
        if worker < MARKS and not at_end:
            self.cells[_FIRST_MARK + worker] = _BEGUN

    def finish(self, worker: int, workers: int, *, epoch: int, round: int) -> None:
        """Note that a worker of a plain loader has read its share of ``epoch`` to the end, begun in ``round``.

        Once all of them have, the next epoch begins.
        """
        if round != self.round:
            return  # of an iteration that was left early, and that the workers went on with
        if worker < MARKS:
            self.cells[_FIRST_MARK + worker] = epoch + 1
        self._advance(workers)

    @property
    def is_being_read(self) -> bool:
        """Whether workers of a plain loader began an epoch that they did not all read to its end."""
        return bool(self.cells[_FIRST_MARK:].any())

    def begin_round(self) -> None:
        """Forget how far the workers are."""
        self.round += 1
        self.cells[_FIRST_MARK:] = 0

    def _advance(self, workers: int) -> None:
        marks = self.cells[_FIRST_MARK : _FIRST_MARK + workers]
        ended = int(marks[0])
        if ended > 0 and workers <= MARKS and bool((marks == ended).all()):
            self.start = 0
            if not self.epoch_is_set:
                self.epoch = ended
            self.begin_round()

    def __reduce__(self) -> tuple[type[Control], tuple[torch.Tensor]]:
        return Control, (self._memory,)
