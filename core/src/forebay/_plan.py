"""The order of an epoch: a pure function of the seed, the epoch, the partitions and the dataset's chunks.

Unshuffled, chunks come in storage order. Shuffled, chunks are permuted, and each sample of the chunk at place ``p``
gets the sort key ``p + u * window`` with ``u`` uniform in [0, 1). Samples come in key order: at any time samples of at
most ``window`` neighbouring chunks are mixed, the first samples need the first chunk alone, and nothing is sorted over
more than one window at a time. Since the keys of a place can be drawn by themselves, any position is found without
going through what comes before it.

Canonical partitions divide the samples into parts of equal length, each with an order of its own, so that machines can
read different chunks; which samples a partition has is drawn once for all epochs, so that each machine finds its chunks
in its cache again. The idea is that of MosaicML Streaming's canonical nodes. Sample ``i`` of partition ``p`` is number
``i * partitions + p`` of the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["EpochPlan", "Lane", "Step", "share"]

#: Says that a generator is that of the partitions, which no epoch changes.
_FIXED = 0xF1EED


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
        partitions: Parts of equal length that are ordered each by itself; at least 1.
        turn: The partition that gets the first of the samples that cannot be divided evenly.
    """

    sizes: NDArray[np.int64]
    seed: int = 0
    epoch: int = 0
    window: int = 0
    partitions: int = 1
    turn: int = 0

    @property
    def total(self) -> int:
        """Samples of the epoch."""
        return int(self.sizes.sum())

    def length(self, partition: int) -> int:
        """Samples of a partition; any two differ by at most one."""
        return share(self.total, self.partitions, partition, self.turn)

    def lane(self, partition: int = 0) -> Lane:
        """The order of one partition."""
        return Lane(self, partition)

    def chunks(self, partition: int = 0) -> NDArray[np.int64]:
        """Chunk numbers of a partition in reading order, without the chunks that hold no sample."""
        return self.parts(partition)[0]

    def parts(self, partition: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Chunk, first sample and number of samples of each part of a chunk that a partition has, in reading order."""
        filled = np.flatnonzero(self.sizes).astype(np.int64)
        if self.partitions == 1:
            if self.window:
                self._random(0).shuffle(filled)
            return filled, np.zeros(len(filled), np.int64), self.sizes[filled]
        if self.window:
            np.random.default_rng([self._seed, _FIXED, 0, 0, 1]).shuffle(filled)
        ends = np.cumsum(self.sizes[filled])
        begin = sum(self.length(before) for before in range(partition))
        end = begin + self.length(partition)
        if begin == end:
            nothing = np.empty(0, np.int64)
            return nothing, nothing, nothing
        first, last = (int(ends.searchsorted(place, side="right")) for place in (begin, end - 1))
        chunks = filled[first : last + 1]
        firsts = np.zeros(len(chunks), np.int64)
        counts = self.sizes[chunks]
        counts[-1] -= int(ends[last]) - end
        firsts[0] = begin - (int(ends[first]) - int(self.sizes[chunks[0]]))
        counts[0] -= firsts[0]
        if self.window:
            order = np.arange(len(chunks))
            self._random(0, 1 + partition).shuffle(order)
            chunks, firsts, counts = chunks[order], firsts[order], counts[order]
        return chunks, firsts, counts

    def steps(self, lane: Lane | None = None) -> Iterator[Step]:
        """Yield the epoch of one partition step by step; ``lane`` is the result of `lane`, if the caller has it."""
        lane = self.lane() if lane is None else lane
        last = len(lane.chunks) - 1
        open_from = 0
        for place in range(last + 1):
            if not self.window:
                first = int(lane.firsts[place])
                within = range(first, first + int(lane.counts[place]))
                yield Step(place=place, places=None, offsets=within, finished=(place,))
                continue
            done_before = place + 1 if place == last else max(place + 2 - self.window, open_from)
            places, offsets = lane.emission(place)
            yield Step(place=place, places=places, offsets=offsets, finished=tuple(range(open_from, done_before)))
            open_from = done_before

    @property
    def _seed(self) -> int:
        # Negative seeds are as good as any: SeedSequence wants what is not negative.
        return self.seed & (2**64 - 1)

    def _random(self, *stream: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, self.epoch, *stream])

    def draw(self, chunk: int, first: int, count: int) -> Drawn:
        """Draw the keys of a part's samples."""
        stream = (1 + chunk, first) if first else (1 + chunk,)
        return Drawn(self._random(*stream).random(count) * self.window, first, self.window)


class Drawn:
    """The keys of one part of a chunk, counted from the part's place, in ascending order.

    ``keys`` and ``samples`` are arrays of one length; ``before[d]`` is how many of the samples are read less than ``d``
    places after the part's own.

    Args:
        keys: Float64 array, one key a sample, each at least 0 and below ``window``.
        first: Sample of the chunk that the first key is of.
        window: Places that the part is read over.
    """

    __slots__ = ("before", "keys", "samples")

    def __init__(self, keys: NDArray[np.float64], first: int, window: int) -> None:
        # The default sort is several times as quick as the stable one, which only equal keys need: these are rare, and
        # the order of them is not to depend on the processor.
        order = keys.argsort()
        ascending = keys[order]
        if (ascending[1:] == ascending[:-1]).any():
            order = keys.argsort(kind="stable")
            ascending = keys[order]
        self.keys = ascending
        self.samples: NDArray[np.int64] = order + first if first else order
        self.before: list[int] = ascending.searchsorted(np.arange(window)).tolist()
        self.before.append(len(keys))  # also where the product was rounded up


def share(total: int, shares: int, number: int, turn: int = 0) -> int:
    """How many of ``total`` things share ``number`` gets, where share ``turn`` is the first to get one more."""
    each, left = divmod(total, shares)
    return each + ((number - turn) % shares < left)


class Lane:
    """The samples of one partition in reading order, from any position on.

    ``chunks``, ``firsts`` and ``counts`` are int64 arrays, one entry a place: the chunk, its first sample that belongs
    to the partition, and how many do.
    """

    def __init__(self, plan: EpochPlan, partition: int) -> None:
        self.chunks, self.firsts, self.counts = plan.parts(partition)
        self._plan = plan
        self._window = plan.window
        self._ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts)])
        self.length = int(self._ends[-1])
        self._position = 0
        self._drawn: dict[int, Drawn] = {}
        # What is emitted at the current place, and the positions of the first of it and behind the last.
        self._place = -1
        self._base = self._end = 0
        self._places = np.empty(0, np.int64)
        self._offsets = np.empty(0, np.int64)

    @property
    def done_before(self) -> int:
        """The first place that something at the position or after it may read."""
        if self._position >= self.length:
            return len(self.chunks)
        if not self._window:
            return int(self._ends.searchsorted(self._position, side="right")) - 1
        here = self._place + (self._position >= self._end)
        return max(here - self._window + 1, 0)

    def seek(self, position: int) -> None:
        """Go to a position between 0 and the length."""
        self._position = position
        if not self._window or self._base <= position < self._end or position >= self.length:
            return
        # What comes before a place is no more than the chunks before it hold: this one begins in time.
        place = int(self._ends.searchsorted(position, side="right")) - 1
        if self._base <= position and self._place + 1 >= place:
            place, base = self._place + 1, self._end
        else:
            base = self._emitted_before(place)
        while (end := self._emitted_before(place + 1)) <= position:
            place, base = place + 1, end
        self._places, self._offsets = self.emission(place)
        self._place, self._base, self._end = place, base, end

    def take(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return place and sample within the chunk of the next ``count`` samples, int64 each, and go on behind them."""
        if not self._window:
            numbers = np.arange(self._position, self._position + count, dtype=np.int64)
            places = self._ends.searchsorted(numbers, side="right") - 1
            self._position += count
            return places, numbers - self._ends[places] + self.firsts[places]
        position, stop = self._position, self._position + count
        if self._base <= position and stop <= self._end:
            self._position = stop
            part = slice(position - self._base, stop - self._base)
            return self._places[part], self._offsets[part]
        taken: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        while position < stop:
            self.seek(position)
            begin, position = position - self._base, min(stop, self._end)
            end = position - self._base
            taken.append((self._places[begin:end], self._offsets[begin:end]))
        self._position = stop
        if len(taken) == 1:
            return taken[0]
        if not taken:
            return self._places[:0], self._offsets[:0]
        return np.concatenate([part[0] for part in taken]), np.concatenate([part[1] for part in taken])

    def emission(self, place: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Place and sample within the chunk of what is read once ``place`` is there; only where there is a window."""
        self._forget(place)
        oldest, last = max(place - self._window + 1, 0), place == len(self.chunks) - 1
        keys, offsets, counts = [], [], []
        for source in range(oldest, place + 1):
            drawn, begin = self._draw(source), place - source
            part = slice(drawn.before[begin], drawn.before[-1 if last else begin + 1])
            own = drawn.keys[part]
            keys.append(own)
            offsets.append(drawn.samples[part])
            counts.append(len(own))
        places = np.arange(oldest, place + 1).repeat(counts)
        # Each part is in order, which a stable sort makes use of.
        order = (np.concatenate(keys) - (place - places)).argsort(kind="stable")
        return places[order], np.concatenate(offsets)[order]

    def _emitted_before(self, place: int) -> int:
        """How many samples come before those of ``place``."""
        if place >= len(self.chunks):
            return self.length
        oldest = max(place - self._window + 1, 0)
        newer = sum([self._draw(source).before[place - source] for source in range(oldest, place)])
        return int(self._ends[oldest]) + newer

    def _draw(self, place: int) -> Drawn:
        found = self._drawn.get(place)
        if found is None:
            chunk, first, count = int(self.chunks[place]), int(self.firsts[place]), int(self.counts[place])
            found = self._drawn[place] = self._plan.draw(chunk, first, count)
        return found

    def _forget(self, place: int) -> None:
        """Drop the keys that emissions from ``place`` on do not need."""
        for old in [known for known in self._drawn if not place - self._window <= known <= place + self._window]:
            del self._drawn[old]
