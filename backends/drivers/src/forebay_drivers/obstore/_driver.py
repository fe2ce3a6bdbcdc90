"""The obstore driver: identity bodies with a length, at the speed of the wire.

One request a part; size and etag come from the same response. Its own retries are off.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import BaseError

from forebay.downloader import SupportsWrite
from forebay.exceptions import (
    ConfigError,
    ConnectionFailedError,
    IncompleteBodyError,
    InvalidRangeError,
    ServerError,
    StorageError,
)
from forebay.types import ObjectInfo, RangeRead
from forebay_drivers import drain, fork
from forebay_drivers.errors import HEAD_SAYS_LITTLE, Subject, failure
from forebay_drivers.obstore._errors import SDK_ERRORS, clean_cause, translate
from forebay_drivers.validators import check_unchanged, is_strong

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult
    from obstore.store import ObjectStore

__all__ = ["ObstoreDriver"]

T = TypeVar("T")

# Large enough to be cheap, small enough that a slow link still shows a write every few seconds.
_PIECE = 256 * 1024
_PART = 8 * 1024 * 1024  # of an upload
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)  # obstore's stand-in for a missing Last-Modified


class ObstoreDriver:
    """Talks to one root through obstore. The store is made at the first request, once, under a lock.

    Args:
        make: Makes the store of the bucket (or of the whole root).
        subject: What errors say of a key.
        prefix: What keys are relative to inside the store, without outer slashes.
    """

    name = "obstore"

    def __init__(
        self,
        make: Callable[[], ObjectStore],
        subject: Callable[[str], Subject],
        *,
        prefix: str = "",
    ) -> None:
        self._make = make
        self._subject = subject
        self._prefix = prefix
        self._lock = threading.Lock()
        self._made: ObjectStore | None = None
        self._may_hang_up = False

    def refusal(self, key: str) -> str | None:
        """obstore drops outer slashes and has no empty or dot segments and no control characters."""
        path = self._path(key)
        for segment in path.split("/"):
            if segment in ("", ".", ".."):
                return f"obstore has no way to name the segment {segment!r}"
        return None if path.isprintable() else _unprintable(path)

    def _path(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key

    def _store(self) -> ObjectStore:
        with self._lock:
            if self._made is None:
                self._made = self._first()
            fork.note_start()
            return self._made

    def _first(self) -> ObjectStore:
        try:
            return self._make()
        except BaseError as exc:
            # It reads variables of its own too, whether they are needed or not.
            said = clean_cause(exc, self._subject(""))
            what = f"obstore cannot be set up with these options and this environment: {said}"
        raise ConfigError(what)

    # -- one object or a piece of it ------------------------------------------------------------------------------

    def read(self, key: str, offset: int, length: int | None, if_match: str | None) -> RangeRead:
        """Bytes from ``offset``, and what the response says of the object."""
        subject, options = self._subject(key), _get_options(offset, length, if_match)
        store, path = self._store(), self._path(key)
        try:
            result = self._get(subject, lambda: obstore.get(store, path, options=options))
        except InvalidRangeError:
            if offset or "range" not in options:
                raise
            return self.read(key, 0, None, if_match)  # no first byte: the object is empty
        info = self._info(result, key, subject, if_match)
        data = self._call(subject, result.bytes)
        return RangeRead(data=_checked_data(memoryview(data), result.range, subject), info=info)

    async def aread(self, key: str, offset: int, length: int | None, if_match: str | None) -> RangeRead:
        """Async twin of `read`. The data is a view of the driver's own buffer: nothing is copied."""
        subject, options = self._subject(key), _get_options(offset, length, if_match)
        store, path = self._store(), self._path(key)
        try:
            result = await self._aget(subject, lambda: obstore.get_async(store, path, options=options))
        except InvalidRangeError:
            if offset or "range" not in options:
                raise
            return await self.aread(key, 0, None, if_match)
        info = self._info(result, key, subject, if_match)
        data = await self._acall(subject, result.bytes_async)
        return RangeRead(data=_checked_data(memoryview(data), result.range, subject), info=info)

    def stream(self, key: str, fileobj: SupportsWrite) -> None:
        """Write the whole object."""
        subject, path = self._subject(key), self._path(key)
        store = self._store()
        result = self._get(subject, lambda: obstore.get(store, path))
        info = self._info(result, key, subject, None)
        pieces, seen = result.stream(_PIECE), 0
        while piece := self._call(subject, lambda: next(iter(pieces), b"")):
            seen += fileobj.write(piece)
        _check_whole(seen, info, subject)

    async def astream(self, key: str, fileobj: SupportsWrite) -> None:
        """Async twin of `stream`."""
        subject, path = self._subject(key), self._path(key)
        store = self._store()
        result = await self._aget(subject, lambda: obstore.get_async(store, path))
        info = self._info(result, key, subject, None)
        pieces, seen = aiter(result.stream(_PIECE)), 0
        while piece := await self._acall(subject, lambda: anext(pieces, b"")):
            seen += fileobj.write(piece)
        _check_whole(seen, info, subject)

    # -- what is known of objects ---------------------------------------------------------------------------------

    def head(self, key: str) -> ObjectInfo:
        """What a HEAD request says."""
        subject, path = self._subject(key), self._path(key)
        store = self._store()
        result = self._get(subject, lambda: obstore.get(store, path, options={"head": True}))
        return self._info(result, key, subject, None)

    async def ahead(self, key: str) -> ObjectInfo:
        """Async twin of `head`."""
        subject, path = self._subject(key), self._path(key)
        store = self._store()
        result = await self._aget(subject, lambda: obstore.get_async(store, path, options={"head": True}))
        return self._info(result, key, subject, None)

    def stat(self, key: str) -> ObjectInfo:
        """What HEAD says; where it is refused, what a GET of one byte says, or its error, which has a reason."""
        try:
            return self.head(key)
        except StorageError as exc:
            if exc.status not in HEAD_SAYS_LITTLE:
                raise
        return self.read(key, 0, 1, None).info

    async def astat(self, key: str) -> ObjectInfo:
        """Async twin of `stat`."""
        try:
            return await self.ahead(key)
        except StorageError as exc:
            if exc.status not in HEAD_SAYS_LITTLE:
                raise
        return (await self.aread(key, 0, 1, None)).info

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key starts with ``prefix``. obstore lists folders, so the last segment is matched here."""
        subject = self._subject(prefix)
        store = self._store()
        wanted = self._path(prefix)
        folder, cut = wanted.rpartition("/")[0], len(self._path(""))
        pages = self._call(subject, lambda: obstore.list(store, prefix=folder or None))
        while page := self._call(subject, lambda: next(iter(pages), ())):
            for meta in page:
                path = meta["path"]
                if path.startswith(wanted):
                    yield ObjectInfo(path[cut:], meta["size"], meta["e_tag"], meta["version"], meta["last_modified"])

    # -- writing --------------------------------------------------------------------------------------------------

    def upload(self, key: str, path: Path) -> None:
        """Store the file's bytes; large ones in parts that become an object at the end."""
        subject, name = self._subject(key), self._path(key)
        store = self._store()
        with path.open("rb") as file:
            self._call(subject, lambda: obstore.put(store, name, file, chunk_size=_PART))

    async def aupload(self, key: str, path: Path) -> None:
        """Async twin of `upload`."""
        subject, name = self._subject(key), self._path(key)
        store = self._store()
        file = await asyncio.to_thread(path.open, "rb")
        try:
            await self._acall(subject, lambda: obstore.put_async(store, name, file, chunk_size=_PART))
        finally:
            file.close()

    # -- the one way into obstore ---------------------------------------------------------------------------------

    def _translate(self, exc: Exception, subject: Subject) -> Exception:
        return translate(exc, subject)

    def _get(self, subject: Subject, call: Callable[[], T]) -> T:
        try:
            return self._call(subject, call)
        except StorageError as exc:
            if not self._was_left(exc):
                raise
        return self._call(subject, call)

    async def _aget(self, subject: Subject, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await self._acall(subject, call)
        except StorageError as exc:
            if not self._was_left(exc):
                raise
        return await self._acall(subject, call)

    def _was_left(self, exc: StorageError) -> bool:
        """Whether the connection was one that the server had left after it refused a range: it is asked again, once.

        fake-gcs-server closes it without a word, and obstore sends the next request into it; aiohttp asks again then.
        """
        if isinstance(exc, InvalidRangeError):
            self._may_hang_up = True
        elif self._may_hang_up and isinstance(exc, ConnectionFailedError):
            self._may_hang_up = False
            return True
        return False

    def _call(self, subject: Subject, call: Callable[[], T]) -> T:
        try:
            return call()
        except SDK_ERRORS as exc:
            problem = self._translate(exc, subject)
        # Outside of the handler: obstore's own text, which holds the whole URL, is no context of ours.
        raise problem

    async def _acall(self, subject: Subject, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await call()
        except SDK_ERRORS as exc:
            problem = self._translate(exc, subject)
        finally:
            drain.touch()
        raise problem

    def _info(self, result: GetResult, key: str, subject: Subject, if_match: str | None) -> ObjectInfo:
        meta = result.meta
        modified = meta["last_modified"]
        info = ObjectInfo(
            key,
            size=meta["size"],
            etag=meta["e_tag"],
            version=meta["version"],
            last_modified=None if modified == _EPOCH else modified,
        )
        check_unchanged(info.etag, if_match, subject)
        return info

    async def aclose(self) -> None:
        """Let obstore's threads come to rest."""
        await drain.adrain()

    def close(self) -> None:
        """Forget the store, and let obstore's threads come to rest."""
        with self._lock:
            self._made = None
        drain.drain()


def _unprintable(path: str) -> str | None:
    bad = next((char for char in path if ord(char) < 32 or ord(char) == 127), None)
    return None if bad is None else f"obstore has no way to name the control character {bad!r}"


def _get_options(offset: int, length: int | None, if_match: str | None) -> GetOptions:
    options: GetOptions = {}
    if length is not None:
        options["range"] = (offset, offset + length)
    elif offset:
        options["range"] = {"offset": offset}
    if if_match is not None and is_strong(if_match):
        options["if_match"] = if_match
    return options


def _checked_data(data: memoryview, promised: tuple[int, int], subject: Subject) -> memoryview:
    expected = promised[1] - promised[0]
    if len(data) < expected:
        raise failure(IncompleteBodyError, f"{len(data)} of {expected} bytes arrived", subject)
    if len(data) > expected:
        raise failure(ServerError, f"{len(data)} bytes arrived where {expected} were announced", subject)
    return data


def _check_whole(seen: int, info: ObjectInfo, subject: Subject) -> None:
    if info.size is not None and seen != info.size:
        raise failure(IncompleteBodyError, f"{seen} of {info.size} bytes arrived", subject)
