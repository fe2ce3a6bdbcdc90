"""A store's own checksums of whole objects, in the form ``"algorithm:hex"``: which can be compared here, and how.

They tell damage on the way, not forgery: whoever can change the bytes of a response can change its headers too. So the
fastest that is at hand is taken, and not the longest (measured, docs/design/0010: md5 costs more than the download).
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import zlib
from collections.abc import Callable, Iterable
from typing import Protocol

__all__ = ["Checksum", "available", "from_base64", "start_checksum"]

_Extend = Callable[[bytes | memoryview, int], int]


class Checksum(Protocol):
    """The part of hashlib's interface that is needed here."""

    def update(self, data: bytes | memoryview, /) -> object:
        """Take bytes."""
        ...

    def hexdigest(self) -> str:
        """The checksum so far."""
        ...


class _Crc:
    def __init__(self, extend: _Extend, digits: int) -> None:
        self._extend = extend
        self._digits = digits
        self._value = 0

    def update(self, data: bytes | memoryview, /) -> None:
        self._value = self._extend(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:0{self._digits}x}"


#: Algorithm to the number of its bytes, the cheapest first.
_SIZES = {"crc64nvme": 8, "crc32c": 4, "crc32": 4, "sha1": 20, "sha256": 32, "md5": 16}


def available() -> tuple[str, ...]:
    """The algorithms that can be computed here without slowing a download down for it, the cheapest first."""
    return tuple(_makers())


def from_base64(algorithm: str, text: str | None) -> str | None:
    """A checksum as stores write it in headers; None where it is none of ``algorithm``'s."""
    size = _SIZES.get(algorithm)
    if not text or size is None:
        return None
    try:
        raw = base64.b64decode(text.strip(), validate=True)
    except binascii.Error:
        return None  # S3 marks a checksum of parts' checksums with "-COUNT"
    return f"{algorithm}:{raw.hex()}" if len(raw) == size else None


def start_checksum(told: Iterable[str]) -> tuple[str, Checksum] | None:
    """Of the checksums that a store tells, the cheapest that can be computed here, and a new one to compare it with."""
    by_name = {one.partition(":")[0]: one for one in told}
    return next(((by_name[name], make()) for name, make in _makers().items() if name in by_name), None)


@functools.cache
def _makers() -> dict[str, Callable[[], Checksum]]:
    found: dict[str, Callable[[], Checksum]] = {
        "crc32": lambda: _Crc(zlib.crc32, 8),
        **{name: functools.partial(hashlib.new, name, usedforsecurity=False) for name in ("sha1", "sha256", "md5")},
    }
    # Both come with other packages (gcsfs, the AWS SDK) or as extras of the backends; neither is needed.
    try:
        import google_crc32c
    except ImportError:
        pass
    else:
        if google_crc32c.implementation == "c":  # the one in Python takes a second for 2 MiB
            extend = google_crc32c.extend
            found["crc32c"] = lambda: _Crc(lambda data, value: int(extend(value, bytes(data))), 8)
    try:
        from awscrt import checksums
    except ImportError:
        pass
    else:
        if hasattr(checksums, "crc64nvme"):  # since 0.23
            found["crc64nvme"] = lambda: _Crc(checksums.crc64nvme, 16)
        found.setdefault("crc32c", lambda: _Crc(checksums.crc32c, 8))
    return {name: found[name] for name in _SIZES if name in found}
