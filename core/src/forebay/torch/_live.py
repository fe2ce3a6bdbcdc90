"""An iteration under way: where it began, what it gave, and the position that follows from that."""

from __future__ import annotations

from dataclasses import dataclass, replace

from forebay.torch._deal import Deal
from forebay.torch._position import Position

__all__ = ["Live"]


@dataclass(slots=True)
class Live:
    """An iteration: where it began, and what it gave so far.

    ``taken`` counts items of an iteration by items, with ``worker`` of ``workers`` where those are not None; ``steps``
    counts steps of a loader.
    """

    begun: Position
    deal: Deal
    serial: int
    worker: tuple[int, int] | None = None
    round: int = 0
    taken: int = 0
    steps: int = 0
    ended: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """What a number of items taken depends on."""
        return (self.deal.batch, self.deal.world, *(self.worker or ()))

    def position(self) -> Position:
        """The place behind what was given."""
        begun, deal = self.begun, self.deal
        if self.worker is not None:
            # Also at the end: the end of a worker's share is not that of the epoch, others may have more of it.
            taken = deal.samples_of(*self.worker) if self.ended else self.taken
            return replace(begun, inside=taken, shape=self.shape) if taken != begun.inside else begun
        if self.ended:
            return Position(epoch=begun.epoch, start=deal.end)
        if self.steps:
            return Position(epoch=begun.epoch, start=deal.consumed_after(self.steps))
        if self.taken == begun.inside:
            return begun
        if self.taken >= deal.samples:
            return Position(epoch=begun.epoch, start=deal.end)
        if deal.world == deal.partitions == 1:
            return Position(epoch=begun.epoch, start=begun.start + self.taken)
        steps, inside = divmod(self.taken, deal.batch)
        shape = self.shape if inside else ()
        return Position(epoch=begun.epoch, start=deal.consumed_after(steps), inside=inside, shape=shape)
