"""A locked file that keeps other processes out for a while."""

from __future__ import annotations

import os
import time
from pathlib import Path

from forebay import _config

__all__ = ["lock_file", "unlock_file"]

#: Seconds between two tries.
LOCK_INTERVAL = 0.01


def lock_file(path: Path | str, timeout: float) -> int | None:
    """Lock the file, which is made where there is none, and which its holder may remove.

    Returns:
        Its descriptor, for `unlock_file`; None where somebody else had the lock for ``timeout`` seconds.

    Raises:
        OSError: It cannot be opened or not be locked.
    """
    from filelock import lock_descriptor

    deadline = _config.monotonic() + timeout
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if lock_descriptor(fd, blocking=False) and os.fstat(fd).st_nlink:
                return fd
        except BaseException:  # the descriptor is closed, whatever came; it is raised again
            os.close(fd)
            raise
        os.close(fd)
        if _config.monotonic() >= deadline:
            return None
        time.sleep(LOCK_INTERVAL)


def unlock_file(fd: int) -> None:
    """Let go of the lock, and not by closing alone: a child that was forked meanwhile has a copy of the descriptor."""
    from filelock import unlock_descriptor

    try:
        unlock_descriptor(fd)
    finally:
        os.close(fd)
