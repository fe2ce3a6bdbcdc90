"""The driver over a file system that only blocks: for use in threads, with an instance for each call at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from forebay.downloader import SupportsWrite
from forebay.exceptions import ObjectNotFoundError, TransientError
from forebay.types import ObjectInfo, RangeRead
from forebay_drivers.errors import Subject
from forebay_drivers.fsspec._dialect import Dialect, connections, find, stat
from forebay_drivers.fsspec._shared import Paths, call, checked_range, compare, past_the_end, refuse_listing
from forebay_drivers.validators import check_unchanged

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["BlockingDriver"]

T = TypeVar("T")


class BlockingDriver:
    """One root through a blocking file system. No instance is used by two threads at once: most hold one connection.

    The async methods run in the event loop's threads, for callers that have only those; the engine has better ones.

    Args:
        make: Makes a file system with ``skip_instance_cache=True`` and no cache of listings.
        subject: What errors say of a key.
        prefix: What stands before a key in the file system's paths: ``""``, or text that ends in ``/``.
        dialect: How this family of file systems takes keys.
        root: The path of the root itself; None cuts it from ``prefix``.
    """

    name = "fsspec"

    def __init__(
        self,
        make: Callable[[], AbstractFileSystem],
        subject: Callable[[str], Subject],
        *,
        prefix: str,
        dialect: Dialect | None = None,
        root: str | None = None,
    ) -> None:
        self._make = make
        self._subject = subject
        self._dialect = dialect or Dialect()
        self._paths = Paths(prefix, self._dialect, root)
        self._lock = threading.Lock()
        self._idle: list[AbstractFileSystem] = []
        self._closed = 0

    def refusal(self, key: str) -> str | None:
        """Why this file system would ask for another object than ``key``."""
        return self._paths.refusal(key)

    # -- one object or a piece of it ------------------------------------------------------------------------------

    def read(self, key: str, offset: int, length: int | None, if_match: str | None) -> RangeRead:
        """Bytes from ``offset``, with what the file system says of the object before and after."""
        subject, path = self._subject(key), self._paths.path(key)
        stop = None if length is None else offset + length
        with self._borrowed(subject) as fs:
            before = call(subject, lambda: stat(fs, path, key))
            check_unchanged(before.etag, if_match, subject)
            if not offset and before.size == 0:
                return RangeRead(data=b"", info=before)
            if offset and before.size is not None and offset >= before.size:
                past_the_end(offset, before.size, subject)
            data = call(subject, lambda: self._dialect.cat(fs, path, offset, stop, before.size))
            compare(before, call(subject, lambda: stat(fs, path, key)), subject)
        return checked_range(data, before, offset, length, subject)

    async def aread(self, key: str, offset: int, length: int | None, if_match: str | None) -> RangeRead:
        """Async twin of `read`."""
        return await asyncio.to_thread(self.read, key, offset, length, if_match)

    def stream(self, key: str, fileobj: SupportsWrite) -> None:
        """Write the whole object."""
        subject, path = self._subject(key), self._paths.path(key)
        with self._borrowed(subject) as fs:
            before = call(subject, lambda: stat(fs, path, key))
            seen = 0
            pieces = self._dialect.pieces(fs, path, before.size)
            try:
                while piece := call(subject, lambda: next(pieces, b"")):
                    seen += fileobj.write(piece)
            finally:
                call(subject, pieces.close)
            compare(before, call(subject, lambda: stat(fs, path, key)), subject)
        checked_range(b"", ObjectInfo(key, None if before.size is None else before.size - seen), 0, None, subject)

    async def astream(self, key: str, fileobj: SupportsWrite) -> None:
        """Async twin of `stream`."""
        await asyncio.to_thread(self.stream, key, fileobj)

    # -- what is known of objects ---------------------------------------------------------------------------------

    def stat(self, key: str) -> ObjectInfo:
        """What the file system knows of the object."""
        subject, path = self._subject(key), self._paths.path(key)
        with self._borrowed(subject) as fs:
            return call(subject, lambda: stat(fs, path, key))

    async def astat(self, key: str) -> ObjectInfo:
        """Async twin of `stat`."""
        return await asyncio.to_thread(self.stat, key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key starts with ``prefix``, recursively; a folder that is not there holds none."""
        subject, start = self._subject(prefix), self._paths.start(prefix)
        if not self._dialect.lists:
            refuse_listing(subject)
        with self._borrowed(subject) as fs:
            try:
                found = call(subject, lambda: find(fs, start))
            except ObjectNotFoundError:
                if "/" not in prefix:  # the root itself
                    raise
                found = {}
        yield from self._paths.listed(found, prefix)

    # -- writing --------------------------------------------------------------------------------------------------

    def upload(self, key: str, path: Path) -> None:
        """Store the file's bytes, with the folders above it where the file system has folders."""
        subject, target = self._subject(key), self._paths.path(key)
        with self._borrowed(subject) as fs:
            folder = target.rpartition("/")[0]
            if folder:
                call(subject, lambda: _make_folder(fs, folder))
            call(subject, lambda: fs.put_file(str(path), target))

    async def aupload(self, key: str, path: Path) -> None:
        """Async twin of `upload`."""
        await asyncio.to_thread(self.upload, key, path)

    # -- file systems ---------------------------------------------------------------------------------------------

    @contextmanager
    def _borrowed(self, subject: Subject) -> Iterator[AbstractFileSystem]:
        """A file system that nobody else uses meanwhile; one that failed is not used again."""
        with self._lock:
            fs, generation = (self._idle.pop() if self._idle else None), self._closed
        if fs is None:
            fs = call(subject, self._make)
        try:
            yield fs
        except ObjectNotFoundError:
            self._give_back(fs, generation)
            raise
        except TransientError:
            # Those that lay idle as long are as likely to be broken: the next try gets a new one.
            with self._lock:
                idle, self._idle = self._idle, []
            for one in (fs, *idle):
                _close(one)
            raise
        except BaseException:
            _close(fs)
            raise
        self._give_back(fs, generation)

    def _give_back(self, fs: AbstractFileSystem, generation: int) -> None:
        with self._lock:
            if generation == self._closed:
                self._idle.append(fs)
                return
        _close(fs)

    async def aclose(self) -> None:
        """Nothing belongs to an event loop."""

    def close(self) -> None:
        """Close the connections; those of calls under way once the calls end."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._closed += 1
        for fs in idle:
            _close(fs)


def _make_folder(fs: AbstractFileSystem, folder: str) -> None:
    try:
        fs.makedirs(folder, exist_ok=True)
    except Exception:  # SFTP says "Failure", FTP has errors of its own
        if not fs.isdir(folder):
            raise  # else somebody made it after the file system had looked


def _close(fs: AbstractFileSystem) -> None:
    for holder in connections(fs):
        # It is not used again, and may be broken already.
        with suppress(OSError, EOFError):
            holder.close()
