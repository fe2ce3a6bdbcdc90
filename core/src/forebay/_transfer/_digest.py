"""Digests in the form ``"algorithm:hex"``."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Protocol

import xxhash

from forebay.exceptions import UnsupportedFormatError

__all__ = ["OWN", "Digest", "file_digest", "new_digest"]

#: The algorithm that every published chunk is recorded with.
OWN = "xxh3-64"
_PIECE = 1 << 20


class Digest(Protocol):
    """The part of hashlib's interface that is needed here."""

    def update(self, data: bytes | memoryview, /) -> object:
        """Take bytes."""
        ...

    def hexdigest(self) -> str:
        """The digest so far."""
        ...


def new_digest(algorithm: str) -> Digest:
    """Start a digest.

    Raises:
        UnsupportedFormatError: The algorithm is not known here.
    """
    if algorithm == OWN:
        return xxhash.xxh3_64()
    try:
        return hashlib.new(algorithm, usedforsecurity=False)
    except ValueError:
        raise UnsupportedFormatError(f"the promised digest is of an unknown algorithm: {algorithm!r}") from None


def file_digest(path: Path | str) -> str:
    """Return the ``"xxh3-64:hex"`` of a file."""
    digest = xxhash.xxh3_64()
    buffer = memoryview(bytearray(_PIECE))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while count := os.readv(descriptor, [buffer]):
            digest.update(buffer[:count])
    finally:
        os.close(descriptor)
    return f"{OWN}:{digest.hexdigest()}"
