"""What the rows of the ledger mean: chunks, leases, and what a flight or a holder leaves behind.

Each function runs inside a write transaction of its caller. Files go before their bytes are given back.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from forebay._cache._layout import Layout, Trash, remove
from forebay._cache._types import ChunkKey

__all__ = [
    "Row",
    "add_lease",
    "bury",
    "drop_unwanted",
    "end_flight",
    "find",
    "hide",
    "lease_ready",
    "lose_flight",
    "new_row",
    "set_lease",
    "unready",
]


@dataclass(slots=True)
class Row:
    """One chunk. ``trusted``: it was verified or published in the run that is now."""

    id: int
    name: str
    ready: int
    bytes: int
    digest: str | None
    run: int
    flight: int | None
    trusted: int = 0


def find(connection: sqlite3.Connection, name: str) -> Row | None:
    """The row of the chunk ``name``."""
    found = connection.execute(
        "SELECT id, name, ready, bytes, digest, run, flight, run = (SELECT run FROM account)"
        " FROM chunks WHERE name = ?",
        (name,),
    ).fetchone()
    return None if found is None else Row(*found)


def add_lease(connection: sqlite3.Connection, chunk: int, holder: int, *, hard: bool) -> bool:
    """Take a lease. False where the holder is not in this ledger: it was replaced, or we were taken for dead."""
    kind = "hard" if hard else "soft"
    done = connection.execute(
        "INSERT INTO leases (chunk, holder, hard, soft) SELECT ?, id, ?, ? FROM holders WHERE id = ?"
        f" ON CONFLICT DO UPDATE SET {kind} = {kind} + 1",
        (chunk, int(hard), int(not hard), holder),
    )
    return done.rowcount == 1


def lease_ready(connection: sqlite3.Connection, name: str, holder: int, *, hard: bool) -> Row | None:
    """Take a lease on a ready chunk in one statement; None, and nothing taken, where it is not as simple as that."""
    row = find(connection, name)
    if row is None or not row.ready or row.run < 0:
        return None
    kind = "hard" if hard else "soft"
    done = connection.execute(
        "INSERT INTO leases (chunk, holder, hard, soft) SELECT c.id, h.id, ?, ? FROM chunks c, holders h"
        " WHERE c.id = ? AND c.name = ? AND c.ready = 1 AND c.digest IS ? AND h.id = ?"
        f" ON CONFLICT DO UPDATE SET {kind} = {kind} + 1",
        (int(hard), int(not hard), row.id, name, row.digest, holder),
    )
    return row if done.rowcount == 1 else None


def set_lease(connection: sqlite3.Connection, chunk: int, holder: int, *, hard: int, soft: int) -> None:
    """Write down how many leases a holder has on a chunk; one statement."""
    if hard or soft:
        connection.execute(
            "UPDATE leases SET hard = ?, soft = ? WHERE chunk = ? AND holder = ?", (hard, soft, chunk, holder)
        )
    else:
        connection.execute("DELETE FROM leases WHERE chunk = ? AND holder = ?", (chunk, holder))


def new_row(connection: sqlite3.Connection, name: str, chunk: ChunkKey) -> Row:
    """Begin to know a chunk."""
    (number,) = connection.execute(
        "INSERT INTO chunks (name, url, number) VALUES (?, ?, ?) RETURNING id", (name, chunk.url, chunk.number)
    ).fetchone()
    return Row(number, name, 0, 0, None, -1, None)


def drop_unwanted(connection: sqlite3.Connection, chunk: int) -> None:
    """Forget a chunk that is neither ready nor fetched nor wanted."""
    connection.execute(
        "DELETE FROM chunks WHERE id = ? AND ready = 0 AND flight IS NULL"
        " AND NOT EXISTS (SELECT 1 FROM leases WHERE chunk = chunks.id)",
        (chunk,),
    )


def unready(connection: sqlite3.Connection, layout: Layout, chunk: int, name: str, trash: Trash) -> bool:
    """Remove a ready chunk's file and give its bytes back; leases stay. False where the file cannot be removed."""
    if not remove(layout.final(name), trash):
        return False
    connection.execute(
        "UPDATE chunks SET ready = 0, bytes = 0, digest = NULL, etag = NULL, run = -1, early = 0 WHERE id = ?", (chunk,)
    )
    drop_unwanted(connection, chunk)
    return True


def lose_flight(connection: sqlite3.Connection, layout: Layout, flight: int, trash: Trash) -> int:
    """Take the right to publish from a flight whose owner lives; returns the bytes that this gave back.

    Where its file exists it is unlinked, and its owner writes into nothing. Where it does not, the owner may be about
    to create it: the reservation stays until the owner aborts or dies, so that the budget holds at every moment.
    """
    found = connection.execute("SELECT chunk, temp, reserved FROM flights WHERE id = ?", (flight,)).fetchone()
    if found is None:
        return 0
    chunk, temp, reserved = found
    existed = layout.size_of(temp) is not None and remove(layout.final(temp), trash)
    connection.execute(
        "UPDATE flights SET lost = 1, waiting = 0, ticket = NULL, reserved = ? WHERE id = ?",
        (0 if existed else reserved, flight),
    )
    connection.execute("UPDATE chunks SET flight = NULL WHERE id = ? AND flight = ?", (chunk, flight))
    return int(reserved) if existed else 0


def end_flight(connection: sqlite3.Connection, layout: Layout, flight: int, trash: Trash) -> None:
    """Forget a flight that its owner gave up, or whose owner is dead, with all that it left on the disk."""
    found = connection.execute(
        "SELECT f.chunk, f.temp, c.name, c.ready, c.flight FROM flights f LEFT JOIN chunks c ON c.id = f.chunk"
        " WHERE f.id = ?",
        (flight,),
    ).fetchone()
    if found is None:
        return
    chunk, temp, name, ready, current = found
    gone = remove(layout.final(temp), trash)
    if current == flight:
        if not ready:  # it may have died between giving the file its name and saying so
            gone = remove(layout.final(name), trash) and gone
        connection.execute("UPDATE chunks SET flight = NULL WHERE id = ?", (chunk,))
    if gone:
        connection.execute("DELETE FROM flights WHERE id = ?", (flight,))
    else:  # another user's file in a sticky directory: its bytes stay counted, and whoever collects tries again
        connection.execute(
            "UPDATE flights SET holder = 0, lost = 1, waiting = 0, ticket = NULL WHERE id = ?", (flight,)
        )
    drop_unwanted(connection, chunk)


def hide(connection: sqlite3.Connection, holders: list[int]) -> None:
    """Until the transaction, which writes nothing, is over: have nobody see these holders and their leases."""
    if holders:
        ids = ",".join(map(str, holders))  # temporary tables hide those of the ledger, and lie in memory
        connection.execute(f"CREATE TEMP TABLE holders AS SELECT * FROM main.holders WHERE id NOT IN ({ids})")
        connection.execute(f"CREATE TEMP TABLE leases AS SELECT * FROM main.leases WHERE holder NOT IN ({ids})")


def bury(connection: sqlite3.Connection, layout: Layout, holder: int, trash: Trash) -> None:
    """Forget a dead holder: its flights, leases, plans, windows and row."""
    for (flight,) in connection.execute("SELECT id FROM flights WHERE holder = ?", (holder,)).fetchall():
        end_flight(connection, layout, flight, trash)
    held = connection.execute("SELECT chunk FROM leases WHERE holder = ?", (holder,)).fetchall()
    connection.execute("DELETE FROM leases WHERE holder = ?", (holder,))
    connection.execute("DELETE FROM plans WHERE holder = ?", (holder,))
    connection.execute("DELETE FROM windows WHERE holder = ?", (holder,))
    for (chunk,) in held:
        drop_unwanted(connection, chunk)
    connection.execute("DELETE FROM holders WHERE id = ?", (holder,))
