"""A second opinion on the budget: what really lies on the disk, looked at from outside the cache."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Peak", "watched"]

_INTERVAL = 0.01


class Peak:
    """The largest sum of file sizes seen so far."""

    def __init__(self) -> None:
        self.bytes = 0
        self.samples = 0


@contextmanager
def watched(directory: Path) -> Iterator[Peak]:
    """Sample the bytes below ``directory`` while the block runs."""
    peak = Peak()
    done = threading.Event()

    def work() -> None:
        while not done.wait(_INTERVAL):
            _sample(directory, peak)

    thread = threading.Thread(target=work, name="forebay-demo-watch", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()
        _sample(directory, peak)


def _sample(directory: Path, peak: Peak) -> None:
    # Two looks that find the same files: one that was evicted between the looks, and the one that took its place, would
    # otherwise be counted together and show more than ever lay there at one time.
    before = dict(_files(directory))
    after = dict(_files(directory))
    if before.keys() == after.keys():
        peak.bytes = max(peak.bytes, sum(before.values()))
        peak.samples += 1


def _files(directory: Path | str) -> Iterator[tuple[str, int]]:
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            else:
                yield entry.path, entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:  # gone since it was listed
            continue
