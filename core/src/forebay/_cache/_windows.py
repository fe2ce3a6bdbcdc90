"""What all readers of a directory hold while they wait: together it has to leave room for one chunk more.

A shuffled reader keeps all but one chunk of its window while it waits for the next. Where what all keep leaves no room
for the largest chunk that one of them may wait for, they wait for each other; so the reader that would bring that about
is refused before it begins.
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


def claim(member: Member, kept: int, need: int, old: int | None = None) -> tuple[int | None, int]:
    """Say that a reader keeps ``kept`` bytes while it waits for ``need`` more; in the place of its claim ``old``.

    A claim that a rebuilt ledger forgot is not seen: then the deadline of the wait for room is what is left.

    Returns:
        The claim's number, None where it does not fit; and the bytes that it might keep.
    """
    number = secrets.randbits(62)

    def step(connection: sqlite3.Connection, _trash: object, holder: int) -> tuple[int | None, int]:
        others, needed = connection.execute(
            "SELECT coalesce(sum(bytes), 0), coalesce(max(need), 0) FROM windows WHERE id IS NOT ?", (old,)
        ).fetchone()
        budget = budget_of(connection, member.fallback)
        left = budget.limit - budget.stray - others - max(needed, need)
        if kept > left:
            return None, left
        done = connection.execute(
            "INSERT INTO windows (id, holder, bytes, need) SELECT ?, id, ?, ? FROM holders WHERE id = ?",
            (number, kept, need, holder),
        )
        if done.rowcount != 1:
            raise UnregisteredError
        connection.execute("DELETE FROM windows WHERE id IS ?", (old,))
        return number, left

    try:
        return member.write_as_holder(step)
    except BaseException as exc:  # it is raised again
        if not isinstance(exc, Exception):  # an interrupt, perhaps once it was claimed: nobody is told the number
            drop(member, number)
        raise


def drop(member: Member, number: int) -> None:
    """Take a claim back."""
    member.ledger.write_or_defer(lambda connection: connection.execute("DELETE FROM windows WHERE id = ?", (number,)))
