"""adlfs: the blob clients that it holds, so that size, etag and version come with the bytes."""

from __future__ import annotations

import asyncio
import re
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from forebay.exceptions import UnsupportedOperationError
from forebay.types import ObjectInfo
from forebay_drivers.fsspec._bucket import BucketDialect, check_content_range, total_size

__all__ = ["AzureDialect", "blob_info", "download_options"]

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class AzureDialect(BucketDialect):
    """Takes an `adlfs.AzureBlobFileSystem`."""

    async def awarm(self, fs: Any) -> None:
        """Have it closed by us alone: adlfs means to close itself at exit, on a loop that is gone by then."""
        registry: dict[weakref.finalize[Any, Any], Any] = getattr(weakref.finalize, "_registry", {})
        for finalizer in list(registry):
            entry = finalizer.peek()
            if entry is not None and entry[0] is fs:
                finalizer.detach()

    async def acat(
        self, fs: Any, path: str, key: str, start: int, stop: int | None, if_match: str | None
    ) -> tuple[bytes, ObjectInfo | None]:
        """One download, pinned by If-Match."""
        from azure.core import MatchConditions

        container, name = self.split(path)
        pin: dict[str, Any] = {}
        if (etag := self.strong(if_match)) is not None:
            pin = {"etag": etag, "match_condition": MatchConditions.IfNotModified}
        async with fs.service_client.get_blob_client(container=container, blob=name) as client:
            stream = await client.download_blob(
                offset=start if start or stop is not None else None,
                length=None if stop is None else stop - start,
                max_concurrency=1,
                **download_options(),
                **pin,
                **fs._timeout_kwargs,
            )
            data: bytes = await stream.readall()
            return data, blob_info(key, stream.properties)

    async def astat(self, fs: Any, path: str, key: str) -> ObjectInfo:
        """The blob's properties."""
        container, name = self.split(path)
        async with fs.service_client.get_blob_client(container=container, blob=name) as client:
            return blob_info(key, await client.get_blob_properties(**fs._timeout_kwargs))

    async def afind(self, fs: Any, start: str) -> Mapping[str, Mapping[str, Any]]:
        """All blobs whose name starts so; folders of a hierarchical account are none."""
        container, prefix = self.split(start)
        found: dict[str, Mapping[str, Any]] = {}
        async with fs.service_client.get_container_client(container=container) as client:
            async for blob in client.list_blobs(name_starts_with=prefix or None):
                folder = (blob.metadata or {}).get("hdi_isfolder") == "true"
                found[f"{container}/{blob.name}"] = {
                    "type": "directory" if folder else "file",
                    "size": blob.size,
                    "etag": blob.etag,
                    "last_modified": blob.last_modified,
                }
        return found

    async def aput(self, fs: Any, local: Path, path: str) -> None:
        """One blob, replaced at the end."""
        container, name = self.split(path)
        file = await asyncio.to_thread(local.open, "rb")
        try:
            async with fs.service_client.get_blob_client(container=container, blob=name) as client:
                await client.upload_blob(file, overwrite=True, **fs._timeout_kwargs)
        finally:
            file.close()


class _BrokenBodyError(Exception):
    """Has the SDK's own error as its cause, which the SDK would answer with two more requests, a second apart each."""


class _Body:
    """The body of a response as the SDK reads it."""

    def __init__(self, stream_download: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._pieces = stream_download(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pieces, name)

    def __aiter__(self) -> _Body:
        return self

    async def __anext__(self) -> bytes:
        from azure.core.exceptions import AzureError

        try:
            piece: bytes = await self._pieces.__anext__()
        except AzureError as exc:
            raise _BrokenBodyError(str(exc)) from exc
        return piece


def blob_info(key: str, properties: Any) -> ObjectInfo:
    """What the SDK's properties say; the MD5 is the whole blob's, with a range too, where its writer left one."""
    etag, md5 = properties.etag, properties.content_settings.content_md5
    return ObjectInfo(
        key,
        size=total_size(getattr(properties, "content_range", None), properties.size),
        etag=etag if etag is None or etag.startswith(('"', "W/")) else f'"{etag}"',
        version=properties.version_id,
        last_modified=properties.last_modified,
        checksums=() if not md5 else (f"md5:{bytes(md5).hex()}",),
    )


def download_options() -> dict[str, Any]:
    """What `download_blob` is given beside the range.

    What is stored with a Content-Encoding comes as it is stored, as on every driver; each answer has to be of the range
    that was asked for, whatever the SDK believes; and a body that breaks off is not asked for again.
    """

    def check(response: Any) -> None:
        headers, answered = response.http_request.headers, response.http_response
        answered.stream_download = partial(_Body, answered.stream_download)
        match = _RANGE.fullmatch(headers.get("x-ms-range") or headers.get("Range") or "")
        if match is not None and answered.status_code == 200:
            raise UnsupportedOperationError("the server ignores ranges")
        if match is not None and answered.status_code == 206:
            said, length = (answered.headers.get(name) for name in ("Content-Range", "Content-Length"))
            size = int(length) if length is not None and length.isdigit() else None
            check_content_range(said, int(match[1]), int(match[2]) + 1 if match[2] else None, size)

    return {"decompress": False, "raw_response_hook": check}
