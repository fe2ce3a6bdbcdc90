"""A disk that is full before the cache's budget is: how that is told, and what is asked back from the cache."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from forebay._transfer import Source
from forebay.exceptions import CacheFullError

__all__ = ["DISK_TRIES", "FULL_ERRNOS", "disk_full", "disk_need", "is_full_disk"]

FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
#: What is asked for beside the chunk: the ledger's log grows to half of it, and other fetches go on.
_MARGIN = 8 << 20
#: Times that a reader asks: what was evicted may be mapped still, or somebody else is faster.
DISK_TRIES = 3


def disk_full(exc: OSError, url: str, directory: Path) -> CacheFullError:
    """The error for the chunk at ``url`` (redacted) that could not be written."""
    return CacheFullError(
        f"{os.strerror(exc.errno or 0)} while {url} was written below {directory}: free some space there, or lower"
        " max_cache_bytes",
        path=str(directory),
    )


def is_full_disk(exc: CacheFullError) -> bool:
    """Whether it is the disk that is full, under a chunk or under the ledger, and not the budget."""
    return isinstance(exc.__cause__, OSError | sqlite3.Error)


def disk_need(source: Source) -> int | None:
    """Bytes to ask the cache for; None, all that can go, where nobody knows how large the chunk is."""
    size = source.expected_decoded
    return None if size is None else size + _MARGIN
