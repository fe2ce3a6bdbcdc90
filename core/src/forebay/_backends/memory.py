"""``memory://NAME/KEY``: objects in this process, for tests and examples.

One store a process. A forked child has a copy of what its parent held; a spawned one starts empty.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

import xxhash

from forebay._config import wall_clock
from forebay._url import join_url, parse_url, redact
from forebay.downloader import Downloader, SupportsWrite, check_range
from forebay.exceptions import ConfigError, InvalidRangeError, ObjectChangedError, ObjectNotFoundError
from forebay.types import Capabilities, ObjectInfo, RangeRead

__all__ = ["STORE", "MemoryDownloader", "MemoryStore"]

_PIECE = 1 << 20  # a body goes to its writer in pieces of this size, as from a network


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    etag: str
    modified: datetime


class MemoryStore:
    """Objects by URL. Every method is atomic and may be called from any thread."""

    def __init__(self) -> None:
        self._objects: dict[str, _Object] = {}
        self._lock = threading.Lock()

    def reset_lock(self) -> None:
        """In a forked child: another thread may have held the lock at that moment."""
        self._lock = threading.Lock()

    def put(self, url: str, data: bytes | bytearray | memoryview) -> None:
        """Store ``data`` under ``url``, whole."""
        copy = bytes(data)
        # By content, so that two processes that hold different bytes never show one etag.
        item = _Object(copy, f'"{xxhash.xxh3_128_hexdigest(copy)}"', datetime.fromtimestamp(wall_clock(), UTC))
        with self._lock:
            self._objects[_name(url)] = item

    def delete(self, url: str) -> None:
        """Remove the object.

        Raises:
            ObjectNotFoundError: There is none.
        """
        with self._lock:
            if self._objects.pop(_name(url), None) is None:
                raise ObjectNotFoundError(f"no object {redact(url)} in memory", url=redact(url), backend="memory")

    def clear(self, root: str = "memory://") -> None:
        """Remove every object whose URL starts with ``root``."""
        start = _name(root)
        with self._lock:
            self._objects = {name: item for name, item in self._objects.items() if not name.startswith(start)}

    def get(self, url: str) -> _Object | None:
        """The object, or None."""
        with self._lock:
            return self._objects.get(_name(url))

    def names(self, start: str) -> list[tuple[str, _Object]]:
        """Name (the URL after ``memory://``) and object of all that begin with ``start``, sorted."""
        with self._lock:
            return sorted(
                ((name, item) for name, item in self._objects.items() if name.startswith(start)),
                key=lambda pair: pair[0],
            )


def _name(url: str) -> str:
    parsed = parse_url(url)
    if parsed.scheme != "memory":
        raise ConfigError(f"{parsed.redacted} is not a memory:// URL")
    return parsed.rest


#: The objects of this process.
STORE = MemoryStore()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=STORE.reset_lock)


class MemoryDownloader(Downloader):
    """Objects of this process. Async hooks are native: nothing in them waits."""

    option_types: ClassVar[Mapping[str, type] | None] = {}

    @classmethod
    def probe_driver(cls, options: Mapping[str, object]) -> Capabilities:
        """Plain Python, usable everywhere."""
        return Capabilities(native_async=True, driver="python", fork_safe=True)

    def _get(self, key: str) -> _Object:
        url = join_url(self.root, key)
        item = STORE.get(url)
        if item is None:
            raise ObjectNotFoundError(
                f"no object {key!r} under {redact(self.root)} (backend memory)",
                url=redact(url),
                key=key,
                backend="memory",
            )
        return item

    def _info(self, key: str, item: _Object) -> ObjectInfo:
        return ObjectInfo(key, size=len(item.data), etag=item.etag, last_modified=item.modified)

    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        """Write the object in pieces."""
        view = memoryview(self._get(key).data)
        for start in range(0, len(view), _PIECE):
            fileobj.write(view[start : start + _PIECE])

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return the slice, by the rules of `Downloader.download_bytes`."""
        check_range(key, offset, length)
        return b"" if length == 0 else self._slice(key, self._get(key).data, offset, length)

    def _slice(self, key: str, data: bytes, offset: int, length: int | None) -> bytes:
        if offset > 0 and offset >= len(data):
            raise InvalidRangeError(
                f"range starts at byte {offset} of {key!r}, which has {len(data)} bytes", key=key, backend="memory"
            )
        return data[offset : None if length is None else offset + length]

    def stat(self, key: str) -> ObjectInfo:
        """Return size, etag and time of the object."""
        return self._info(key, self._get(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects under the root whose key starts with ``prefix``, sorted, as they were at the call."""
        start = parse_url(join_url(self.root, "x")).rest[:-1]
        for name, item in STORE.names(start + prefix):
            yield self._info(name[len(start) :], item)

    def upload_file(self, key: str, path: Path) -> None:
        """Store the file's bytes under ``key``."""
        STORE.put(join_url(self.root, key), path.read_bytes())

    async def adownload_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        """Async twin of ``download_fileobj``."""
        self.download_fileobj(key, fileobj)

    async def adownload_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Async twin of ``download_bytes``."""
        return self.download_bytes(key, offset, length)

    async def astat(self, key: str) -> ObjectInfo:
        """Async twin of ``stat``."""
        return self.stat(key)

    async def aupload_file(self, key: str, path: Path) -> None:
        """Async twin of ``upload_file``; the file is read in a thread."""
        import asyncio

        await asyncio.to_thread(self.upload_file, key, path)

    async def aread_range(self, key: str, offset: int, length: int, *, if_match: str | None = None) -> RangeRead:
        """Read a range pinned to ``if_match``."""
        check_range(key, offset, length)
        item = self._get(key)
        if if_match is not None and if_match != item.etag:
            raise ObjectChangedError(
                f"{key!r} under {redact(self.root)} was replaced while it was read (backend memory)",
                url=redact(join_url(self.root, key)),
                key=key,
                backend="memory",
            )
        data = b"" if length == 0 else self._slice(key, item.data, offset, length)
        return RangeRead(data=data, info=self._info(key, item))
