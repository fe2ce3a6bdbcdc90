"""The shuffle windows of all readers of a directory: together they have to fit, or two readers wait for each other.

A shuffled reader holds all but one chunk of its window while it waits for the next. Two such readers whose windows do
not fit together hold what the other needs; so the second is refused before it begins.
"""

from __future__ import annotations

import secrets
import sqlite3
from typing import TYPE_CHECKING

from forebay._cache._room import budget_of
from forebay._cache._types import UnregisteredError

if TYPE_CHECKING:
    from forebay._cache._member import Member

__all__ = ["claim", "drop"]


def claim(member: Member, wanted: int) -> tuple[int | None, int]:
    """Take ``wanted`` bytes for a window; returns its number, None where it does not fit, and the bytes of the others.

    A claim that a rebuilt ledger forgot is not seen: then the deadline of the wait for room is what is left.
    """
    number = secrets.randbits(62)

    def step(connection: sqlite3.Connection, _trash: object, holder: int) -> tuple[int | None, int]:
        (taken,) = connection.execute("SELECT coalesce(sum(bytes), 0) FROM windows").fetchone()
        if taken and taken + wanted > budget_of(connection, member.fallback).limit:
            return None, taken
        done = connection.execute(
            "INSERT INTO windows (id, holder, bytes) SELECT ?, id, ? FROM holders WHERE id = ?",
            (number, wanted, holder),
        )
        if done.rowcount != 1:
            raise UnregisteredError
        return number, taken

    return member.write_as_holder(step)


def drop(member: Member, number: int) -> None:
    """Give a window back."""
    member.ledger.write_or_defer(lambda connection: connection.execute("DELETE FROM windows WHERE id = ?", (number,)))
