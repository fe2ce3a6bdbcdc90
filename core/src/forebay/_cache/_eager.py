"""Leases without a fetch, and evictions without one: declared beforehand, or because the disk is full."""

from __future__ import annotations

import sqlite3
from contextlib import suppress

from forebay._cache._layout import Trash, chunk_name
from forebay._cache._member import Member
from forebay._cache._rows import add_lease, find, new_row, unready
from forebay._cache._types import ChunkKey, UnregisteredError
from forebay.exceptions import CacheFullError

__all__ = ["declare", "relieve"]


def declare(member: Member, chunks: tuple[ChunkKey, ...]) -> None:
    """Take a soft lease on each chunk, whether it is there or not, in one transaction."""

    def step(connection: sqlite3.Connection, _trash: Trash, holder: int) -> None:
        for chunk in chunks:
            name = chunk_name(chunk)
            row = find(connection, name) or new_row(connection, name, chunk)
            if not add_lease(connection, row.id, holder, hard=False):
                raise UnregisteredError

    def then(_: None) -> None:
        for chunk in chunks:
            member.count(chunk, soft=1)

    member.write_as_holder(step, then)


def relieve(member: Member, wanted: int | None) -> tuple[int, int]:
    """Evict chunks that nobody reads until ``wanted`` bytes are free (None: all); returns bytes and chunks.

    Those without a lease go first, then prefetched ones; the longest unused first.
    """

    taken: set[str] = set()  # what is gone, whether or not the ledger could say so

    def step(connection: sqlite3.Connection, trash: Trash) -> tuple[int, int]:
        freed = evicted = new = 0
        for number, name, size in connection.execute(
            "SELECT c.id, c.name, c.bytes FROM chunks c LEFT JOIN leases l ON l.chunk = c.id WHERE c.ready = 1"
            " GROUP BY c.id HAVING coalesce(sum(l.hard), 0) = 0 ORDER BY count(l.holder) > 0, c.used"
        ).fetchall():
            if wanted is not None and new >= wanted:
                break
            before = name in taken
            taken.add(name)
            if unready(connection, member.layout, number, name, trash):
                new += 0 if before else size
                freed += size
                evicted += 1
        return freed, evicted

    while True:
        before = len(taken)
        try:
            done = member.write(step)
            break
        except CacheFullError:  # the ledger found no room to say what went; but it went, and makes that room
            if len(taken) == before:  # or not, where it is open somewhere: then others have to go as well
                raise
    with suppress(CacheFullError):
        member.ledger.shrink_log()
    return done
