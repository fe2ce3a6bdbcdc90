"""The transactions behind `SharedCache`: each takes a connection inside a write transaction and does one whole step."""

from __future__ import annotations

import os
import secrets
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from forebay import _config
from forebay._cache import _recover
from forebay._cache._layout import INDEX, Layout, Trash, remove
from forebay._cache._room import budget_of, shrink
from forebay._cache._rows import Row, add_lease, find, lose_flight, new_row, unready
from forebay._cache._types import Busy, ChunkKey, FlightLostError, Ready, UnregisteredError
from forebay.exceptions import CacheError

__all__ = [
    "NewFlight",
    "Seen",
    "Wanted",
    "as_ready",
    "check_in",
    "clear",
    "collect",
    "enter",
    "look",
    "publish",
]


@dataclass(frozen=True, slots=True)
class NewFlight:
    """A flight was begun; ``temp`` is relative to ``chunks/``."""

    id: int
    temp: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What somebody asks for. ``lease``: take one; ``seize``: the stalled flight to take over."""

    chunk: ChunkKey
    hard: bool
    lease: bool
    seize: int | None


@dataclass(frozen=True, slots=True)
class Seen:
    """What a waiter sees. ``registered``: the ledger knows us."""

    registered: bool
    ready: Ready | None = None
    busy: Busy | None = None
    flight: int = 0
    holder: int = 0
    token: str = ""
    beat: float = 0.0


def as_ready(layout: Layout, row: Row) -> Ready | None:
    """The chunk, if its file is still what was published: a file that somebody removed or cut is none."""
    if not row.ready or layout.size_of(row.name) != row.bytes:
        return None
    return Ready(path=layout.path(row.name), bytes=row.bytes, digest=row.digest, trusted=bool(row.trusted))


def _as_busy(connection: sqlite3.Connection, flight: int) -> Busy | None:
    found = connection.execute(
        "SELECT f.since, h.pid, h.host FROM flights f LEFT JOIN holders h ON h.id = f.holder WHERE f.id = ?", (flight,)
    ).fetchone()
    return None if found is None else Busy(since=found[0], holder=f"process {found[1]} on {found[2]}")


def _is_registered(connection: sqlite3.Connection, holder: int) -> bool:
    return connection.execute("SELECT 1 FROM holders WHERE id = ?", (holder,)).fetchone() is not None


def look(connection: sqlite3.Connection, layout: Layout, name: str, holder: int) -> Seen:
    """See how a chunk is, without changing anything."""
    registered, row = _is_registered(connection, holder), find(connection, name)
    ready = None if row is None else as_ready(layout, row)
    busy = None if row is None or ready is not None or row.flight is None else _as_busy(connection, row.flight)
    if row is None or busy is None:
        return Seen(registered=registered, ready=ready)
    fetcher, beat, token = connection.execute(
        "SELECT f.holder, f.beat, coalesce(h.token, '') FROM flights f LEFT JOIN holders h ON h.id = f.holder"
        " WHERE f.id = ?",
        (row.flight,),
    ).fetchone()
    return Seen(registered=registered, busy=busy, flight=row.flight or 0, holder=fetcher, token=token, beat=beat)


def enter(
    connection: sqlite3.Connection,
    trash: Trash,
    *,
    layout: Layout,
    name: str,
    wanted: Wanted,
    holder: int,
) -> Ready | Busy | NewFlight:
    """Take a lease (unless we have one), and find the chunk ready, being fetched, or ours to fetch.

    Raises:
        UnregisteredError: The holder is not in the ledger.
    """
    chunk, hard = wanted.chunk, wanted.hard
    row = find(connection, name) or new_row(connection, name, chunk)
    if wanted.lease:
        if not add_lease(connection, row.id, holder, hard=hard):
            raise UnregisteredError
    elif not _is_registered(connection, holder):
        raise UnregisteredError
    if row.run < 0:  # perhaps taken in from the directory, where neither URL nor number is known
        connection.execute(
            "UPDATE chunks SET url = ?, number = ? WHERE id = ? AND (url = '' OR number IS NOT ?)",
            (chunk.url, chunk.number, row.id, chunk.number),
        )
    ready = as_ready(layout, row)
    if ready is not None:
        return ready
    if row.ready and not unready(connection, layout, row.id, name, trash):
        path = layout.final(name)
        raise CacheError(f"{path} is not what was published there and cannot be removed: remove it by hand", path=path)
    if row.flight is not None and row.flight == wanted.seize:
        lose_flight(connection, layout, row.flight, trash)
    elif row.flight is not None and (busy := _as_busy(connection, row.flight)) is not None:
        return busy
    return _begin(connection, layout, find(connection, name) or new_row(connection, name, chunk), holder, hard=hard)


def _begin(connection: sqlite3.Connection, layout: Layout, row: Row, holder: int, *, hard: bool) -> NewFlight:
    layout.make_dataset_folder(row.name)  # within: where it cannot be made there is no flight, and no lease either
    flight = NewFlight(secrets.randbits(62), layout.new_temp(row.name))
    connection.execute(
        "INSERT INTO flights (id, chunk, holder, temp, hard, since, beat) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (flight.id, row.id, holder, flight.temp, int(hard), _config.wall_clock(), _config.monotonic()),
    )
    connection.execute("UPDATE chunks SET flight = ? WHERE id = ?", (flight.id, row.id))
    return flight


def check_in(connection: sqlite3.Connection, name: str, holder: int) -> Row | None:
    """Find a chunk, for a holder that must be in the ledger.

    Raises:
        UnregisteredError: It is not.
    """
    if not _is_registered(connection, holder):
        raise UnregisteredError
    return find(connection, name)


def publish(
    connection: sqlite3.Connection,
    *,
    layout: Layout,
    name: str,
    flight: int,
    temp: Path,
    size: int,
    digest: str,
    etag: str | None,
    early: bool,
    fallback: int,
) -> None:
    """Rename the file and make the chunk ready. The rename comes last: until the commit, the flight covers both names.

    Raises:
        FlightLostError: The flight may not publish any more.
        CacheError: The file is not what is promised.
    """
    row, found = find(connection, name), connection.execute(
        "SELECT reserved, lost FROM flights WHERE id = ?", (flight,)
    ).fetchone()  # fmt: skip
    if row is None or found is None or found[1] or row.flight != flight:
        raise FlightLostError("the fetch was taken over, or gave its room to a reader that waits")
    actual = layout.size_of(temp.relative_to(layout.chunks).as_posix())
    if actual != size:
        state = "is missing" if actual is None else f"has {actual} bytes"
        raise CacheError(f"{temp} {state} where {size} bytes were to be published", path=str(temp))
    if size - found[0] > max(budget_of(connection, fallback).free, 0):
        raise CacheError(f"{temp} has {size} bytes where {found[0]} were reserved", path=str(temp))
    connection.execute("DELETE FROM flights WHERE id = ?", (flight,))
    connection.execute(
        "UPDATE chunks SET ready = 1, bytes = ?, digest = ?, etag = ?, used = ?, flight = NULL,"
        " early = ?, run = (SELECT run FROM account) WHERE id = ?",
        (size, digest, etag, _config.wall_clock(), int(early), row.id),
    )
    os.replace(temp, layout.final(name))


def collect(connection: sqlite3.Connection, layout: Layout, fallback: int, trash: Trash) -> None:
    """Make the ledger and the directory agree, keep the budget, and remove empty folders."""
    _recover.reconcile(connection, layout, trash)
    _recover.sweep(connection, layout)
    shrink(connection, layout, fallback, trash)
    _remove_empty_folders(connection, layout)


def clear(connection: sqlite3.Connection, layout: Layout, trash: Trash) -> int:
    """Remove every chunk that nobody uses, and the index files when nobody uses any; returns how many stay."""
    _recover.reconcile(connection, layout, trash)
    for chunk, name in connection.execute(
        "SELECT id, name FROM chunks WHERE ready = 1 AND NOT EXISTS (SELECT 1 FROM leases WHERE chunk = chunks.id)"
    ).fetchall():
        unready(connection, layout, chunk, name, trash)
    _remove_empty_folders(connection, layout)
    (left,) = connection.execute("SELECT count(*) FROM chunks").fetchone()
    if not left:
        for entry in os.scandir(layout.indexes):
            if INDEX.fullmatch(entry.name):
                remove(entry.path, trash)
    return int(left)


def _remove_empty_folders(connection: sqlite3.Connection, layout: Layout) -> None:
    used = {name.partition("/")[0] for (name,) in connection.execute("SELECT name FROM chunks").fetchall()}
    for entry in os.scandir(layout.chunks):
        if _recover.is_dataset(entry.name) and entry.name not in used and entry.is_dir(follow_symlinks=False):
            try:
                os.rmdir(entry.path)
            except OSError:
                continue  # not empty: something that is not ours lies there, and stays
