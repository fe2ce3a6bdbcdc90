"""Where the cache works: operating systems, file systems that lock, and errors that mean "read-only"."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

from forebay.exceptions import CacheCorruptError, CacheError

__all__ = ["READ_ONLY_ERRNOS", "boot_id", "disk_is_full", "probe_locking", "refuse_platform", "remedy_text"]

#: EROFS is no PermissionError, and some file systems say EPERM: all three mean that we may not write here.
READ_ONLY_ERRNOS = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
#: Where less than this can be written, SQLite finds no room for its log and its shared memory.
_TOO_LITTLE = 64 << 10


def refuse_platform(platform: str) -> None:
    """Raise where the cache cannot work at all.

    Raises:
        CacheError: ``platform`` is Windows.
    """
    if platform.startswith("win"):
        raise CacheError(
            "the cache needs Linux or macOS: it deletes and replaces files that readers have mapped, which Windows"
            " does not allow. Use WSL 2, or read the dataset from a local directory without a cache"
        )


def remedy_text(directory: Path) -> str:
    """What to do about a directory that cannot hold a cache."""
    return (
        f"choose a cache directory on a local disk, with cache_dir= or FOREBAY_CACHE_DIR, instead of {str(directory)!r}"
    )


def probe_locking(directory: Path) -> None:
    """Find out whether a second lock on one file is refused in ``directory``, as everything here relies on.

    Raises:
        CacheCorruptError: Locks are not supported, or are granted twice (some NFS and parallel file systems).
    """
    from filelock import lock_descriptor

    path = directory / f"probe.{secrets.token_hex(8)}"
    first = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        second = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            works = lock_descriptor(first, blocking=False) and not lock_descriptor(second, blocking=False)
        except OSError as exc:
            raise CacheCorruptError(
                f"the file system of {directory.parent} cannot lock files ({exc.strerror or exc}):"
                f" {remedy_text(directory.parent)}",
                path=str(directory.parent),
            ) from exc
        finally:
            os.close(second)
    finally:
        os.close(first)
        path.unlink(missing_ok=True)
    if not works:
        raise CacheCorruptError(
            f"the file system of {directory.parent} grants one lock twice, so processes could not tell who lives:"
            f" {remedy_text(directory.parent)}",
            path=str(directory.parent),
        )


def disk_is_full(directory: Path, need: int = _TOO_LITTLE) -> bool:
    """Whether ``need`` bytes cannot be written for lack of room; it is tried, since a quota tells itself only so."""
    path = directory / f"FORMAT.{secrets.token_hex(8)}.tmp"
    try:
        with open(path, "xb", buffering=0) as file:
            left = need
            while left > 0:
                left -= file.write(bytes(left))
    except OSError as exc:
        return exc.errno in _FULL
    finally:
        path.unlink(missing_ok=True)
    return False


def boot_id() -> str:
    """A text that differs from boot to boot, empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
