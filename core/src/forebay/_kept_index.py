"""Indexes that were fetched before, beside the cache's chunks: one fetch a machine, however many ranks open a dataset.

A kept index is used only if the store says that it still has the same one; whoever opens a dataset meanwhile waits for
the one that fetches. A file holds a line of JSON, the store's validator and the digest of the rest, and then the index.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forebay import _config
from forebay._file_lock import lock_file, unlock_file

__all__ = ["KeptIndex"]

logger = logging.getLogger("forebay")


class KeptIndex:
    """The copy of one index.

    Args:
        path: Where it lies. A place that cannot be written is as good as an empty one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside the block no other process asks for the index; a wait that takes too long ends without that."""
        path = f"{self._path}.lock"
        fd = _lock(path, _config.wait_timeout())
        try:
            if fd is not None:
                self._sweep()
            yield
        finally:
            if fd is not None:
                with suppress(OSError):  # removed with the whole cache, perhaps
                    os.unlink(path)  # still locked: whoever waits for this file sees that it is gone
                unlock_file(fd)

    def _sweep(self) -> None:
        """Remove what somebody left who was killed while keeping the index; he had the lock that is ours now."""
        with suppress(OSError):  # gone meanwhile, or another user's
            for entry in os.scandir(self._path.parent):
                if entry.name.startswith(f"{self._path.name}.") and entry.name.endswith(".tmp"):
                    os.unlink(entry.path)

    def load(self) -> tuple[str, bytes] | None:
        """Return the validator and the index, None where there is none, or a damaged one."""
        try:
            with self._path.open("rb") as file:
                head = json.loads(file.readline())
                data = file.read()
            etag, digest = head["etag"], head["digest"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return (etag, data) if isinstance(etag, str) and digest == _digest(data) else None

    def store(self, etag: str | None, data: bytes) -> None:
        """Keep an index, if the store has a validator for it that says something about its bytes."""
        if etag is None or etag.startswith("W/"):
            return
        temp = self._path.with_name(f"{self._path.name}.{secrets.token_hex(8)}.tmp")
        try:
            with temp.open("xb") as file:
                file.write(json.dumps({"etag": etag, "digest": _digest(data)}).encode() + b"\n")
                file.write(data)
            os.replace(temp, self._path)
        except OSError as exc:  # no room, or no right to write: the next one fetches it again
            logger.debug("the index is not kept: %s", exc)
        finally:
            with suppress(OSError):  # moved, or never made
                temp.unlink()


def _lock(path: str, timeout: float) -> int | None:
    """Return the descriptor of the locked file, or None where nobody can be kept out."""
    try:
        fd = lock_file(path, timeout)
    except OSError as exc:  # the directory is read-only, or full: nobody fetches for the others
        logger.debug("no lock beside the index: %s", exc)
        return None
    if fd is None:
        logger.warning("another process has been fetching an index for %.0f s; it is fetched here as well", timeout)
    return fd


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
