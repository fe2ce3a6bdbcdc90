"""Who lives: one locked file for each process that uses a cache directory.

The kernel frees the lock on any death, in any container that shares the directory; a reused pid cannot fool it. Names
are random and never used twice, a file is locked before its row is written, and is deleted only by who holds its lock.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from forebay.exceptions import CacheError

__all__ = ["HolderLock", "anybody_lives", "claim_if_dead", "sweep_indexes", "sweep_unlisted"]

_KEEPING = re.compile(r"([0-9a-f]{32}\.json)\.(?:lock|[0-9a-f]{16}\.tmp)")
_NAME = re.compile(r"[0-9a-f]{32}\.lock|probe\.[0-9a-f]{16}")


class HolderLock:
    """This process's own lock."""

    def __init__(self, folder: Path) -> None:
        from filelock import lock_descriptor

        folder.mkdir(parents=True, exist_ok=True)
        for _ in range(100):
            self.token = secrets.token_hex(16)
            self._path = folder / f"{self.token}.lock"
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                # A sweeper may have seen the file before we locked it; then it is the sweeper's, and gone.
                if lock_descriptor(self._fd, blocking=False) and os.fstat(self._fd).st_nlink:
                    return
            except BaseException:  # the descriptor is closed, whatever came; it is raised again
                os.close(self._fd)
                raise
            os.close(self._fd)
        raise CacheError(f"cannot keep a lock file in {folder}: something removes them", path=str(folder))

    def close(self) -> None:
        """Remove the file and let go of the lock."""
        try:
            self._path.unlink(missing_ok=True)
        finally:
            os.close(self._fd)

    def forget(self) -> None:
        """In a forked child: close the inherited descriptor only, or a dead parent would look alive."""
        os.close(self._fd)


def claim_if_dead(folder: Path, token: str) -> int | None:
    """Take the lock of a dead holder.

    Returns:
        A descriptor that holds its lock, -1 where its file is gone, None where the holder lives.
    """
    return _claim(folder / f"{token}.lock")


def _claim(path: Path) -> int | None:
    from filelock import lock_descriptor

    try:
        # flock needs no write access, so another user's holder can be told too.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    except OSError:
        return None  # cannot be told: taken for alive, which is the safe side
    try:
        if lock_descriptor(fd, blocking=False):
            return fd
    except OSError:
        pass  # as above
    os.close(fd)
    return None


def anybody_lives(folder: Path) -> bool:
    """Whether a process uses the directory, or cannot be told from one that does."""
    for name in os.listdir(folder):
        if _NAME.fullmatch(name) and name.endswith(".lock"):
            fd = _claim(folder / name)
            if fd is None:
                return True
            if fd >= 0:
                os.close(fd)
    return False


def sweep_unlisted(folder: Path, listed: set[str]) -> None:
    """Remove lock files of dead processes that no row names: a reaper died between the row and the file.

    So do probes (see `_platform.probe_locking`) go. Who locks a file of its own later than we do makes another.
    """
    for name in os.listdir(folder):
        if _NAME.fullmatch(name) and name.removesuffix(".lock") not in listed:
            fd = _claim(folder / name)
            if fd is not None and fd >= 0:
                (folder / name).unlink(missing_ok=True)
                os.close(fd)


def sweep_indexes(folder: Path) -> None:
    """Remove what was left by somebody who was killed while it kept an index (see `KeptIndex`), and its lock."""
    for name in os.listdir(folder):
        found = _KEEPING.fullmatch(name)
        if found is not None:
            fd = _claim(folder / f"{found[1]}.lock")
            if fd is not None:
                (folder / name).unlink(missing_ok=True)
                if fd >= 0:
                    (folder / f"{found[1]}.lock").unlink(missing_ok=True)
                    os.close(fd)
