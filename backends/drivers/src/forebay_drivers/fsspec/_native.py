"""The driver over a file system whose own implementation is async."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.downloader import SupportsWrite
from forebay.exceptions import InvalidRangeError, ObjectNotFoundError
from forebay.types import ObjectInfo, RangeRead
from forebay_drivers.checksums import check_body
from forebay_drivers.errors import Subject
from forebay_drivers.fsspec._dialect import Dialect, connections
from forebay_drivers.fsspec._shared import (
    PIECE,
    Paths,
    Target,
    acall,
    checked_range,
    compare,
    past_the_end,
    refuse_listing,
)
from forebay_drivers.loop import LoopThread
from forebay_drivers.validators import check_unchanged

if TYPE_CHECKING:
    from fsspec.asyn import AsyncFileSystem

__all__ = ["NativeDriver"]


class NativeDriver:
    """One root through an async file system, with an instance of its own for each event loop that uses it.

    The sync methods run on a loop in a thread of the driver's. fsspec's global loop and instance cache are not used.

    Args:
        make: Makes a file system with ``asynchronous=True``, ``skip_instance_cache=True`` and no cache of listings.
        subject: What errors say of a key.
        prefix: What stands before a key in the file system's paths: ``""``, or text that ends in ``/``.
        dialect: How this family of file systems takes keys and reads ranges.
        root: The path of the root itself; None cuts it from ``prefix``.
        before: Called before each request of a sync method, for credentials that expire. It may call `renew`.
        abefore: Its async twin.
    """

    name = "fsspec"

    def __init__(
        self,
        make: Callable[[], AsyncFileSystem],
        subject: Callable[[str], Subject],
        *,
        prefix: str,
        dialect: Dialect | None = None,
        root: str | None = None,
        before: Callable[[], None] | None = None,
        abefore: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._make = make
        self._subject = subject
        self._dialect = dialect or Dialect()
        self._paths = Paths(prefix, self._dialect, root)
        self._before = before
        self._abefore = abefore
        self._lock = threading.Lock()
        self._systems: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _System] = weakref.WeakKeyDictionary()
        self._loop = LoopThread()

    def refusal(self, key: str) -> str | None:
        """Why this file system would ask for another object than ``key``."""
        return self._paths.refusal(key)

    # -- one object or a piece of it ------------------------------------------------------------------------------

    async def aread(self, key: str, offset: int, length: int | None, if_match: str | None) -> RangeRead:
        """Bytes from ``offset``, and what the store says of the object: in the same response, or before and after."""
        await self._arefresh()
        return await self._read(key, offset, length, if_match)

    def read(self, key: str, offset: int, length: int | None, if_match: str | None) -> RangeRead:
        """Sync twin of `aread`."""
        self._refresh()
        return self._loop.run(self._read(key, offset, length, if_match))

    async def _read(self, key: str, offset: int, length: int | None, if_match: str | None) -> RangeRead:
        async with self._using(key) as fs:
            return await self._read_from(fs, key, offset, length, if_match)

    async def _read_from(
        self, fs: AsyncFileSystem, key: str, offset: int, length: int | None, if_match: str | None
    ) -> RangeRead:
        subject, path = self._subject(key), self._paths.path(key)
        stop = None if length is None else offset + length
        before = None
        if not self._dialect.tells and if_match is None:
            before = await acall(subject, lambda: self._dialect.astat(fs, path, key))
            if not before.size and before.size is not None and not offset:
                return RangeRead(data=b"", info=before)
            if offset and before.size is not None and offset >= before.size:
                past_the_end(offset, before.size, subject)
        try:
            data, told = await acall(subject, lambda: self._dialect.acat(fs, path, key, offset, stop, if_match))
        except InvalidRangeError:
            # An empty object has no first byte; stores do not say of which size they refused a range.
            now = await acall(subject, lambda: self._dialect.astat(fs, path, key))
            if offset or now.size:
                raise
            return RangeRead(data=b"", info=now)
        info = told if told is not None else await acall(subject, lambda: self._dialect.astat(fs, path, key))
        if before is not None:
            compare(before, info, subject)
        check_unchanged(info.etag, if_match, subject)
        if not offset and length is None and info.checksums:
            await asyncio.to_thread(check_body, data, info.checksums, subject)
        return checked_range(data, info, offset, length, subject)

    async def astream(self, key: str, fileobj: SupportsWrite) -> None:
        """Write the whole object."""
        await self._arefresh()
        await self._stream(key, fileobj)

    def stream(self, key: str, fileobj: SupportsWrite) -> None:
        """Sync twin of `astream`. ``fileobj`` is written to from the driver's thread while the caller waits."""
        self._refresh()
        self._loop.run(self._stream(key, fileobj))

    async def _stream(self, key: str, fileobj: SupportsWrite) -> None:
        async with self._using(key) as fs:
            await self._stream_from(fs, key, fileobj)

    async def _stream_from(self, fs: AsyncFileSystem, key: str, fileobj: SupportsWrite) -> None:
        subject, path = self._subject(key), self._paths.path(key)
        target = Target(fileobj)
        if await acall(subject, lambda: self._dialect.astream(fs, path, target), target):
            target.check(subject)
            return
        first = await acall(subject, lambda: self._dialect.astat(fs, path, key))
        if first.size is None:
            fileobj.write((await acall(subject, lambda: self._dialect.acat(fs, path, key, 0, None, None)))[0])
            return
        target.expect(first.checksums)
        pin, told, seen = first.etag, first, 0
        while seen < first.size:
            data, said = await self._piece(fs, key, seen, min(seen + PIECE, first.size), pin)
            if said is not None:
                told = said
                compare(first, told, subject)
            read = checked_range(data, first, seen, PIECE, subject)
            if memoryview(read.data).nbytes != len(data):  # the store ignores ranges: this is the whole body
                target.write(memoryview(data)[seen:])
                seen = len(data)
                continue
            target.write(data)
            seen += len(data)
        target.check(subject)
        if told is first:
            compare(first, await acall(subject, lambda: self._dialect.astat(fs, path, key)), subject)

    async def _piece(
        self, fs: AsyncFileSystem, key: str, start: int, stop: int, if_match: str | None
    ) -> tuple[bytes, ObjectInfo | None]:
        path = self._paths.path(key)
        return await acall(self._subject(key), lambda: self._dialect.acat(fs, path, key, start, stop, if_match))

    # -- what is known of objects ---------------------------------------------------------------------------------

    async def astat(self, key: str) -> ObjectInfo:
        """What the file system knows of the object."""
        await self._arefresh()
        return await self._stat(key)

    def stat(self, key: str) -> ObjectInfo:
        """Sync twin of `astat`."""
        self._refresh()
        return self._loop.run(self._stat(key))

    async def _stat(self, key: str) -> ObjectInfo:
        path = self._paths.path(key)
        async with self._using(key) as fs:
            return await acall(self._subject(key), lambda: self._dialect.astat(fs, path, key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key starts with ``prefix``, recursively."""
        self._refresh()
        yield from self._loop.run(self._list(prefix))

    async def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        subject = self._subject(prefix)
        if not self._dialect.lists:
            refuse_listing(subject)
        start = self._paths.start(prefix)
        try:
            async with self._using(prefix) as fs:
                found = await acall(subject, lambda: self._dialect.afind(fs, start))
        except ObjectNotFoundError:
            if "/" not in prefix:  # the root itself
                raise
            found = {}
        return self._paths.listed(found, prefix)

    # -- writing --------------------------------------------------------------------------------------------------

    async def aupload(self, key: str, path: Path) -> None:
        """Store the file's bytes."""
        await self._arefresh()
        await self._upload(key, path)

    def upload(self, key: str, path: Path) -> None:
        """Sync twin of `aupload`."""
        self._refresh()
        self._loop.run(self._upload(key, path))

    async def _upload(self, key: str, path: Path) -> None:
        target = self._paths.path(key)
        async with self._using(key) as fs:
            await acall(self._subject(key), lambda: self._dialect.aput(fs, path, target))

    # -- file systems ---------------------------------------------------------------------------------------------

    def renew(self) -> None:
        """Have new file systems made by the next requests; those under way go on with what they have."""
        with self._lock:
            systems, self._systems = list(self._systems.items()), weakref.WeakKeyDictionary()
        for loop, system in systems:
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(system.aretire(), loop)

    async def _arefresh(self) -> None:
        if self._abefore is not None:
            await self._abefore()

    def _refresh(self) -> None:
        if self._before is not None:
            self._before()

    @asynccontextmanager
    async def _using(self, key: str) -> AsyncIterator[AsyncFileSystem]:
        loop = asyncio.get_running_loop()
        with self._lock:
            system = self._systems.get(loop)
            if system is None:
                system = self._systems[loop] = _System(self._make, self._dialect)
        system.users += 1
        try:
            yield await acall(self._subject(key), system.ready)
        finally:
            system.users -= 1
            await system.aleft()

    async def aclose(self) -> None:
        """Close the file system of the running loop."""
        with self._lock:
            system = self._systems.pop(asyncio.get_running_loop(), None)
        if system is not None:
            await system.aclose()

    def close(self) -> None:
        """Close all of them, those of living loops by their own threads."""
        self._loop.close(self.aclose())
        with self._lock:
            systems, self._systems = list(self._systems.items()), weakref.WeakKeyDictionary()
        for loop, system in systems:
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(system.aclose(), loop)
            else:
                system.abandon()


class _System:
    """The file system of one event loop, made and warmed up by the first request."""

    def __init__(self, make: Callable[[], AsyncFileSystem], dialect: Dialect) -> None:
        self._make = make
        self._dialect = dialect
        self._making = asyncio.Lock()
        self._fs: AsyncFileSystem | None = None
        self._retired = False
        self.users = 0

    async def ready(self) -> AsyncFileSystem:
        if self._fs is None:
            async with self._making:
                if self._fs is None:
                    fs = self._make()
                    await self._dialect.awarm(fs)
                    self._fs = fs
        return self._fs

    async def aclose(self) -> None:
        fs, self._fs = self._fs, None
        if fs is not None:
            await self._dialect.aclose(fs)

    async def aretire(self) -> None:
        """Close it once no request is under way any more."""
        self._retired = True
        await self.aleft()

    async def aleft(self) -> None:
        """A request has ended."""
        if self._retired and not self.users:
            await self.aclose()

    def abandon(self) -> None:
        """Close sockets whose loop is closed: the public way is a coroutine, and nothing is left to run it."""
        fs, self._fs = self._fs, None
        for holder in connections(fs) if fs is not None else ():
            connector = getattr(holder, "connector", None)
            if connector is not None and hasattr(holder, "detach"):
                holder.detach()
                connector._close()
