"""One reader's way through a dataset whose samples are asked for bit by bit, in the order of a plan.

Iterating a `ChunkedDataset` reads a whole epoch; a rank's worker reads a share of it, batch by batch. It fetches the
chunks of its own samples, in the order in which it needs them, and lets go of each as soon as no later sample of its
lane can lie in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay._formats import ChunkReader
from forebay._plan import EpochPlan, Lane

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forebay._dataset import ChunkedDataset

__all__ = ["SKIPPED", "ChunkFeed", "FeedRun"]

#: Stands for a sample whose chunk was skipped.
SKIPPED = object()

#: Samples ``first`` to ``stop`` of a partition's lane: (pass, partition, first, stop).
FeedRun = tuple[int, int, int, int]


@dataclass(slots=True)
class _Track:
    """A lane and how far it is."""

    lane: Lane
    opened: set[int] = field(default_factory=set)  # places that were asked for and may be read again
    front: int = 0  # the furthest place that was read
    ordered: int = 0  # places from here on are asked for when they are read, or looked ahead for


@dataclass(slots=True)
class _Group:
    """Samples of one chunk in one batch and pass; ``slots`` are their places in the batch, None for all of it in order.

    ``first`` is the first place in the batch that needs this group or one behind it.
    """

    chunk: int
    place: int
    number: int
    offsets: NDArray[np.int64]
    slots: NDArray[np.int64] | None
    first: int = 0
    last: bool = False


@dataclass(slots=True)
class _Planned:
    """A batch that is known, and not yet read. ``before``: places to let go of first; ``reached``: how far the reader
    is in the order that it announced, once it has read this."""

    count: int
    groups: list[_Group]
    before: list[int]
    reached: int


class ChunkFeed:
    """Reads batches of one dataset; use it as a context manager.

    Args:
        dataset: Where the samples come from.
        plan: The plan of a pass over the dataset; pass 0 is the epoch's first.
        then: The plan of the next epoch's first pass: what the cache should keep chunks for.
        partitions: The partitions that this reader mostly reads.
        dense: A chunk with at least so many samples of a lane is needed by this reader, whatever the order.
    """

    def __init__(
        self,
        dataset: ChunkedDataset,
        *,
        plan: Callable[[int], EpochPlan],
        then: EpochPlan,
        partitions: Sequence[int],
        dense: int,
    ) -> None:
        self._dataset = dataset
        self._plan = plan
        self._then = then
        self._partitions = partitions
        self._dense = dense
        self._ahead = dataset.look_ahead
        self._tracks: dict[tuple[int, int], _Track] = {}
        self._order: list[int] = []
        self._place_of: dict[int, int] = {}
        self._uses: dict[int, int] = {}
        self._planned: deque[_Planned] = deque()
        self._announced: _Track | None = None  # the lane whose places are those of the order that was announced
        self._passed: dict[int, int] = {}  # how far that lane is once a place is let go of
        self._readers: dict[int, tuple[int, ChunkReader | None]] = {}  # with the pass that reads
        self._taken = -1
        # The batch that is being read, and how far.
        self._current = _Planned(0, [], [], 0)
        self._items: list[Any] = []
        self._groups_read = self._given = 0
        #: Seconds that decoding took so far.
        self.decoding = 0.0
        self._stack = ExitStack()

    def __enter__(self) -> ChunkFeed:
        plan = self._plan(0)
        with ExitStack() as stack:
            stack.enter_context(self._dataset.claim_window(plan.window * max(len(self._partitions), 1)))
            now, then = (_interleaved(each, self._partitions) for each in (plan, self._then))
            self._held = self._dataset.follow(self._order, ahead=self._ahead, now=now, then=then)
            stack.callback(self._held.close)
            self._end = len(now)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # read to its end, also where its last samples lie before those of others
            self._held.session.reached(self._end)
        self._readers.clear()
        self._stack.close()

    @property
    def wants_more(self) -> bool:
        """Whether another batch has to be planned, so that enough chunks are on their way."""
        return not self._planned or len(self._order) - 1 - self._taken < self._ahead

    def add(self, runs: Sequence[FeedRun]) -> None:
        """Plan a batch of the given runs of samples, in order."""
        chunks: list[NDArray[np.int64]] = []
        offsets: list[NDArray[np.int64]] = []
        numbers: list[int] = []
        tracks = []
        for number, partition, first, stop in _joined(runs):
            track = self._track(number, partition)
            track.lane.seek(first)
            places, within = track.lane.take(stop - first)
            chunks.append(track.lane.chunks[places])
            offsets.append(within)
            numbers.append(number)
            self._open(track, places)
            tracks.append(track)
        # Only now: a chunk that one lane is done with may be one that the next has begun.
        finished = {place for track in tracks for place in self._finish(track)}
        groups, count = self._groups(chunks, offsets, numbers, finished)
        used = {group.place for group in groups}
        before = [place for place in finished if place not in used]
        self._planned.append(_Planned(count, groups, before, self._reached()))
        self._extend()

    def begin(self) -> None:
        """Go on to the batch that was planned next."""
        self._current = current = self._planned.popleft()
        for place in current.before:
            self._let_go(place)
        self._items = [SKIPPED] * current.count
        self._groups_read = self._given = 0

    def read(self, count: int) -> list[Any]:
        """Return the next ``count`` samples of the batch; `SKIPPED` stands for those that cannot be had.

        No chunk is waited for that only later samples need.
        """
        current, stop = self._current, self._given + count
        while self._groups_read < len(current.groups) and current.groups[self._groups_read].first < stop:
            self._read_group(current.groups[self._groups_read])
            self._groups_read += 1
        items = self._items[self._given : stop]
        self._given = stop
        if stop == current.count:
            self._held.session.reached(current.reached)
        return items

    def _read_group(self, group: _Group) -> None:
        reader = self._reader(group)
        if reader is not None:
            read, seconds = self._dataset.decode(reader, group.offsets)
            self.decoding += seconds
            if group.slots is None:
                self._items = read
            else:
                for slot, item in zip(group.slots.tolist(), read, strict=True):
                    self._items[slot] = item
        if group.last:
            self._let_go(group.place)

    def _track(self, number: int, partition: int) -> _Track:
        track = self._tracks.get((number, partition))
        if track is None:
            track = self._tracks[number, partition] = _Track(self._plan(number).lane(partition))
            if number == 0 and list(self._partitions) == [partition]:
                self._announced = track
        return track

    def _open(self, track: _Track, places: NDArray[np.int64]) -> None:
        if len(places):
            track.front = max(track.front, int(places.max()))
            fresh = set(places.tolist()) - track.opened
            for place in sorted(fresh):
                self._ask(track, place)
            track.ordered = max(track.ordered, track.front + 1)

    def _ask(self, track: _Track, place: int) -> None:
        """Put a chunk into the order of this reader, unless another lane did so."""
        track.opened.add(place)
        chunk = int(track.lane.chunks[place])
        self._uses[chunk] = self._uses.get(chunk, 0) + 1
        if chunk not in self._place_of:
            self._place_of[chunk] = len(self._order)
            self._order.append(chunk)

    def _finish(self, track: _Track) -> list[int]:
        """Places of this reader that nothing of the lane, and of no other lane, reads after the batch being planned."""
        border = track.lane.done_before
        finished = []
        for place in [place for place in track.opened if place < border]:
            track.opened.remove(place)
            chunk = int(track.lane.chunks[place])
            self._uses[chunk] -= 1
            if not self._uses[chunk]:
                del self._uses[chunk]
                finished.append(self._place_of[chunk])
                if track is self._announced:
                    self._passed[self._place_of[chunk]] = place + 1
        return finished

    def _groups(
        self,
        chunks: list[NDArray[np.int64]],
        offsets: list[NDArray[np.int64]],
        numbers: list[int],
        finished: set[int],
    ) -> tuple[list[_Group], int]:
        if not chunks:
            return [], 0
        all_chunks = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
        within = offsets[0] if len(offsets) == 1 else np.concatenate(offsets)
        passes = np.repeat(numbers, [len(part) for part in chunks]) if len(set(numbers)) > 1 else None
        if passes is None:
            wanted = {(numbers[0], chunk) for chunk in set(all_chunks.tolist())}
        else:
            wanted = set(zip(passes.tolist(), all_chunks.tolist(), strict=True))
        groups: list[_Group] = []
        for place, number, chunk in sorted((self._place_of[chunk], number, chunk) for number, chunk in wanted):
            if len(wanted) == 1:
                groups.append(_Group(chunk, place, number, within, None))
                continue
            mine = all_chunks == chunk
            slots = np.flatnonzero(mine if passes is None else mine & (passes == number))
            groups.append(_Group(chunk, place, number, within[slots], slots))
        first = len(all_chunks)
        for group in reversed(groups):
            group.first = first = 0 if group.slots is None else min(first, int(group.slots[0]))
            group.last = group.place in finished and group.chunk in self._place_of  # of several passes the last one
            if group.last:
                del self._place_of[group.chunk]
        for place in finished - {group.place for group in groups}:
            del self._place_of[self._order[place]]
        return groups, len(all_chunks)

    def _extend(self) -> None:
        """Ask for chunks that the lanes will come to, as far as that is known without drawing the samples."""
        while len(self._order) - 1 - self._taken < self._ahead:
            open_tracks = [track for track in self._tracks.values() if track.ordered < len(track.lane.chunks)]
            if not open_tracks:
                return
            track = min(open_tracks, key=lambda track: track.ordered - track.front)
            place, track.ordered = track.ordered, track.ordered + 1
            if int(track.lane.counts[place]) >= self._dense:
                self._ask(track, place)

    def _reader(self, group: _Group) -> ChunkReader | None:
        """The group's chunk, mapped for its pass: what was written to the items of another pass is not to be read."""
        place = group.place
        known = self._readers.get(place)
        if known is None:
            self._taken = max(self._taken, place)
            self._extend()
        elif known[0] == group.number or known[1] is None:  # skipped: for all passes
            return known[1]
        reader = self._dataset.enter_chunk(self._held.session, group.chunk, place)
        self._readers[place] = group.number, reader
        return reader

    def _let_go(self, place: int) -> None:
        self._readers.pop(place, None)
        # Before the release, and before the next chunk asks for room: this one is read last now.
        self._held.session.reached(self._passed.pop(place, 0))
        self._held.session.done(place)

    def _reached(self) -> int:
        return sum(
            track.lane.done_before
            for (number, partition), track in self._tracks.items()
            if number == 0 and partition in self._partitions
        )


def _joined(runs: Sequence[FeedRun]) -> list[FeedRun]:
    """The same samples in fewer runs: those of a reader that has every step go on where the one before ends."""
    joined: list[FeedRun] = []
    for run in runs:
        if joined and joined[-1][:2] == run[:2] and joined[-1][3] == run[2]:
            joined[-1] = (*joined[-1][:3], run[3])
        else:
            joined.append(run)
    return joined


def _interleaved(plan: EpochPlan, partitions: Sequence[int]) -> NDArray[np.int64]:
    """The chunks of some partitions, each once, in about the order in which a reader of all of them comes to them."""
    lanes = [plan.chunks(partition) for partition in partitions]
    if len(lanes) == 1:
        return lanes[0]
    if not lanes:
        return np.empty(0, np.int64)
    places = np.concatenate([np.arange(len(lane)) for lane in lanes])
    merged = np.concatenate(lanes)[np.argsort(places, kind="stable")]
    _, first = np.unique(merged, return_index=True)
    return merged[np.sort(first)]
