"""The order of an epoch: a pure function of the seed, the epoch and the dataset's chunks.

Unshuffled, chunks come in storage order. Shuffled, chunks are permuted, and each sample of the chunk at place ``p``
gets the sort key ``p + u * window`` with ``u`` uniform in [0, 1). Samples come in key order: at any time samples of at
most ``window`` neighbouring chunks are mixed, the first samples need the first chunk alone, and nothing is sorted over
more than one window at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["EpochPlan", "Step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is read once the chunk at ``place`` is there.

    ``places`` and ``offsets`` are int64 arrays of one length: the sample's chunk (as a place in the plan) and its
    number within that chunk, in reading order. ``places`` is None where every sample is of ``place`` itself, in order.
    ``finished`` are the places that nothing later reads.
    """

    place: int
    places: NDArray[np.int64] | None
    offsets: NDArray[np.int64] | range
    finished: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """The order of one epoch.

    Args:
        sizes: Samples of each chunk, int64, in storage order.
        seed: Any integer; equal seeds give equal orders.
        epoch: Number of the epoch.
        window: Chunks whose samples are mixed at one time; 0 for storage order.
    """

    sizes: NDArray[np.int64]
    seed: int = 0
    epoch: int = 0
    window: int = 0

    def chunks(self) -> NDArray[np.int64]:
        """Chunk numbers in reading order, without the chunks that hold no sample."""
        filled = np.flatnonzero(self.sizes).astype(np.int64)
        if self.window:
            self._random(0).shuffle(filled)
        return filled

    def steps(self, chunks: NDArray[np.int64] | None = None) -> Iterator[Step]:
        """Yield the epoch step by step; ``chunks`` is the result of `chunks`, if the caller has it already."""
        order = self.chunks() if chunks is None else chunks
        if not self.window:
            for place, chunk in enumerate(order):
                yield Step(place=place, places=None, offsets=range(int(self.sizes[chunk])), finished=(place,))
            return
        yield from self._shuffled(order)

    def _shuffled(self, order: NDArray[np.int64]) -> Iterator[Step]:
        keys = np.empty(0, np.float64)
        places = np.empty(0, np.int64)
        offsets = np.empty(0, np.int64)
        last = len(order) - 1
        open_from = 0
        for place, chunk in enumerate(order):
            size = int(self.sizes[chunk])
            fresh = place + self._random(1 + int(chunk)).random(size) * self.window
            keys = np.concatenate([keys, fresh])
            places = np.concatenate([places, np.full(size, place, np.int64)])
            offsets = np.concatenate([offsets, np.arange(size, dtype=np.int64)])
            now = np.full(len(keys), True) if place == last else keys < place + 1
            chosen = np.flatnonzero(now)
            chosen = chosen[np.argsort(keys[chosen], kind="stable")]
            done_before = place + 1 if place == last else max(place + 2 - self.window, open_from)
            yield Step(
                place=place,
                places=places[chosen],
                offsets=offsets[chosen],
                finished=tuple(range(open_from, done_before)),
            )
            open_from = done_before
            keys, places, offsets = keys[~now], places[~now], offsets[~now]

    def _random(self, stream: int) -> np.random.Generator:
        # Negative seeds are as good as any: SeedSequence wants what is not negative.
        return np.random.default_rng([self.seed & (2**64 - 1), self.epoch, stream])
