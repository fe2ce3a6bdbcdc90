"""A small disk of one's own, and what makes it full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from servers.require import unavailable

__all__ = ["fill", "mounted"]


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """Mount a tmpfs on a new folder."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        unavailable("mount", f"a small disk needs the right to mount one: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(ballast: Path, left: int) -> None:
    """Take the disk's free space, all but ``left`` bytes."""
    found = os.statvfs(ballast.parent)
    with suppress(OSError), open(ballast, "ab", buffering=0) as file:  # a look-ahead may be faster
        file.write(b"x" * max(found.f_bavail * found.f_frsize - left, 0))
