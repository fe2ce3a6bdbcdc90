"""The obstore driver: identity bodies with a length, at the speed of the wire.

One request a part; size and etag come from the same response. Its own retries are off. What it cannot do it hands over.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.store import HTTPStore

from forebay._config import environ
from forebay.downloader import SupportsWrite
from forebay.exceptions import IncompleteBodyError, ServerError
from forebay.types import ObjectInfo, RangeRead
from forebay_http import _drain, _fork
from forebay_http._choice import Handover
from forebay_http._errors import Subject, failure
from forebay_http._obstore_errors import SDK_ERRORS, translate
from forebay_http._options import HttpOptions
from forebay_http._proxies import no_proxy_at_all
from forebay_http._target import Target
from forebay_http._validators import check_unchanged, is_strong

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult
    from obstore.store import ClientConfig

__all__ = ["ObstoreDriver"]

T = TypeVar("T")

# Large enough to be cheap, small enough that a slow link still shows a write every few seconds.
_PIECE = 256 * 1024
_NO_LIMIT = timedelta(days=30)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)  # obstore's stand-in for a missing Last-Modified


class ObstoreDriver:
    """Talks to one root through obstore. Clients are made at the first request, once, under a lock."""

    name = "obstore"

    def __init__(self, target: Target, options: HttpOptions, subject: Callable[[str, str], Subject]) -> None:
        self._target = target
        self._options = options
        self._subject = subject
        self._lock = threading.Lock()
        self._made: HTTPStore | None = None

    def _store(self) -> HTTPStore:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            _fork.note_start()
            return self._made

    def _make(self) -> HTTPStore:
        options = self._options
        client: ClientConfig = {
            "allow_http": True,
            "timeout": _NO_LIMIT,  # obstore means the whole body by it; a body that moves may take its time
            "read_timeout": timedelta(seconds=options.timeout),
            "connect_timeout": timedelta(seconds=options.connect_timeout),
            "default_headers": {"Accept-Encoding": "identity", **options.headers},
            "allow_invalid_certificates": not options.verify_tls,
        }
        if options.ca_file is not None:
            client["root_certificate"] = options.ca_file.read_bytes()
        if no_proxy_at_all(environ()):
            client["proxy_url"], client["proxy_excludes"] = "http://unused.invalid", "*,0.0.0.0/0,::/0"
        url = self._target.origin + self._target.root
        try:
            store = HTTPStore(url, client_options=client, retry_config={"max_retries": 0, "retry_timeout": _NO_LIMIT})
        except SDK_ERRORS as exc:
            problem = translate(exc, self._subject("", self.name))
        else:
            if store.url.rstrip("/") == url:
                return store
            problem = Handover("obstore would rewrite the root's URL")
        raise problem

    # -- one object or a piece of it ------------------------------------------------------------------------------

    def read(self, key: str, offset: int, length: int | None, if_match: str | None) -> RangeRead:
        """Bytes from ``offset``, and what the response says of the object."""
        subject, options = self._subject(key, self.name), _get_options(offset, length, if_match)
        store = self._store()
        result = self._call(subject, lambda: obstore.get(store, key, options=options))
        info = _checked_info(result, key, subject, if_match)
        data = self._call(subject, result.bytes)
        return RangeRead(data=_checked_data(memoryview(data), result.range, subject), info=info)

    async def aread(self, key: str, offset: int, length: int | None, if_match: str | None) -> RangeRead:
        """Async twin of `read`. The data is a view of the driver's own buffer: nothing is copied."""
        subject, options = self._subject(key, self.name), _get_options(offset, length, if_match)
        store = self._store()
        result = await self._acall(subject, lambda: obstore.get_async(store, key, options=options))
        info = _checked_info(result, key, subject, if_match)
        data = await self._acall(subject, result.bytes_async)
        return RangeRead(data=_checked_data(memoryview(data), result.range, subject), info=info)

    def stream(self, key: str, fileobj: SupportsWrite) -> None:
        """Write the whole object."""
        subject, store = self._subject(key, self.name), self._store()
        result = self._call(subject, lambda: obstore.get(store, key))
        info = _checked_info(result, key, subject, None)
        pieces, seen = result.stream(_PIECE), 0
        while piece := self._call(subject, lambda: next(iter(pieces), b"")):
            seen += fileobj.write(piece)
        _check_whole(seen, info, subject)

    async def astream(self, key: str, fileobj: SupportsWrite) -> None:
        """Async twin of `stream`."""
        subject, store = self._subject(key, self.name), self._store()
        result = await self._acall(subject, lambda: obstore.get_async(store, key))
        info = _checked_info(result, key, subject, None)
        pieces, seen = aiter(result.stream(_PIECE)), 0
        while piece := await self._acall(subject, lambda: anext(pieces, b"")):
            seen += fileobj.write(piece)
        _check_whole(seen, info, subject)

    def stat(self, key: str) -> ObjectInfo:
        """What a HEAD request says."""
        subject, store = self._subject(key, self.name), self._store()
        result = self._call(subject, lambda: obstore.get(store, key, options={"head": True}))
        return _checked_info(result, key, subject, None)

    def stat_by_get(self, key: str) -> ObjectInfo:
        """What the response to a GET of one byte says, for servers that refuse HEAD."""
        return self.read(key, 0, 1, None).info

    async def astat_by_get(self, key: str) -> ObjectInfo:
        """Async twin of `stat_by_get`."""
        return (await self.aread(key, 0, 1, None)).info

    async def astat(self, key: str) -> ObjectInfo:
        """Async twin of `stat`."""
        subject, store = self._subject(key, self.name), self._store()
        result = await self._acall(subject, lambda: obstore.get_async(store, key, options={"head": True}))
        return _checked_info(result, key, subject, None)

    # -- the one way into obstore ---------------------------------------------------------------------------------

    @staticmethod
    def _call(subject: Subject, call: Callable[[], T]) -> T:
        try:
            return call()
        except SDK_ERRORS as exc:
            problem = translate(exc, subject)
        # Outside of the handler: obstore's own text, which holds the whole URL, is no context of ours.
        raise problem

    @staticmethod
    async def _acall(subject: Subject, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await call()
        except SDK_ERRORS as exc:
            problem = translate(exc, subject)
        finally:
            _drain.touch()
        raise problem


def _get_options(offset: int, length: int | None, if_match: str | None) -> GetOptions:
    options: GetOptions = {}
    if length is not None:
        options["range"] = (offset, offset + length)
    elif offset:
        options["range"] = {"offset": offset}
    if if_match is not None and is_strong(if_match):
        options["if_match"] = if_match
    return options


def _checked_info(result: GetResult, key: str, subject: Subject, if_match: str | None) -> ObjectInfo:
    if "Content-Encoding" in result.attributes:
        raise Handover("the server encodes the body though it was asked not to")
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
