"""adlfs: the blob clients that it holds, so that size, etag and version come with the bytes."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forebay.types import ObjectInfo
from forebay_drivers.fsspec._bucket import BucketDialect, total_size

__all__ = ["AzureDialect"]


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
                **pin,
                **fs._timeout_kwargs,
            )
            data: bytes = await stream.readall()
            return data, _info(key, stream.properties)

    async def astat(self, fs: Any, path: str, key: str) -> ObjectInfo:
        """The blob's properties."""
        container, name = self.split(path)
        async with fs.service_client.get_blob_client(container=container, blob=name) as client:
            return _info(key, await client.get_blob_properties(**fs._timeout_kwargs))

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


def _info(key: str, properties: Any) -> ObjectInfo:
    etag = properties.etag
    return ObjectInfo(
        key,
        size=total_size(getattr(properties, "content_range", None), properties.size),
        etag=etag if etag is None or etag.startswith(('"', "W/")) else f'"{etag}"',
        version=properties.version_id,
        last_modified=properties.last_modified,
    )
