"""The gcsfs driver: Google's JSON API through gcsfs's session and credentials, without its own retries.

Every read is one request that tells generation and size of the object in its headers; the generation is the etag, so
that parts are pinned by the store itself.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
from gcsfs.core import GCSFileSystem, simple_upload
from gcsfs.retry import HttpError
from yarl import URL

from forebay._config import environ
from forebay.types import ObjectInfo
from forebay_drivers import tls
from forebay_drivers.credentials import CredentialSource
from forebay_drivers.errors import Subject
from forebay_drivers.fsspec import (
    CHECKSUMS,
    GcsDialect,
    NativeDriver,
    Target,
    check_content_range,
    object_info,
    resource_checksums,
    shown_checksums,
)
from forebay_drivers.proxies import proxy_for
from forebay_gcs._options import GcsOptions
from forebay_gcs._target import GcsTarget

__all__ = ["make_driver"]

_PIECE = 256 * 1024


class Refused(HttpError):  # type: ignore[misc]
    """A refusing response: gcsfs's own error, with the headers and the store's reason."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        reason, message = _said(body)
        super().__init__({"code": status, "message": message})
        self.reason = reason
        self.headers = headers


class Missing(Refused, FileNotFoundError):
    """A missing object: gcsfs goes by the builtin."""


class _Files(GCSFileSystem):  # type: ignore[misc]
    """gcsfs with one attempt a request, URLs that go out as they are written, and our credentials."""

    cachable = False  # the instance cache would hand out one whose session is closed

    def __init__(self, options: GcsOptions, source: CredentialSource | None) -> None:
        self._auth = options.auth
        self._source = source
        self._project_to_bill = options.user_project
        network = options.network
        super().__init__(
            project=options.project or "",
            token=_gcsfs_token(options),
            endpoint_url=options.endpoint,
            requester_pays=options.user_project or False,
            asynchronous=True,
            use_listings_cache=False,
            # Not trust_env: aiohttp's own rule for NO_PROXY is another one, and it would send what ~/.netrc holds.
            session_kwargs={
                "auto_decompress": False,
                "connector": aiohttp.TCPConnector(limit=0, ssl=tls.context(network)),
            },
        )
        self.requests_timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=network.connect_timeout, sock_read=network.timeout
        )

    def _get_headers(self, headers: Mapping[str, str] | None, **kwargs: Any) -> dict[str, str]:
        # The store decompresses objects that were stored gzip-encoded, unless one says that one takes them.
        out = {**super()._get_headers(headers, **kwargs), "Accept-Encoding": "gzip"}
        if self._auth.kind == "bearer":
            out["Authorization"] = f"Bearer {self._auth.text}"
        return out

    async def _request(
        self, method: str, path: str, *args: Any, headers: Any = None, json: Any = None, data: Any = None, **kwargs: Any
    ) -> tuple[int, Mapping[str, str], Any, bytes]:
        if isinstance(data, (bytes, bytearray, memoryview)):
            data = io.BytesIO(data)  # aiohttp sends it piece by piece then
        async with self.open_response(method, path, *args, headers=headers, json=json, data=data, **kwargs) as response:
            body = await response.read()
            _check(response, body)
            return response.status, response.headers, response.request_info, body

    @asynccontextmanager
    async def open_response(
        self, method: str, path: str, *args: Any, headers: Any = None, json: Any = None, data: Any = None, **params: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A request, as a context manager of its response."""
        for own in ("cache_type", "cache_source"):
            params.pop(own, None)
        url = self._format_path(path, args)
        query = "&".join(
            f"{name}={quote(str(value), safe='')}"
            for name, value in self._get_params(params).items()
            if value is not None
        )
        if query:
            url += ("&" if "?" in url else "?") + query
        sent = self._get_headers(headers)
        if self._source is not None:  # here, and not in `_get_headers`, which cannot wait without holding up the loop
            sent["Authorization"] = f"Bearer {(await self._source.aget()).values['token']}"
        async with self.session.request(
            method,
            URL(url, encoded=True),
            json=json,
            data=data,
            headers=sent,
            timeout=self.requests_timeout,
            proxy=proxy_for(url, environ()),
        ) as response:
            yield response


class _Dialect(GcsDialect):
    def __init__(self, bucket: str) -> None:
        super().__init__()
        self._bucket = bucket

    def _name(self, path: str) -> str:
        return path[len(self._bucket) + 1 :]

    async def acat(
        self, fs: Any, path: str, key: str, start: int, stop: int | None, if_match: str | None
    ) -> tuple[bytes, ObjectInfo | None]:
        """One GET of the media, with the object's facts from its headers."""
        headers = {} if start == 0 and stop is None else {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"}
        async with self._media(fs, path, headers, if_match) as response:
            if response.status >= 400:
                _check(response, await response.read())
            data = await response.read()
            check_content_range(response.headers.get("Content-Range"), start, stop, len(data))
            return data, _told(key, response)

    async def astream(self, fs: Any, path: str, target: Target) -> bool:
        """One GET, piece by piece."""
        async with self._media(fs, path, {}, None) as response:
            if response.status >= 400:
                _check(response, await response.read())
            target.expect(shown_checksums(response.headers))
            async for piece in response.content.iter_chunked(_PIECE):
                target.write(piece)
        return True

    def _media(self, fs: Any, path: str, headers: Mapping[str, str], if_match: str | None) -> Any:
        base = f"{fs._location}/download/storage/v1/b/{{}}/o/{{}}"
        pin = {} if if_match is None else {"ifGenerationMatch": if_match.strip('"')}
        return fs.open_response("GET", base, self._bucket, self._name(path), headers=headers, alt="media", **pin)

    async def astat(self, fs: Any, path: str, key: str) -> ObjectInfo:
        """The object's metadata."""
        said = await fs._call("GET", "b/{}/o/{}", self._bucket, self._name(path), json_out=True)
        return _info(key, said, resource_checksums(said))

    async def afind(self, fs: Any, start: str) -> Mapping[str, Mapping[str, Any]]:
        """All pages of a listing, with the etags that `acat` tells."""
        found = await super().afind(fs, start)
        return {path: {**one, "etag": one.get("generation")} for path, one in found.items()}

    async def aput(self, fs: Any, local: Path, path: str) -> None:
        """Small files in one request, large ones through gcsfs's resumable upload."""
        bucket, name, _ = fs.split_path(path)
        if (bucket, name) == (self._bucket, self._name(path)):
            await fs._put_file(str(local), path)
        else:  # gcsfs would drop a slash
            body = await asyncio.to_thread(local.read_bytes)
            await simple_upload(fs, self._bucket, self._name(path), body)


def make_driver(
    target: GcsTarget, options: GcsOptions, subject: Callable[[str], Subject], source: CredentialSource | None
) -> NativeDriver:
    """The driver of one root."""
    root = f"{target.bucket}/{target.prefix}" if target.prefix else target.bucket
    return NativeDriver(lambda: _Files(options, source), subject, prefix=f"{root}/", dialect=_Dialect(target.bucket))


def _gcsfs_token(options: GcsOptions) -> Any:
    auth = options.auth
    if auth.kind == "key":
        return json.loads(auth.text) if auth.path is None else auth.path
    # Its own default goes on to anonymous where nothing is found, and takes tokens to Google to have them looked at.
    return "google_default" if auth.kind == "chain" else "anon"


def _check(response: aiohttp.ClientResponse, body: bytes) -> None:
    if response.status == 404:
        reason, message = _said(body)
        if reason != "notFound" or "bucket" not in message:
            raise Missing(404, body, response.headers)
        raise Refused(404, body, response.headers)
    if response.status >= 400 and response.status != 499:  # 499: an upload that was cancelled on purpose
        raise Refused(response.status, body, response.headers)


def _said(body: bytes) -> tuple[str | None, str]:
    """The reason and the message in an error's body, which may be no JSON at all."""
    try:
        error = json.loads(body)["error"]
        reasons = error.get("errors") or [{}]
        return reasons[0].get("reason"), str(error.get("message", ""))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None, body[:200].decode(errors="replace")


def _told(key: str, response: aiohttp.ClientResponse) -> ObjectInfo:
    headers = response.headers
    span = headers.get("Content-Range", "").rpartition("/")[2]
    length = span if response.status == 206 else headers.get("Content-Length", "")
    generation = headers.get("x-goog-generation")
    return _info(
        key,
        {
            "size": length if length.isdigit() else None,
            "generation": generation,
            "updated": headers.get("Last-Modified"),
        },
        shown_checksums(headers),
    )


def _info(key: str, said: Mapping[str, Any], checksums: tuple[str, ...] | None) -> ObjectInfo:
    size = said.get("size")
    facts = {
        "size": None if size is None else int(size),
        "etag": said.get("generation"),
        "generation": said.get("generation"),
        "updated": said.get("updated"),
        CHECKSUMS: checksums,
    }
    return object_info(key, facts)
