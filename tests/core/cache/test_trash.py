"""What is removed inside a transaction is kept open for a moment, and closed whatever becomes of the transaction."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from servers.cache_actor import key, put

from forebay._cache import Cache, Flight, open_cache
from forebay._cache._shared import SharedCache

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are seen in /proc")


def removed_and_open(directory: Path) -> list[str]:
    """Files below ``directory`` that have no name any more, and whose blocks this process keeps."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith(f"{directory}/chunks") and target.endswith("(deleted)"):
            found.append(target)
    return found


def execute(cache: Cache, statement: str) -> None:
    assert isinstance(cache, SharedCache)
    cache.member.ledger.write(lambda connection: connection.execute(statement))


@contextmanager
def refused(cache: Cache) -> Iterator[None]:
    """The ledger fails when it is to note that a chunk went, as it does on a full disk."""
    execute(
        cache,
        "CREATE TRIGGER refuse BEFORE UPDATE OF ready ON chunks WHEN new.ready = 0 AND old.ready = 1"
        " BEGIN SELECT RAISE(ABORT, 'refused'); END",
    )
    with pytest.raises(sqlite3.IntegrityError, match="refused"):
        yield


def test_a_release_that_fails_keeps_no_room_on_the_disk(directory: Path, cache: Cache) -> None:
    """Risk D8: a smaller budget came while the chunk was held; its file goes with the lease, and so do its blocks."""
    put(cache, 1, 600)
    open_cache(directory, max_bytes=500).close()
    with refused(cache):
        cache.release(key(1), hard=True)
    assert removed_and_open(directory) == []
    execute(cache, "DROP TRIGGER refuse")


def test_an_abort_that_fails_keeps_no_room_on_the_disk(directory: Path, cache: Cache) -> None:
    put(cache, 1, 600)
    flight = cache.acquire(key(2), hard=True)
    assert isinstance(flight, Flight)
    open_cache(directory, max_bytes=500).close()
    execute(cache, "DELETE FROM leases")  # another process was the last to hold it
    with refused(cache):
        flight.abort()
    assert removed_and_open(directory) == []
    execute(cache, "DROP TRIGGER refuse")


def test_leaving_that_fails_keeps_no_room_on_the_disk(directory: Path, cache: Cache) -> None:
    put(cache, 1, 600)
    open_cache(directory, max_bytes=500).close()
    with refused(cache):
        cache.close()
    assert removed_and_open(directory) == []
