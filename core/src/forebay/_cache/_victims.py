"""Which chunks go when there is no room: those that nobody will read, then the one that is read last.

Where no reader said what it will read, and where the setting says so, the ones that were used longest ago.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay._cache._foresight import Foresight

__all__ = ["Need", "Victim", "ahead", "choose", "idle", "pick"]

#: A chunk that may go: row, name, bytes.
Victim = tuple[int, str, int]
#: A look-ahead that takes the room of what will be read may cost this share of more fetches. What is fetched long
#: before it is read keeps something else out for so long; on a cache of few chunks that is soon most of what the cache
#: is for: four readers, three ahead, with room for 16 of 32 chunks would fetch 0.7 of them an epoch instead of 0.5.
LOOK_AHEAD_COST = 1 / 16
#: Chunks that are looked up one by one rather than by a walk over all.
_FEW = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Who needs room: a flight (0 for one to come) of a chunk, by name and number, for how many bytes in all, how many
    of them are missing, whether a reader waits."""

    flight: int
    name: str
    number: int | None
    total: int
    missing: int
    hard: bool


def choose(connection: sqlite3.Connection, foresight: Foresight | None, need: Need) -> tuple[list[Victim], int]:
    """Chunks that together free what is missing, and how many bytes are missing after them."""
    if foresight is not None:
        foresight.refresh(connection)
        if not foresight.blind:
            return _clairvoyant(connection, foresight, need)
    victims, left = pick(idle(connection), need.missing)
    if need.hard and left > 0:
        more, left = pick(_prefetched(connection), left)
        victims += more
    return victims, left


def pick(candidates: Iterator[Victim], missing: int) -> tuple[list[Victim], int]:
    """The first candidates that together free ``missing`` bytes, and how many bytes are missing after them."""
    victims = []
    while missing > 0 and (victim := next(candidates, None)) is not None:
        victims.append(victim)
        missing -= victim[2]
    return victims, missing


def idle(connection: sqlite3.Connection) -> Iterator[Victim]:
    """Ready chunks without leases, the longest unused first."""
    return connection.execute(
        "SELECT id, name, bytes FROM chunks WHERE ready = 1"
        " AND NOT EXISTS (SELECT 1 FROM leases WHERE chunk = chunks.id) ORDER BY used"
    )


def _prefetched(connection: sqlite3.Connection) -> Iterator[Victim]:
    """Ready chunks with soft leases only, the longest unused first."""
    return connection.execute(
        "SELECT c.id, c.name, c.bytes FROM chunks c JOIN leases l ON l.chunk = c.id WHERE c.ready = 1"
        " GROUP BY c.id HAVING sum(l.hard) = 0 ORDER BY c.used"
    )


def _clairvoyant(connection: sqlite3.Connection, foresight: Foresight, need: Need) -> tuple[list[Victim], int]:
    victims, left = pick(_unneeded(connection, foresight), need.missing)
    if left <= 0:
        return victims, left
    if need.hard:
        more, left = pick(_needed(connection, foresight, beyond=-1, soft=True), left)
        victims += more
        taken = {row for row, _, _ in victims}
        more = []
        if left > 0:  # prefetched without a plan; and a reader's way on must not depend on what this process knows
            rest = (victim for victim in chain(idle(connection), _prefetched(connection)) if victim[0] not in taken)
            more, left = pick(rest, left)
    elif _may_look_ahead(connection, foresight, need):
        distance = foresight.distance(need.name, need.number)
        more, left = pick(_needed(connection, foresight, beyond=distance, soft=False), left)
    else:
        return victims, left
    return victims + more, left


def _unneeded(connection: sqlite3.Connection, foresight: Foresight) -> Iterator[Victim]:
    """Ready chunks without leases that nobody will read, the longest unused first."""
    useless = foresight.unneeded()
    if len(useless) > _FEW:
        yield from (victim for victim in idle(connection) if victim[0] in useless)
    elif useless:
        found = _look_up(connection, foresight, list(useless))
        yield from ((row, name, size) for _, row, name, size in sorted(v for v, held in found if not held))


def _needed(connection: sqlite3.Connection, foresight: Foresight, *, beyond: int, soft: bool) -> Iterator[Victim]:
    """Ready chunks that are read after more than ``beyond`` others, the last first; ``soft``: prefetched ones too."""
    for rows in foresight.furthest(beyond):
        found = {row: ((row, name, size), held) for (_, row, name, size), held in _look_up(connection, foresight, rows)}
        for row in rows:
            victim, held = found.get(row, (None, 0))
            if victim is not None and held <= int(soft):
                yield victim


def _look_up(
    connection: sqlite3.Connection, foresight: Foresight, rows: list[int]
) -> list[tuple[tuple[float, int, str, int], int]]:
    """Last use, row, name and bytes of those that are ready still, and 1 where only prefetched, 2 where being read."""
    found = connection.execute(
        "SELECT used, id, name, bytes, coalesce((SELECT max(hard > 0) + 1 FROM leases WHERE chunk = chunks.id), 0)"
        f" FROM chunks WHERE ready = 1 AND id IN ({','.join('?' * len(rows))})",
        rows,
    ).fetchall()
    for row in set(rows) - {row for _, row, *_ in found}:
        foresight.forget(row)
    return [((used, row, name, size), held) for used, row, name, size, held in found]


def _may_look_ahead(connection: sqlite3.Connection, foresight: Foresight, need: Need) -> bool:
    """Whether a look-ahead may take the room of chunks that will be read."""
    (used,) = connection.execute("SELECT used FROM account").fetchone()
    absent, others = foresight.needed() * need.total - used, ahead(connection, need.flight)
    return not others or others + need.total <= LOOK_AHEAD_COST * absent


def ahead(connection: sqlite3.Connection, flight: int) -> int:
    """Bytes that were fetched ahead of their readers and not read yet, or will be by flights other than this one."""
    fetched, reserved = connection.execute(
        "SELECT (SELECT coalesce(sum(bytes), 0) FROM chunks WHERE early = 1"
        " AND EXISTS (SELECT 1 FROM leases WHERE chunk = chunks.id)),"
        " (SELECT coalesce(sum(reserved), 0) FROM flights WHERE hard = 0 AND lost = 0 AND id <> ?)",
        (flight,),
    ).fetchone()
    return int(fetched) + int(reserved)
