"""The aiohttp driver: everything that HTTP allows, and the only one that sees response headers.

Reads bodies without a length, chunked and encoded ones, follows redirects itself so that nothing of the user's goes to
another origin, and cuts a range out of a whole body where the server sends no ranges.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from forebay._config import environ
from forebay.downloader import SupportsWrite
from forebay.exceptions import StorageError, UnsupportedOperationError
from forebay.types import ObjectInfo, RangeRead
from forebay_drivers import tls
from forebay_drivers.errors import Subject, failure, retry_after, status_failure
from forebay_drivers.proxies import proxy_for
from forebay_drivers.validators import check_unchanged, is_strong
from forebay_http._aiohttp_errors import SDK_ERRORS, translate
from forebay_http._body import Body
from forebay_http._options import HttpOptions
from forebay_http._ranges import cut_slice, read_part, response_info, unsatisfied
from forebay_http._redirects import MAX_REDIRECTS, REDIRECTS, next_hop
from forebay_http._target import Target

__all__ = ["AiohttpDriver"]

_REQUEST_IDS = ("x-amz-request-id", "x-ms-request-id", "x-goog-request-id", "x-request-id")
_LINE_LIMIT = 64 * 1024  # a signed URL in a Location may be long


class AiohttpDriver:
    """Talks to one root through aiohttp, with one session for each event loop that uses it."""

    name = "fsspec"

    def __init__(self, target: Target, options: HttpOptions, subject: Callable[[str, str], Subject]) -> None:
        self._target = target
        self._options = options
        self._subject = subject
        self._lock = threading.Lock()
        self._sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession]
        self._sessions = weakref.WeakKeyDictionary()

    # -- one object or a piece of it ------------------------------------------------------------------------------

    async def aread(self, key: str, offset: int, length: int | None, if_match: str | None) -> RangeRead:
        """Bytes from ``offset``, and what the response says of the object.

        Where the piece had to be cut out of a whole body that was not read to its end, ``info.etag`` is None: parts
        of such an object cost a whole body each, so it must not look as if it could be read in parts.
        """
        read, cut = await self._read(key, offset, length, if_match)
        if not cut:
            return read
        info = read.info
        return RangeRead(data=read.data, info=ObjectInfo(key, info.size, None, info.version, info.last_modified))

    async def _read(self, key: str, offset: int, length: int | None, if_match: str | None) -> tuple[RangeRead, bool]:
        subject = self._subject(key, self.name)
        headers = {} if if_match is None or not is_strong(if_match) else {"If-Match": if_match}
        if offset or length is not None:
            wanted = {"Range": f"bytes={offset}-{'' if length is None else offset + length - 1}"}
            async with self._open("GET", key, {**headers, **wanted}, allow=(416,)) as response:
                if response.status == 416:
                    return unsatisfied(response.headers, offset, subject), False
                body = Body(response, subject)
                if response.status == 206 and not body.encodings:
                    info = response_info(key, response.headers, None)
                    check_unchanged(info.etag, if_match, subject)
                    return await read_part(body, info, offset, length, subject), False
                if response.status != 206:
                    return await self._slice(body, key, offset, length, if_match, subject)
        # A piece of an encoded body decodes to nothing: the whole one is needed.
        async with self._open("GET", key, headers) as response:
            return await self._slice(Body(response, subject), key, offset, length, if_match, subject)

    async def _slice(
        self, body: Body, key: str, offset: int, length: int | None, if_match: str | None, subject: Subject
    ) -> tuple[RangeRead, bool]:
        info = response_info(key, body.headers, body.size)
        check_unchanged(info.etag, if_match, subject)
        return await cut_slice(body, info, offset, length, subject)

    async def astream(self, key: str, fileobj: SupportsWrite) -> None:
        """Write the whole object, decoded."""
        async with (
            self._open("GET", key, {}) as response,
            aclosing(Body(response, self._subject(key, self.name)).pieces()) as pieces,
        ):
            async for piece in pieces:
                fileobj.write(piece)

    async def astat(self, key: str) -> ObjectInfo:
        """What a HEAD request says; where it does not say the size, what a small GET says."""
        async with self._open("HEAD", key, {}) as response:
            body = Body(response, self._subject(key, self.name))
            info = response_info(key, response.headers, body.size)
            if body.size is not None or body.encodings:
                return info
        return await self.astat_by_get(key)

    async def astat_by_get(self, key: str) -> ObjectInfo:
        """What the response to a GET of one byte says, for servers that refuse HEAD."""
        read, _ = await self._read(key, 0, 1, None)
        return read.info

    async def aupload(self, key: str, path: Path) -> None:
        """PUT the file's bytes."""
        size = (await asyncio.to_thread(path.stat)).st_size
        file = await asyncio.to_thread(path.open, "rb")
        try:
            async with self._open("PUT", key, {"Content-Length": str(size)}, allow=(404,), data=file) as response:
                if response.status == 404:  # to a PUT this says that nothing here takes one
                    what = "the server answered 404 to an upload: it takes none here"
                    raise failure(UnsupportedOperationError, what, self._subject(key, self.name), status=404)
        finally:
            file.close()

    # -- the one way into aiohttp ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def _open(
        self, method: str, key: str, headers: Mapping[str, str], *, allow: tuple[int, ...] = (), data: Any = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request, redirects followed; a status that refuses is raised unless it is in ``allow``."""
        subject = self._subject(key, self.name)
        response = await self._follow(method, self._target.url(key), headers, subject, data)
        try:
            if not 200 <= response.status < 300 and response.status not in allow:
                raise _refused(response, subject)
            yield response
        finally:
            # A body that was read to its end has given its connection back already; any other one is cut off.
            response.close()

    async def _follow(
        self, method: str, url: str, headers: Mapping[str, str], subject: Subject, data: Any
    ) -> aiohttp.ClientResponse:
        theirs: Mapping[str, str] = self._options.headers
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._send(
                method, url, {"Accept-Encoding": "identity", **theirs, **headers}, subject, data
            )
            location = response.headers.get("Location")
            if response.status not in REDIRECTS:
                return response
            response.close()
            if data is not None:
                raise failure(
                    UnsupportedOperationError, "the server redirects uploads", subject, status=response.status
                )
            hop = next_hop(url, location) if location else None
            if hop is None:
                what = "a redirect that leaves http" if location else "a redirect without a Location"
                raise failure(StorageError, what, subject, status=response.status)
            url, same_origin = hop
            if not same_origin:
                theirs = {}  # for good, also when a later hop leads back
        raise failure(StorageError, "too many redirects", subject)

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], subject: Subject, data: Any
    ) -> aiohttp.ClientResponse:
        session = self._session()
        try:
            return await session.request(
                method,
                URL(url, encoded=True),
                headers=headers,
                data=data,
                allow_redirects=False,
                proxy=proxy_for(url, environ()),
            )
        except SDK_ERRORS as exc:
            problem = translate(exc, subject, in_body=False)
        # Outside of the handler: aiohttp's own error, which holds the request, is no context of ours.
        raise problem

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        with self._lock:
            session = self._sessions.get(loop)
            if session is None or session.closed:
                session = self._sessions[loop] = self._new_session()
            return session

    def _new_session(self) -> aiohttp.ClientSession:
        network = self._options.network
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=tls.context(network)),
            timeout=aiohttp.ClientTimeout(total=None, sock_read=network.timeout, sock_connect=network.connect_timeout),
            cookie_jar=aiohttp.DummyCookieJar(),  # the other driver keeps none either
            auto_decompress=False,
            read_bufsize=1 << 20,
            max_line_size=_LINE_LIMIT,
            max_field_size=_LINE_LIMIT,
        )

    async def aclose(self) -> None:
        """Close the session of the running loop."""
        with self._lock:
            session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    def close(self) -> None:
        """Let go of the sessions of loops that are closed, and have the living ones closed by their own threads."""
        with self._lock:
            sessions, self._sessions = list(self._sessions.items()), weakref.WeakKeyDictionary()
        for loop, session in sessions:
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(session.close(), loop)
            elif not session.closed and session.connector is not None:
                connector = session.connector
                session.detach()
                connector._close()  # the public way is a coroutine, and there is no loop any more to run it


def _refused(response: aiohttp.ClientResponse, subject: Subject) -> StorageError:
    headers = response.headers
    request_id = next((headers[name] for name in _REQUEST_IDS if name in headers), None)
    return status_failure(response.status, subject, request_id=request_id, wait=retry_after(headers.get("Retry-After")))
