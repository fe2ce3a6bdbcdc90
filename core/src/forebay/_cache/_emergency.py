"""Room on a disk so full that the ledger cannot be written, or not even opened.

Whoever removes chunks says so in the ledger, which takes some room itself. Where no process uses the directory, nothing
that lies there is in use either; so a file or two go first then, and the ledger finds out with the next run.
"""

from __future__ import annotations

from contextlib import suppress

from forebay._cache._holders import anybody_lives
from forebay._cache._layout import TEMP, Layout, dustbin, remove
from forebay._cache._platform import disk_is_full
from forebay._cache._recover import files_below, is_ours

__all__ = ["make_room"]

#: What is made free, for the ledger to be opened and to remove the rest in good order.
_ENOUGH = 1 << 20


def make_room(layout: Layout) -> bool:
    """Remove chunks, the oldest first, until the ledger can be written again; returns whether any went.

    Nothing is removed where a process uses the directory, or where it is not the disk that is full.
    """
    leftovers: list[tuple[float, str]] = []
    chunks: list[tuple[float, str]] = []
    for name, entry in files_below(layout):
        if is_ours(name) and not entry.is_symlink():
            with suppress(FileNotFoundError):
                age = entry.stat(follow_symlinks=False).st_mtime
                (leftovers if TEMP.fullmatch(entry.name) else chunks).append((age, entry.path))
    gone = False
    for _, path in sorted(leftovers) + sorted(chunks):
        if not disk_is_full(layout.directory, _ENOUGH) or anybody_lives(layout.holders):
            break
        with dustbin() as trash:
            gone = remove(path, trash) or gone
    return gone
