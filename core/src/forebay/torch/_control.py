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
_EPOCH, _START, _EPOCH_IS_SET, _RANK, _WORLD, _PARTITIONS, _BATCH, _DROP_LAST, _ROUND, _WORKERS, _FIRST_MARK = range(11)


class _Cell:
    """One number of the block, as an attribute."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, block: Control, _: type[Control]) -> int:
        return int(block.cells[self._place])

    def __set__(self, block: Control, value: int) -> None:
        block.cells[self._place] = value


class _SettledCell(_Cell):
    """One that the marks of workers may change."""

    def __get__(self, block: Control, owner: type[Control]) -> int:
        block.settle()
        return super().__get__(block, owner)


class Control:
    """Numbers that the processes of one loader share; a copy made by pickle alone has its own.

    The workers of a plain loader write marks and nothing else: whoever asks next for epoch, start or round finds that
    all of them are at the end, and draws the conclusion, which is the same for all who do so at one time. So a worker
    that goes on with what the loop has left, at any moment, changes nothing of what the training process has set since.
    """

    epoch = _SettledCell(_EPOCH)
    start = _SettledCell(_START)
    epoch_is_set = _Cell(_EPOCH_IS_SET)
    rank = _Cell(_RANK)
    world = _Cell(_WORLD)
    partitions = _Cell(_PARTITIONS)
    batch = _Cell(_BATCH)
    drop_last = _Cell(_DROP_LAST)
    #: Another one whenever the workers of a plain loader read an epoch to its end, or a state was loaded: what was
    #: loaded, begun or marked in an earlier round counts no more.
    round = _SettledCell(_ROUND)

    def __init__(self, memory: torch.Tensor | None = None) -> None:
        if memory is None:
            memory = torch.zeros(_FIRST_MARK + 3 * MARKS, dtype=torch.int64)
        if not memory.is_shared():  # type: ignore[no-untyped-call]
            memory.share_memory_()  # type: ignore[no-untyped-call]
        self._memory = memory
        self.cells = self._memory.numpy()
        # For each worker its mark, the crew that it was of, and the round.
        self._marks, self._crews, self._rounds = self.cells[_FIRST_MARK:].reshape(3, MARKS)

    def take_over(self, other: Control) -> None:
        """Take the numbers of another block, but for the marks."""
        other.settle()
        self.cells[:_FIRST_MARK] = other.cells[:_FIRST_MARK]

    def begin(self, worker: int, workers: int, *, crew: int, at_end: bool) -> None:
        """Note that a worker of a plain loader starts; ``at_end``: behind the last sample of its share.

        ``crew`` is a number that the workers of one iterator share: what those of an earlier one marked, which was left
        early, says nothing of these.
        """
        round = self.round
        if not at_end:
            self._mark(worker, workers, crew, round, _BEGUN)

    def finish(self, worker: int, workers: int, *, crew: int, epoch: int, round: int) -> None:
        """Note that a worker of a plain loader has read its share of ``epoch`` to the end, begun in ``round``.

        Once all of its crew have, the next epoch begins.
        """
        self._mark(worker, workers, crew, round, epoch + 1)

    def _mark(self, worker: int, workers: int, crew: int, round: int, mark: int) -> None:
        self.cells[_WORKERS] = workers
        if worker < MARKS:
            if mark == _BEGUN:  # first: until all is written, nobody is to take it for an end
                self._marks[worker] = mark
            self._crews[worker], self._rounds[worker] = crew, round
            self._marks[worker] = mark

    @property
    def is_being_read(self) -> bool:
        """Whether workers of a plain loader began an epoch that they did not all read to its end."""
        return bool((self._marks[self._rounds == self.round]).any())

    def begin_round(self) -> None:
        """Forget how far the workers are."""
        self.cells[_ROUND] += 1

    def settle(self) -> None:
        """Go on to the next epoch where the workers are all at the end of this one."""
        workers, round = int(self.cells[_WORKERS]), int(self.cells[_ROUND])
        ended = int(self._marks[0])
        if ended <= 0 or workers > MARKS:
            return
        crews = self._crews[:workers]
        same = (self._marks[:workers] == ended) & (crews == crews[0]) & (self._rounds[:workers] == round)
        if bool(same.all()):
            self.cells[_START] = 0
            if not self.epoch_is_set:
                self.cells[_EPOCH] = ended
            self.cells[_ROUND] = round + 1

    def __reduce__(self) -> tuple[type[Control], tuple[torch.Tensor]]:
        return Control, (self._memory,)
