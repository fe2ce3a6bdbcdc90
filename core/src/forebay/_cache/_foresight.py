"""When each chunk will be read next, over all readers of a cache directory: what clairvoyant eviction goes by.

Each process keeps the plans and the ready chunks of the ledger as arrays, and takes in only what changed: a plan is
read once an epoch, its place costs one row a reader, a chunk that became ready is found by an index. What became
unready is not told; it is found out when such a chunk is looked at in order to evict it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forebay import _config

__all__ = ["NEVER", "PLAN_PATIENCE", "Foresight"]

#: The distance of a chunk that no reader will read, as far as its plan goes.
NEVER = 1 << 30
#: Seconds after which a plan that does not move counts no more: a reader that lives but rests must not keep its chunks
#: from those that read.
PLAN_PATIENCE = 3600.0
#: Victims that are looked for first; more only where these cannot go.
_FIRST_LOOK = 32


@dataclass(slots=True)
class _Reader:
    """One plan. ``next[c]`` is the first place at or after ``place`` where chunk ``c`` is read, ``after[p]`` the place
    where the chunk of place ``p`` is read again."""

    version: int
    dataset: str
    order: NDArray[np.int32]
    turn: int
    place: int = 0
    next: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    after: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))

    def __post_init__(self) -> None:
        size = int(self.order.max()) + 1 if len(self.order) else 0
        now, then = self.order[: self.turn], self.order[self.turn :]
        places = np.arange(len(self.order), dtype=np.int32)
        self.next = np.full(size, NEVER, np.int32)
        self.next[then] = places[self.turn :]
        self.after = np.full(len(self.order), NEVER, np.int32)
        self.after[: self.turn] = self.next[now]
        self.next[now] = places[: self.turn]

    def move(self, place: int) -> None:
        """Take the reader to a place further on."""
        self.next[self.order[self.place : place]] = self.after[self.place : place]
        self.place = place

    def lower(self, distances: NDArray[np.int32]) -> None:
        """Lower each chunk's distance to how many chunks this reader reads before it, where that is less."""
        mine = self.next - np.int32(self.place)
        mine[self.next == NEVER] = NEVER
        np.minimum(distances[: len(mine)], mine, out=distances[: len(mine)])


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
        self._known: dict[str, NDArray[np.int32]] = {}  # distances, until the next refresh

    @property
    def blind(self) -> bool:
        """Whether there is no plan to go by."""
        return not self._readers

    def refresh(self, connection: sqlite3.Connection) -> None:
        """Take in what changed since the last time."""
        if connection is not self._connection:  # another ledger, perhaps: a rebuilt one has other rows
            self._reset(connection)
        self._known.clear()
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
            else:
                self._place(name.partition("/")[0], number)[number] = row
                self._numberless.discard(row)

    def distance(self, name: str, number: int | None) -> int:
        """How many chunks are read before this one; 0 where no plan holds it: somebody asks for it now."""
        if number is None:
            return 0
        dataset = name.partition("/")[0]
        distances = [
            int(reader.next[number]) - reader.place
            for reader in self._readers.values()
            if reader.dataset == dataset and number < len(reader.next) and reader.next[number] < NEVER
        ]
        return min(distances, default=0)

    def needed(self) -> int:
        """How many chunks will be read, ready or not."""
        return sum(int(np.count_nonzero(self._distances(dataset) < NEVER)) for dataset in self._datasets())

    def unneeded(self) -> NDArray[np.int64]:
        """Rows of the ready chunks that nobody will read."""
        planned = self._datasets()
        parts = [np.fromiter(self._numberless, np.int64, len(self._numberless))]
        for dataset, rows in self._rows.items():
            useless = rows > 0
            if dataset in planned:
                useless &= self._distances(dataset)[: len(rows)] >= NEVER
            parts.append(rows[useless])
        return np.concatenate(parts)

    def furthest(self, beyond: int) -> Iterator[list[int]]:
        """Rows of ready chunks that are read after more than ``beyond`` others, the last first, in batches."""
        found = []
        for dataset in self._datasets():
            rows = self._rows.get(dataset)
            if rows is not None:
                distances = self._distances(dataset)[: len(rows)]
                chosen = np.flatnonzero((rows > 0) & (distances < NEVER) & (distances > beyond))
                found.append((distances[chosen], rows[chosen]))
        if not found:
            return
        distances = np.concatenate([part for part, _ in found])
        rows = np.concatenate([part for _, part in found])
        if len(rows) > _FIRST_LOOK:
            top = np.argpartition(distances, len(rows) - _FIRST_LOOK)
            far, rest = top[-_FIRST_LOOK:], top[:-_FIRST_LOOK]
            yield rows[far[np.argsort(-distances[far], kind="stable")]].tolist()
            distances, rows = distances[rest], rows[rest]
        order = rows[np.argsort(-distances, kind="stable")]
        for begin in range(0, len(order), 256):
            yield order[begin : begin + 256].tolist()

    def forget(self, row: int) -> None:
        """A chunk turned out not to be ready any more."""
        self._numberless.discard(row)
        for rows in self._rows.values():
            rows[rows == row] = 0

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
                reader = _Reader(version, dataset, np.frombuffer(chunks, np.int32), turn)
                self._readers[number] = reader
            if place != reader.place:
                reader.move(place)
        for number in self._readers.keys() - seen:
            del self._readers[number]

    def _datasets(self) -> set[str]:
        return {reader.dataset for reader in self._readers.values()}

    def _distances(self, dataset: str) -> NDArray[np.int32]:
        """By chunk number, for every number that a plan or the ledger names."""
        result = self._known.get(dataset)
        if result is None:
            readers = [reader for reader in self._readers.values() if reader.dataset == dataset]
            size = max(len(self._rows.get(dataset, ())), *(len(reader.next) for reader in readers))
            result = np.full(size, NEVER, np.int32)
            for reader in readers:
                reader.lower(result)
            self._known[dataset] = result
        return result

    def _place(self, dataset: str, number: int) -> NDArray[np.int64]:
        rows = self._rows.get(dataset)
        if rows is None or number >= len(rows):
            grown = np.zeros(max(number + 1, 64, 0 if rows is None else 2 * len(rows)), np.int64)
            if rows is not None:
                grown[: len(rows)] = rows
            self._rows[dataset] = rows = grown
        return rows
