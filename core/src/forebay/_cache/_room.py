"""The budget: what is reserved, who waits for room, and which chunks go to make it.

Hard waiters are served in the order of their tickets; nobody overtakes the first of them. Chunks without leases go
first and, for a hard waiter, prefetched ones (`_victims` says in which order), then flights that themselves wait for
room while they hold some: so no two of them can hold half each and wait for ever.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay import _config
from forebay._cache._layout import Layout, Trash
from forebay._cache._rows import find, lose_flight, unready
from forebay._cache._types import FlightLostError
from forebay._cache._victims import Need, Victim, ahead, choose, idle, pick
from forebay.exceptions import BudgetTooSmallError

if TYPE_CHECKING:
    from forebay._cache._foresight import Foresight

__all__ = ["WAITER_PATIENCE", "Budget", "budget_of", "grant", "has_room", "room_beside", "shrink", "starving"]

#: Seconds without a word after which a waiter loses its turn (not its place): its process may be stopped.
WAITER_PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class Budget:
    """The account at one moment. ``stray`` are bytes below ``chunks/`` that are not ours."""

    limit: int
    used: int
    stray: int

    @property
    def free(self) -> int:
        """Bytes that may still be reserved; negative where a smaller budget came after the bytes."""
        return self.limit - self.used - self.stray


def budget_of(connection: sqlite3.Connection, fallback: int) -> Budget:
    """The account, under the smallest budget of the living holders, else the recorded one, else ``fallback``."""
    used, stray, recorded, smallest = connection.execute(
        "SELECT used, stray, budget, (SELECT min(budget) FROM holders) FROM account"
    ).fetchone()
    limit = smallest if smallest is not None else recorded if recorded is not None else fallback
    return Budget(limit, used, stray)


def grant(
    connection: sqlite3.Connection,
    layout: Layout,
    flight: int,
    total: int,
    *,
    hard: bool,
    fallback: int,
    foresight: Foresight | None,
    trash: Trash,
) -> tuple[bool, int]:
    """Make the flight's reservation ``total`` bytes; returns whether it is, and how many chunks were evicted.

    Raises:
        BudgetTooSmallError: ``total`` does not fit the budget even when nothing else is there.
        FlightLostError: The flight may not publish any more.
    """
    row = connection.execute("SELECT reserved, lost, ticket FROM flights WHERE id = ?", (flight,)).fetchone()
    if row is None or row[1]:
        raise FlightLostError("the fetch was taken over, or gave its room to a reader that waits")
    reserved, _, ticket = row
    if total <= reserved:
        return True, 0
    budget = budget_of(connection, fallback)
    if total + budget.stray > budget.limit:
        raise BudgetTooSmallError(_arithmetic(layout, total, budget), path=str(layout.directory))
    now = _config.monotonic()
    ahead = _first_ticket(connection, now)
    granted, evicted = ahead is None or (hard and ticket is not None and ticket <= ahead), 0
    missing = total - reserved - budget.free
    granted = granted and (hard or _leaves_readers_their_room(connection, budget, flight, total))
    if granted and missing > 0:
        name, number = connection.execute(
            "SELECT c.name, c.number FROM flights f JOIN chunks c ON c.id = f.chunk WHERE f.id = ?", (flight,)
        ).fetchone()
        need = Need(flight=flight, name=name, number=number, total=total, missing=missing, hard=hard)
        granted, evicted = _make_room(connection, layout, foresight, need, trash)
    if granted:
        connection.execute(
            "UPDATE flights SET reserved = ?, hard = ?, beat = ?, waiting = 0, ticket = NULL WHERE id = ?",
            (total, int(hard), now, flight),
        )
    else:
        _queue(connection, flight, now, hard=hard, ticket=ticket)
    return granted, evicted


def has_room(
    connection: sqlite3.Connection,
    foresight: Foresight | None,
    *,
    name: str,
    number: int | None,
    total: int,
    fallback: int,
) -> bool:
    """Whether a look-ahead for a chunk of ``total`` bytes would be granted its room now, or need none."""
    row = find(connection, name)
    if row is not None and (row.ready or row.flight is not None):
        return True
    if _first_ticket(connection, _config.monotonic()) is not None:
        return False
    budget = budget_of(connection, fallback)
    if not _leaves_readers_their_room(connection, budget, 0, total):
        return False
    missing = total - budget.free
    need = Need(flight=0, name=name, number=number, total=total, missing=missing, hard=False)
    return missing <= 0 or choose(connection, foresight, need)[1] <= 0


def starving(connection: sqlite3.Connection) -> list[int]:
    """The flights of the hard waiters, in the order of their tickets."""
    found = connection.execute(
        "SELECT id FROM flights WHERE ticket IS NOT NULL AND beat > ? ORDER BY ticket",
        (_config.monotonic() - WAITER_PATIENCE,),
    ).fetchall()
    return [flight for (flight,) in found]


def room_beside(connection: sqlite3.Connection, names: set[str], fallback: int) -> int:
    """Bytes of the budget that are left when everything goes but the chunks with these names."""
    budget, kept = budget_of(connection, fallback), 0
    for name in names:
        row = find(connection, name)
        kept += row.bytes if row is not None and row.ready else 0
    return budget.limit - budget.stray - kept


def shrink(connection: sqlite3.Connection, layout: Layout, fallback: int, trash: Trash) -> int:
    """Evict chunks without leases until the budget holds, as far as that goes; returns how many went."""
    missing = -budget_of(connection, fallback).free
    victims, _ = pick(idle(connection), missing)
    return sum(_evict(connection, layout, victim, trash) for victim in victims)


def _arithmetic(layout: Layout, total: int, budget: Budget) -> str:
    size = _config.format_size
    other = f" of which files that are not the cache's own take {size(budget.stray)}" if budget.stray else ""
    return (
        f"a chunk of {size(total)} ({total} bytes) does not fit the budget of {size(budget.limit)} ({budget.limit}"
        f" bytes){other} of the cache {layout.directory}: raise max_cache_bytes to at least {total + budget.stray}"
    )


def _leaves_readers_their_room(connection: sqlite3.Connection, budget: Budget, flight: int, total: int) -> bool:
    """Whether all that is fetched ahead, with these bytes, leaves each reader under way the room of one chunk.

    A reader between two chunks holds neither. A look-ahead that took its room would be evicted a moment later. Readers
    are taken to need no more than is asked for here: one huge chunk somewhere must not end all looking ahead.
    """
    (needs,) = connection.execute("SELECT coalesce(sum(min(need, ?)), 0) FROM windows", (total,)).fetchone()
    return bool(needs + ahead(connection, flight) + total <= budget.limit - budget.stray)


def _first_ticket(connection: sqlite3.Connection, now: float) -> int | None:
    (ticket,) = connection.execute(
        "SELECT min(ticket) FROM flights WHERE ticket IS NOT NULL AND beat > ?", (now - WAITER_PATIENCE,)
    ).fetchone()
    return ticket if ticket is None else int(ticket)


def _queue(connection: sqlite3.Connection, flight: int, now: float, *, hard: bool, ticket: int | None) -> None:
    if hard and ticket is None:
        (ticket,) = connection.execute("UPDATE account SET ticket = ticket + 1 RETURNING ticket").fetchone()
    connection.execute(
        "UPDATE flights SET hard = ?, beat = ?, waiting = 1, ticket = ? WHERE id = ?",
        (int(hard), now, ticket if hard else None, flight),
    )


def _evict(connection: sqlite3.Connection, layout: Layout, victim: Victim, trash: Trash) -> bool:
    chunk, name, _ = victim
    if unready(connection, layout, chunk, name, trash):
        return True
    # Another user's file that we may not remove: it stays counted, and the next try begins with others.
    connection.execute("UPDATE chunks SET used = ? WHERE id = ?", (_config.wall_clock(), chunk))
    return False


def _make_room(
    connection: sqlite3.Connection, layout: Layout, foresight: Foresight | None, need: Need, trash: Trash
) -> tuple[bool, int]:
    """Free the missing bytes, or touch nothing where that cannot be; returns whether, and how many were evicted."""
    victims, left = choose(connection, foresight, need)
    losers: list[int] = []
    if need.hard and left > 0:
        # Flights whose file exists give its bytes back; the others only when their owners notice.
        for other, temp, reserved in connection.execute(
            "SELECT id, temp, reserved FROM flights WHERE waiting = 1 AND lost = 0 AND reserved > 0 AND id <> ?"
            " ORDER BY hard, ticket DESC",
            (need.flight,),
        ).fetchall():
            if left <= 0:
                break
            losers.append(other)
            left -= reserved if layout.size_of(temp) is not None else 0
    if left > 0:
        return False, 0
    for other in losers:
        lose_flight(connection, layout, other, trash)
    gone = sum(_evict(connection, layout, victim, trash) for victim in victims)
    return gone == len(victims), gone
