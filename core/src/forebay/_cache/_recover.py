"""What the dead left behind, and what lies in the directory: reaping holders, making the ledger and the disk agree."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator

from forebay import _config
from forebay._cache._holders import claim_if_dead, sweep_indexes, sweep_unlisted
from forebay._cache._layout import FINAL, TEMP, Layout, Trash, dustbin, remove
from forebay._cache._ledger import Ledger
from forebay._cache._platform import boot_id
from forebay._cache._room import shrink
from forebay._cache._rows import bury, drop_unwanted, end_flight, find, unready

__all__ = [
    "adopt",
    "begin_run",
    "files_below",
    "find_dead",
    "is_dataset",
    "is_ours",
    "reap",
    "reap_one",
    "reconcile",
    "settle_estate",
    "sweep",
]


def reap(ledger: Ledger, mine: int | None) -> int:
    """Bury every dead holder; returns how many there were. ``mine`` is known to live."""
    rows = ledger.read(lambda connection: connection.execute("SELECT id, token FROM holders").fetchall())
    buried = sum(reap_one(ledger, holder, token) for holder, token in rows if holder != mine)
    if buried:
        _forget_missing(ledger)
    return buried


def find_dead(ledger: Ledger, mine: int | None) -> list[int]:
    """The dead holders, which stay as they are."""
    dead = []
    for holder, token in ledger.read(lambda connection: connection.execute("SELECT id, token FROM holders").fetchall()):
        claim = None if holder == mine else claim_if_dead(ledger.layout.holders, token)
        if claim is not None:
            dead.append(holder)
            if claim >= 0:
                os.close(claim)
    return dead


def _forget_missing(ledger: Ledger) -> None:
    """Who dies while it evicts has removed files and not said so: their bytes would be counted until the next run.

    The files are looked for outside of the transaction, for there may be a hundred thousand.
    """
    layout = ledger.layout
    rows = ledger.read(lambda connection: connection.execute("SELECT id, name FROM chunks WHERE ready = 1").fetchall())
    missing = [(number, name) for number, name in rows if layout.size_of(name) is None]
    if not missing:
        return

    def forget(connection: sqlite3.Connection) -> None:
        for number, name in missing:
            row = find(connection, name)
            if row is not None and row.id == number and row.ready and layout.size_of(name) is None:
                unready(connection, layout, number, name, trash)

    with dustbin() as trash:
        ledger.write(forget)


def reap_one(ledger: Ledger, holder: int, token: str) -> bool:
    """Bury one holder if it is dead. Its lock is held until its rows and its file are gone."""
    folder = ledger.layout.holders
    claim = claim_if_dead(folder, token)
    if claim is None:
        return False
    try:
        with dustbin() as trash:
            ledger.write(lambda connection: settle_estate(connection, ledger.layout, holder, trash))
        (folder / f"{token}.lock").unlink(missing_ok=True)
    finally:
        if claim >= 0:
            os.close(claim)
    return True


def settle_estate(connection: sqlite3.Connection, layout: Layout, holder: int, trash: Trash) -> None:
    """Forget a holder that left or died, and let go of what only it kept in the cache past a smaller budget."""
    bury(connection, layout, holder, trash)
    shrink(connection, layout, sys.maxsize, trash)  # where no budget is known none can be passed


def begin_run(connection: sqlite3.Connection, layout: Layout, trash: Trash) -> None:
    """For the first holder after a time without any: a new run, in which nothing on the disk is trusted yet."""
    if connection.execute("SELECT 1 FROM holders LIMIT 1").fetchone():
        return
    boot = boot_id()
    if connection.execute("SELECT boot FROM account").fetchone() != (boot,):
        # The ledger is not synced to the disk: a power cut may have left a part of it.
        for (verdict,) in connection.execute("PRAGMA quick_check(1)").fetchall():
            if verdict != "ok":
                error = sqlite3.DatabaseError(verdict)
                error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
                raise error
    connection.execute("UPDATE account SET run = run + 1, boot = ?", (boot,))
    reconcile(connection, layout, trash)
    sweep(connection, layout)


def sweep(connection: sqlite3.Connection, layout: Layout) -> None:
    """Remove lock files of nobody who lives, and small files that were never finished."""
    layout.sweep_births()
    sweep_indexes(layout.indexes)
    sweep_unlisted(layout.holders, {token for (token,) in connection.execute("SELECT token FROM holders").fetchall()})


def reconcile(connection: sqlite3.Connection, layout: Layout, trash: Trash) -> None:
    """Make the ledger say what the directory holds.

    A ready chunk whose file is gone is gone; a whole chunk without a row is taken in, unverified; a temporary that no
    flight owns is removed; whatever has another name is left alone and its bytes are counted.
    """
    for (flight,) in connection.execute("SELECT id FROM flights WHERE holder = 0").fetchall():
        end_flight(connection, layout, flight, trash)
    rows = dict(connection.execute("SELECT name, ready FROM chunks").fetchall())
    temps = {temp for (temp,) in connection.execute("SELECT temp FROM flights").fetchall()}
    seen, stray = set(), 0
    for name, entry in files_below(layout):
        if rows.get(name):
            seen.add(name)
        elif name in temps:
            continue
        elif not is_ours(name) or entry.is_symlink():
            stray += _size(entry)
        elif TEMP.fullmatch(entry.name) or name in rows:
            if not remove(entry.path, trash):
                stray += _size(entry)
        else:
            adopt_one(connection, name, _size(entry))
    for name in [name for name, ready in rows.items() if ready and name not in seen]:
        connection.execute("UPDATE chunks SET ready = 0, bytes = 0, digest = NULL, run = -1 WHERE name = ?", (name,))
        for (chunk,) in connection.execute("SELECT id FROM chunks WHERE name = ?", (name,)).fetchall():
            drop_unwanted(connection, chunk)
    connection.execute("UPDATE account SET stray = ?", (stray,))


def adopt(connection: sqlite3.Connection, layout: Layout) -> None:
    """Fill a new ledger with the budget and the whole chunks in the directory; temporaries wait for a holder."""
    connection.execute("UPDATE account SET budget = ?", (layout.recorded_budget(),))
    for name, entry in files_below(layout):
        if is_ours(name) and not TEMP.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            adopt_one(connection, name, _size(entry))


def adopt_one(connection: sqlite3.Connection, name: str, size: int) -> None:
    """Take in one whole chunk, of unknown origin and without a digest."""
    connection.execute(
        "INSERT INTO chunks (name, url, ready, bytes, used) VALUES (?, '', 1, ?, ?)", (name, size, _config.wall_clock())
    )


def files_below(layout: Layout) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every entry below ``chunks/`` that is no folder, by its path from there. Links are not followed."""
    pending = [""]
    while pending:
        prefix = pending.pop()
        try:
            entries = list(os.scandir(layout.final(prefix)))
        except FileNotFoundError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                pending.append(f"{prefix}{entry.name}/")
            else:
                yield prefix + entry.name, entry


def is_dataset(name: str) -> bool:
    """Whether the folder name is one that the cache makes."""
    return 0 < len(name) <= 64 and not name.strip("0123456789abcdef")


def is_ours(name: str) -> bool:
    """Whether the name below ``chunks/`` is one that the cache gives to a chunk or a temporary file."""
    dataset, _, file = name.partition("/")
    return is_dataset(dataset) and bool(FINAL.fullmatch(file) or TEMP.fullmatch(file))


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:  # renamed or removed since the folder was listed
        return 0
