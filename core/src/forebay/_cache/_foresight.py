"""When each chunk will be read next, over all readers of a cache directory: what clairvoyant eviction goes by.

Each process keeps the plans and the ready chunks of the ledger as arrays, and takes in only what changed: a plan is
read once an epoch, its place costs one row a reader, a chunk that became ready is found by an index. What became
unready is not told; it is found out when such a chunk is looked at in order to evict it. Many chunks are put in order
of their next use once in a while only: a reader that moves changes nothing but the chunks that it moved over, and those
are looked at anew each time, together with what came since.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from forebay import _config

__all__ = ["NEVER", "PLAN_PATIENCE", "Foresight"]

#: The distance of a chunk that no reader will read, as far as its plan goes.
NEVER = 1 << 30
#: Seconds after which a plan that does not move counts no more: a reader that lives but rests must not keep its chunks
#: from those that read.
PLAN_PATIENCE = 3600.0
#: Victims that are looked for first, and then at a time: few of those that are read last cannot go.
_FIRST_LOOK, _LOOK = 16, 256
#: Chunks that may change before all are put in order again, which takes some milliseconds for a hundred thousand. Where
#: readers drift apart meanwhile, the order is wrong by as much; few chunks are put in order each time.
_MOST_FRESH, _FEW = 256, 4096

#: Distance, row, dataset, number.
_Place = tuple[int, int, str, int]


class _Reader:
    """One plan. ``next[c]`` is the first place at or after ``place`` where chunk ``c`` is read."""

    def __init__(self, version: int, dataset: str, order: NDArray[np.int32], turn: int) -> None:
        self.version = version
        self.dataset = dataset
        self.place = 0
        self._order = order
        now, then = order[:turn], order[turn:]
        places = np.arange(len(order), dtype=np.int32)
        self.next = np.full(int(order.max(initial=0)) + 1, NEVER, np.int32)
        self.next[then] = places[turn:]
        self._after = np.full(len(order), NEVER, np.int32)  # where the chunk of a place is read again
        self._after[:turn] = self.next[now]
        self.next[now] = places[:turn]

    def move(self, place: int) -> NDArray[np.int32]:
        """Take the reader to a place further on; returns the chunks that it moved over."""
        passed = self._order[self.place : place]
        self.next[passed] = self._after[self.place : place]
        self.place = place
        return passed

    def lower(self, distances: NDArray[np.int32], numbers: NDArray[np.int64] | None = None) -> None:
        """Lower distances of ``numbers`` (None: of 0, 1, 2, …) to how many chunks this reader reads before each."""
        if numbers is None:
            places, target = self.next, distances[: len(self.next)]
        else:
            places, target = self.next[np.minimum(numbers, len(self.next) - 1)], distances
            places[numbers >= len(self.next)] = NEVER
        np.minimum(target, np.where(places == NEVER, NEVER, places - np.int32(self.place)), out=target)


class _Ranking:
    """All chunks in the order of their next use, as it was at one time, and what changed since."""

    def __init__(self) -> None:
        self.datasets: list[str] = []
        self.which = np.empty(0, np.int64)  # a place in ``datasets``
        self.numbers = np.empty(0, np.int64)
        self.head = 0  # what comes before is gone, or fresh
        self.useless: set[int] = set()
        self.needed = 0
        self.fresh: dict[str, set[int]] = {}
        self.origins: dict[int, tuple[str, int]] = {}

    def touch(self, dataset: str, numbers: Iterable[int]) -> bool:
        """Note chunks that changed; False where that is too many to go on with this order."""
        self.fresh.setdefault(dataset, set()).update(numbers)
        return self.needed > _FEW and sum(map(len, self.fresh.values())) <= _MOST_FRESH


class Foresight:
    """What one process knows of plans and ready chunks. Guarded by the ledger's mutex."""

    def __init__(self) -> None:
        self._reset(None)

    def _reset(self, connection: sqlite3.Connection | None) -> None:
        self._connection = connection
        self._arrived = -1
        self._readers: dict[int, _Reader] = {}
        # For each dataset the ledger's row of each chunk that is ready, by number; 0 where it is not.
        self._rows: dict[str, NDArray[np.int64]] = {}
        self._numberless: set[int] = set()
        self._ranking: _Ranking | None = None

    @property
    def blind(self) -> bool:
        """Whether there is no plan to go by."""
        return not self._readers

    def refresh(self, connection: sqlite3.Connection) -> None:
        """Take in what changed since the last time."""
        if connection is not self._connection:  # another ledger, perhaps: a rebuilt one has other rows
            self._reset(connection)
        self._refresh_plans(connection)
        if self.blind:
            return
        for row, name, number, arrived in connection.execute(
            "SELECT id, name, number, arrived FROM chunks WHERE ready = 1 AND arrived > ? ORDER BY arrived",
            (self._arrived,),
        ):
            self._arrived = arrived
            if number is None:
                self._numberless.add(row)
                self._ranking = None
            else:
                dataset = name.partition("/")[0]
                self._place(dataset, number)[number] = row
                self._numberless.discard(row)
                self._touch(dataset, (number,))

    def distance(self, name: str, number: int | None) -> int:
        """How many chunks are read before this one; 0 where no plan holds it: somebody asks for it now."""
        if number is None:
            return 0
        (distance,) = self._exact(name.partition("/")[0], np.array([number])).tolist()
        return 0 if distance == NEVER else int(distance)

    def needed(self) -> int:
        """How many chunks will be read, ready or not; not to the last one."""
        return self._rank().needed

    def unneeded(self) -> set[int]:
        """Rows of the ready chunks that nobody will read."""
        self._look_at_fresh()
        return self._rank().useless

    def furthest(self, beyond: int) -> Iterator[list[int]]:
        """Rows of ready chunks that are read after more than ``beyond`` others, the last first, in batches."""
        waiting = self._look_at_fresh()
        ranking = self._rank()
        begin, size = ranking.head, _FIRST_LOOK
        while True:
            batch = self._batch(ranking, begin, begin + size)
            if begin == ranking.head and not batch:
                ranking.head = min(begin + size, len(ranking.numbers))
            begin, size = begin + size, _LOOK
            last = begin >= len(ranking.numbers)
            if not batch and not last:
                continue
            low = -1 if last else min(batch)[0]
            batch += [one for one in waiting if one[0] >= low]
            waiting = [one for one in waiting if one[0] < low]
            found = sorted((one for one in batch if one[0] > beyond), reverse=True)
            ranking.origins.update((row, (dataset, number)) for _, row, dataset, number in found)
            if found:
                yield [row for _, row, _, _ in found]
            if last or low <= beyond:
                return

    def forget(self, row: int) -> None:
        """A chunk turned out not to be ready any more."""
        self._numberless.discard(row)
        ranking = self._rank()
        ranking.useless.discard(row)
        dataset, number = ranking.origins.get(row, (None, 0))
        for rows in self._rows.values() if dataset is None else ():
            rows[rows == row] = 0
        if dataset is not None and self._rows[dataset][number] == row:
            self._rows[dataset][number] = 0

    def _refresh_plans(self, connection: sqlite3.Connection) -> None:
        seen = set()
        for number, dataset, version, place in connection.execute(
            "SELECT id, dataset, version, place FROM plans WHERE moved > ?", (_config.wall_clock() - PLAN_PATIENCE,)
        ).fetchall():
            seen.add(number)
            reader = self._readers.get(number)
            if reader is None or reader.version != version or place < reader.place:
                turn, chunks = connection.execute(
                    "SELECT turn, chunks FROM orders WHERE plan = ?", (number,)
                ).fetchone()
                reader = self._readers[number] = _Reader(version, dataset, np.frombuffer(chunks, np.int32), turn)
                self._ranking = None
            if place != reader.place:
                self._touch(dataset, reader.move(place).tolist())
        for number in self._readers.keys() - seen:
            del self._readers[number]
            self._ranking = None

    def _touch(self, dataset: str, numbers: Iterable[int]) -> None:
        if self._ranking is not None and not self._ranking.touch(dataset, numbers):
            self._ranking = None

    def _rank(self) -> _Ranking:
        """The order of all chunks, made anew where it is too old."""
        if self._ranking is not None:
            return self._ranking
        self._ranking = ranking = _Ranking()
        ranking.useless |= self._numberless
        parts: list[tuple[NDArray[np.int32], NDArray[np.int64]]] = []
        planned = {reader.dataset for reader in self._readers.values()}
        for dataset in planned | self._rows.keys():
            rows = self._rows.get(dataset, np.empty(0, np.int64))
            readers = [reader for reader in self._readers.values() if reader.dataset == dataset]
            distances = np.full(max([len(rows), *(len(reader.next) for reader in readers)]), NEVER, np.int32)
            for reader in readers:
                reader.lower(distances)
            ranking.needed += int(np.count_nonzero(distances != NEVER))
            distances = distances[: len(rows)]
            ranking.useless.update(rows[(rows > 0) & (distances == NEVER)].tolist())
            chosen = np.flatnonzero((rows > 0) & (distances != NEVER))
            parts.append((distances[chosen], chosen))
            ranking.datasets.append(dataset)
        order = np.argsort(-np.concatenate([distances for distances, _ in parts]), kind="stable")
        ranking.numbers = np.concatenate([chosen for _, chosen in parts])[order]
        ranking.which = np.repeat(np.arange(len(parts)), [len(chosen) for _, chosen in parts])[order]
        return ranking

    def _batch(self, ranking: _Ranking, begin: int, end: int) -> list[_Place]:
        """What is there still of a part of the order, with the distances that are true now."""
        found: list[_Place] = []
        which, numbers = ranking.which[begin:end], ranking.numbers[begin:end]
        for place in np.unique(which).tolist():
            dataset = ranking.datasets[place]
            fresh = ranking.fresh.get(dataset, ())
            found += self._places(
                dataset, [number for number in numbers[which == place].tolist() if number not in fresh]
            )
        return found

    def _look_at_fresh(self) -> list[_Place]:
        """What changed since all were put in order; what will not be read any more is noted as useless."""
        ranking, found = self._rank(), []
        for dataset, numbers in ranking.fresh.items():
            for one in self._places(dataset, list(numbers)):
                if one[0] == NEVER:
                    ranking.useless.add(one[1])
                else:
                    found.append(one)
        return found

    def _places(self, dataset: str, numbers: list[int]) -> list[_Place]:
        """Those of ``numbers`` that are ready, as far as is known."""
        if dataset not in self._rows or not numbers:
            return []
        asked, rows = np.array(numbers), self._rows[dataset]
        asked = asked[asked < len(rows)]
        asked = asked[rows[asked] > 0]
        distances = self._exact(dataset, asked)
        return [
            (distance, row, dataset, number)
            for distance, row, number in zip(distances.tolist(), rows[asked].tolist(), asked.tolist(), strict=True)
        ]

    def _exact(self, dataset: str, numbers: NDArray[np.int64]) -> NDArray[np.int32]:
        result = np.full(len(numbers), NEVER, np.int32)
        for reader in self._readers.values():
            if reader.dataset == dataset:
                reader.lower(result, numbers)
        return result

    def _place(self, dataset: str, number: int) -> NDArray[np.int64]:
        rows = self._rows.get(dataset)
        if rows is None or number >= len(rows):
            grown = np.zeros(max(number + 1, 64, 0 if rows is None else 2 * len(rows)), np.int64)
            if rows is not None:
                grown[: len(rows)] = rows
            self._rows[dataset] = rows = grown
        return rows
