"""`Driver`: what a backend needs from a library, whichever that is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from forebay.downloader import SupportsWrite
from forebay.types import ObjectInfo, RangeRead

__all__ = ["Driver"]


class Driver(Protocol):
    """One root through one library. Keys are relative to the root, and `refusal` has let them pass.

    All errors are Forebay's, made by `forebay_drivers.errors.failure` or `status_failure`. Nothing is retried here.
    Methods may be called from several threads and event loops; a driver is never used in another process than the one
    that made it. ``read`` with ``length=None`` reads to the end. A range that starts at or past the end of a non-empty
    object is `InvalidRangeError`, an empty object gives ``b""``, and an object whose etag is not ``if_match`` is
    `ObjectChangedError`.
    """

    @property
    def name(self) -> str:
        """``obstore`` or ``fsspec``."""
        ...

    def refusal(self, key: str) -> str | None:
        """Why this library would ask for another object than ``key``; None where it takes the key as it is."""
        ...

    def read(self, key: str, offset: int, length: int | None, if_match: str | None) -> RangeRead:
        """Bytes from ``offset``, and what the response says of the object."""
        ...

    async def aread(self, key: str, offset: int, length: int | None, if_match: str | None) -> RangeRead:
        """Async twin of `read`."""
        ...

    def stream(self, key: str, fileobj: SupportsWrite) -> None:
        """Write the whole object."""
        ...

    async def astream(self, key: str, fileobj: SupportsWrite) -> None:
        """Async twin of `stream`."""
        ...

    def stat(self, key: str) -> ObjectInfo:
        """Size, etag, version and date."""
        ...

    async def astat(self, key: str) -> ObjectInfo:
        """Async twin of `stat`."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key starts with ``prefix``, recursively; keys are relative to the root."""
        ...

    def upload(self, key: str, path: Path) -> None:
        """Store the file's bytes, whole or not at all."""
        ...

    async def aupload(self, key: str, path: Path) -> None:
        """Async twin of `upload`."""
        ...

    async def aclose(self) -> None:
        """Let go of what belongs to the running event loop."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...
