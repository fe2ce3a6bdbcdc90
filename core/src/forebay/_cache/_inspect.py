"""Looking on: numbers, who holds what, and a check of every chunk. Nothing here changes the cache."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from forebay import _config
from forebay._cache import _recover
from forebay._cache._layout import TEMP
from forebay._cache._ledger import Ledger
from forebay._cache._room import budget_of
from forebay._cache._types import Problem
from forebay.types import CacheInfo

__all__ = ["describe", "file_digest", "info", "refcount", "verify"]

_PIECE = 1 << 20


def info(connection: sqlite3.Connection, fallback: int) -> CacheInfo:
    """The numbers of the directory. Reservations stand for the temporary files that they cover."""
    budget = budget_of(connection, fallback)
    chunks, leases, holders = connection.execute(
        "SELECT (SELECT count(*) FROM chunks WHERE ready = 1), (SELECT coalesce(sum(hard + soft), 0) FROM leases),"
        " (SELECT count(*) FROM holders)"
    ).fetchone()
    return CacheInfo(
        bytes=budget.used + budget.stray, max_bytes=budget.limit, chunks=chunks, leases=leases, holders=holders
    )


def refcount(connection: sqlite3.Connection, chunk_url: str) -> int:
    """Leases on the chunk with this redacted URL."""
    (count,) = connection.execute(
        "SELECT coalesce(sum(l.hard + l.soft), 0) FROM leases l JOIN chunks c ON c.id = l.chunk WHERE c.url = ?",
        (chunk_url,),
    ).fetchone()
    return int(count)


def describe(connection: sqlite3.Connection, fallback: int) -> str:
    """Who holds what, in one line."""
    size, budget = _config.format_size, budget_of(connection, fallback)
    parts = [f"budget {size(budget.limit)}, used {size(budget.used)}"]
    if budget.stray:
        parts.append(f"files that are not the cache's own {size(budget.stray)}")
    for number, pid, host in connection.execute("SELECT id, pid, host FROM holders ORDER BY since").fetchall():
        reads, reading, ahead = connection.execute(
            "SELECT count(*), coalesce(sum(c.bytes), 0), coalesce(sum(l.hard = 0), 0) FROM leases l"
            " JOIN chunks c ON c.id = l.chunk WHERE l.holder = ? AND c.ready = 1",
            (number,),
        ).fetchone()
        fetches, reserved, waits = connection.execute(
            "SELECT count(*), coalesce(sum(reserved), 0), coalesce(sum(waiting), 0) FROM flights WHERE holder = ?",
            (number,),
        ).fetchone()
        parts.append(
            f"process {pid} on {host} holds {reads} chunks ({size(reading)}; {ahead} of them only prefetched)"
            f" and fetches {fetches} ({size(reserved)} reserved, {waits} waiting for room)"
        )
    return "; ".join(parts)


def file_digest(path: Path | str) -> str:
    """``"xxh3-64:<16 hex>"`` of a file."""
    import xxhash

    digest = xxhash.xxh3_64()
    buffer = bytearray(_PIECE)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0, opener=_no_follow) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
    return f"xxh3-64:{digest.hexdigest()}"


def _no_follow(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def verify(ledger: Ledger, fallback: int) -> list[Problem]:
    """Everything that is not as it should be."""
    layout = ledger.layout
    rows = ledger.read(
        lambda connection: connection.execute("SELECT name, bytes, digest FROM chunks WHERE ready = 1").fetchall()
    )
    problems = [problem for name, size, digest in rows if (problem := _check(ledger, name, size, digest)) is not None]
    problems += _leftovers(ledger)
    budget = ledger.read(lambda connection: budget_of(connection, fallback))
    counted, sums = ledger.read(_sums)
    if counted != sums:
        problems.append(Problem(kind="account", path="ledger.sqlite", message=f"{counted} bytes counted, {sums} held"))
    if budget.free < 0:
        message = f"{budget.used + budget.stray} bytes where {budget.limit} are allowed"
        problems.append(Problem(kind="over budget", path=layout.chunks.name, message=message))
    return problems


def _sums(connection: sqlite3.Connection) -> tuple[int, int]:
    counted, chunks, flights = connection.execute(
        "SELECT used, (SELECT coalesce(sum(bytes), 0) FROM chunks), (SELECT coalesce(sum(reserved), 0) FROM flights)"
        " FROM account"
    ).fetchone()
    return counted, chunks + flights


def _check(ledger: Ledger, name: str, size: int, digest: str | None) -> Problem | None:
    layout = ledger.layout
    missing = "missing", "the ledger says that it is ready"
    try:
        found = layout.size_of(name)
        if found is None:
            kind, message = missing
        elif found != size:
            kind, message = "size", f"{found} bytes where {size} were published"
        elif digest is not None and (actual := file_digest(layout.final(name))) != digest:
            kind, message = "digest", f"{actual} where {digest} was published"
        else:
            return None
    except FileNotFoundError:
        kind, message = missing
    except OSError as exc:
        kind, message = "unreadable", exc.strerror or str(exc)

    def still(connection: sqlite3.Connection) -> bool:
        query = "SELECT bytes, digest FROM chunks WHERE name = ? AND ready = 1"
        current = connection.execute(query, (name,)).fetchone()
        return bool(current == (size, digest)) and (kind != "missing" or layout.size_of(name) is None)

    # It may have been evicted, or fetched anew, while we read. Who evicts removes the file first and says so then, in
    # one transaction: inside of one of ours no other is half done.
    return Problem(kind=kind, path=f"chunks/{name}", message=message) if ledger.write(still) else None


def _leftovers(ledger: Ledger) -> list[Problem]:
    layout = ledger.layout
    files = [(name, entry.name) for name, entry in _recover.files_below(layout)]
    known = ledger.read(
        lambda connection: {
            name
            for query in ("SELECT name FROM chunks", "SELECT temp FROM flights")
            for (name,) in connection.execute(query).fetchall()
        }
    )
    problems = []
    for name, file in files:
        if name in known or layout.size_of(name) is None:
            continue
        kind = "temporary" if TEMP.fullmatch(file) else "unknown"
        message = "left by a dead process: gc removes it" if kind == "temporary" else "not in the ledger"
        problems.append(Problem(kind=kind, path=f"chunks/{name}", message=message))
    return problems
