"""Which samples of an epoch a rank gets at each step: arithmetic alone, the same on every rank and worker."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Deal", "Run"]

#: Samples ``first`` to ``stop`` of a partition: (partition, first, stop).
Run = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """An epoch from some position on, dealt to ranks in steps of one batch each.

    Step ``s`` is made of the samples ``consumed + s * batch * world`` and the ``batch * world - 1`` after it, sorted by
    partition and cut into equal runs, so that neighbouring ranks, which share a machine, read the same partitions.

    Args:
        total: Samples of the epoch that are dealt.
        end: Samples of the epoch.
        partitions: Canonical partitions of the epoch; sample ``g`` is number ``g // partitions`` of ``g % partitions``.
        consumed: Samples that earlier steps had, over all ranks.
        batch: Samples a rank and step.
        world: Ranks.
        rank: Whose share this is.
        drop_last: Whether an incomplete last step is left out.
        pad: Whether ranks that an incomplete last step has no sample for repeat one of it.
    """

    total: int
    end: int
    partitions: int
    consumed: int
    batch: int
    world: int
    rank: int
    drop_last: bool
    pad: bool

    @property
    def steps(self) -> int:
        """Steps that are left; the same on every rank."""
        left, whole = max(self.total - self.consumed, 0), self.batch * self.world
        return left // whole if self.drop_last else -(-left // whole)

    def consumed_after(self, steps: int) -> int:
        """Samples of the epoch that are gone after ``steps`` more steps; all where no step is left."""
        if steps >= self.steps:
            return self.end
        return self.consumed + steps * self.batch * self.world

    @property
    def samples(self) -> int:
        """Samples that the rank gets in all steps."""
        return self.samples_of(0, 1)

    def samples_of(self, worker: int, workers: int) -> int:
        """Samples that one of the rank's workers gets, which reads the steps ``worker``, ``worker + workers``, …."""
        steps = range(worker, self.steps, workers)
        if not steps:
            return 0
        begin, end, _ = self._share(steps[-1])
        return (len(steps) - 1) * self.batch + end - begin

    def repeats(self, step: int) -> bool:
        """Whether the rank gets a sample that another rank has too, because there are fewer samples than ranks."""
        return self._share(step)[2]

    def runs(self, step: int) -> list[Run]:
        """The rank's samples of a step, as runs of partitions, in order."""
        low, high = self._span(step)
        begin, end, _ = self._share(step)
        if self.partitions == 1:
            return [(0, low + begin, low + end)] if end > begin else []
        runs = []
        passed = 0
        for partition in range(self.partitions):
            # Numbers i with low <= i * partitions + partition < high.
            first = -((partition - low) // self.partitions)
            stop = -((partition - high) // self.partitions)
            here, there = max(begin - passed, 0), min(end - passed, stop - first)
            if there > here:
                runs.append((partition, first + here, first + there))
            passed += stop - first
        return runs

    def _span(self, step: int) -> tuple[int, int]:
        whole = self.batch * self.world
        low = self.consumed + step * whole
        return low, min(low + whole, self.total)

    def _share(self, step: int) -> tuple[int, int, bool]:
        low, high = self._span(step)
        count, world, rank = high - low, self.world, self.rank
        if count == self.batch * world:
            return rank * self.batch, (rank + 1) * self.batch, False
        if count < world and self.pad:
            return rank % count, rank % count + 1, rank >= count
        return rank * count // world, (rank + 1) * count // world, False
