"""What the readers of this process will read: told to the ledger, so that every process can evict what is needed last.

An order is written once an epoch (4 bytes a chunk), the place in it with each chunk, together with the release. A plan
is a hint: one that is late, lost or wrong makes a worse choice of what to evict, and nothing else.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay import _config
from forebay._cache._types import UnregisteredError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from forebay._cache._member import Member

__all__ = ["PlanReader", "Plans", "SharedPlanReader"]


class PlanReader:
    """Who tells a cache what it will read. This one is not listened to: no eviction here goes by plans."""

    def declare(self, now: NDArray[np.int64], then: NDArray[np.int64]) -> None:
        """Say which chunks, by number, will be read in this epoch and in the next one; the place is 0 again."""

    def reached(self, place: int) -> None:
        """Say that everything before ``place`` of this epoch is read. Cheap; it is written with the next release."""

    def close(self) -> None:
        """Say that nothing will be read any more."""


class SharedPlanReader(PlanReader):
    """See `PlanReader`; every process on the directory hears of it."""

    def __init__(self, plans: Plans, dataset: str, with_room: Callable[[Callable[[], None]], None]) -> None:
        self._plans = plans
        self._dataset = dataset
        self._with_room = with_room
        self._number = 0

    def declare(self, now: NDArray[np.int64], then: NDArray[np.int64]) -> None:
        """See `PlanReader`."""
        if not self._plans.knows(self._number):  # the first time, also in a forked child: the parent's row stays
            self._number = secrets.randbits(62)
        chunks = now.astype("int32").tobytes() + then.astype("int32").tobytes()
        plan = _Plan(self._dataset, secrets.randbits(62), len(now), chunks)
        self._with_room(lambda: self._plans.declare(self._number, plan))

    def reached(self, place: int) -> None:
        """See `PlanReader`."""
        self._plans.reached(self._number, place)

    def close(self) -> None:
        """See `PlanReader`."""
        self._plans.withdraw(self._number)


@dataclass(slots=True)
class _Plan:
    dataset: str
    version: int
    turn: int
    chunks: bytes
    place: int = 0


class Plans:
    """The plans of one holder. Guarded by the ledger's mutex."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._plans: dict[int, _Plan] = {}
        self.moved: set[int] = set()

    def knows(self, number: int) -> bool:
        """Whether a plan of this process has the number."""
        return number in self._plans

    def declare(self, number: int, plan: _Plan) -> None:
        """Make a plan known, instead of what had its number before."""

        def step(connection: sqlite3.Connection, _trash: object, holder: int) -> None:
            self._insert(connection, holder, number, plan)

        def then(_: None) -> None:
            self._plans[number] = plan

        self._member.write_as_holder(step, then)

    def reached(self, number: int, place: int) -> None:
        """Move a plan's place; it only goes forward, but for going back to the start."""
        with self._member.ledger.mutex:
            plan = self._plans.get(number)
            if plan is not None and (place > plan.place or place == 0):
                plan.place = place
                self.moved.add(number)

    def withdraw(self, number: int) -> None:
        """Forget a plan."""
        with self._member.ledger.mutex:
            known = self._plans.pop(number, None)
            self.moved.discard(number)
        if known is not None:
            self._member.ledger.write_or_defer(
                lambda connection: connection.execute("DELETE FROM plans WHERE id = ?", (number,))
            )

    def stamp(self, connection: sqlite3.Connection) -> None:
        """Write down the places that moved; inside a write transaction."""
        if self.moved:
            now = _config.wall_clock()
            rows = [(self._plans[number].place, now, number) for number in self.moved]
            self.moved.clear()
            connection.executemany("UPDATE plans SET place = ?, moved = ? WHERE id = ?", rows)

    def insert_all(self, connection: sqlite3.Connection, holder: int) -> None:
        """Tell a new ledger, or one that took us for dead."""
        for number, plan in self._plans.items():
            self._insert(connection, holder, number, plan)

    def clear(self) -> None:
        """Forget all: they went with the holder, or are another process's."""
        self._plans.clear()
        self.moved.clear()

    def _insert(self, connection: sqlite3.Connection, holder: int, number: int, plan: _Plan) -> None:
        done = connection.execute(
            "INSERT OR REPLACE INTO plans (id, holder, dataset, version, place, moved)"
            " SELECT ?, id, ?, ?, ?, ? FROM holders WHERE id = ?",
            (number, plan.dataset, plan.version, plan.place, _config.wall_clock(), holder),
        )
        if done.rowcount != 1:
            raise UnregisteredError
        connection.execute(
            "INSERT OR REPLACE INTO orders (plan, version, turn, chunks) VALUES (?, ?, ?, ?)",
            (number, plan.version, plan.turn, plan.chunks),
        )
