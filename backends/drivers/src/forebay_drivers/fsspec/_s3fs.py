"""s3fs: the SDK's own calls, so that size, etag and version come with the bytes and parts are pinned by If-Match."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forebay._checksums import from_base64
from forebay.exceptions import UnsupportedOperationError
from forebay.types import ObjectInfo
from forebay_drivers.checksums import S3_CHECKSUMS
from forebay_drivers.fsspec._bucket import BucketDialect, check_content_range, total_size

__all__ = ["S3Dialect"]


class S3Dialect(BucketDialect):
    """Takes an `s3fs.S3FileSystem`; its request-wide options (requester pays) go with each call.

    Args:
        asks: Whether the store is asked for checksums, so that silence means that it has none.
    """

    def __init__(self, *, asks: bool = False) -> None:
        super().__init__()
        self._asks = asks

    async def acat(
        self, fs: Any, path: str, key: str, start: int, stop: int | None, if_match: str | None
    ) -> tuple[bytes, ObjectInfo | None]:
        """GetObject."""
        bucket, name = self.split(path)
        wanted = {"Range": self.range_header(start, stop), "IfMatch": self.strong(if_match)}
        given = {option: value for option, value in wanted.items() if value is not None}
        response = await fs._call_s3("get_object", Bucket=bucket, Key=name, **given)
        try:
            data: bytes = await response["Body"].read()
        finally:
            response["Body"].close()
        check_content_range(response.get("ContentRange"), start, stop, len(data))
        return data, self.info(key, response)

    async def astat(self, fs: Any, path: str, key: str) -> ObjectInfo:
        """HeadObject."""
        bucket, name = self.split(path)
        return self.info(key, await fs._call_s3("head_object", Bucket=bucket, Key=name))

    async def afind(self, fs: Any, start: str) -> Mapping[str, Mapping[str, Any]]:
        """ListObjectsV2, all pages."""
        bucket, prefix = self.split(start)
        found: dict[str, Mapping[str, Any]] = {}
        token: dict[str, str] = {}
        while True:
            page = await fs._call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, **token)
            for entry in page.get("Contents", ()):
                found[f"{bucket}/{entry['Key']}"] = {**entry, "size": entry["Size"]}
            if not page.get("IsTruncated"):
                return found
            token = {"ContinuationToken": page["NextContinuationToken"]}

    async def aput(self, fs: Any, local: Path, path: str) -> None:
        """PutObject, or a multipart upload."""
        if "?versionId=" in path:
            raise UnsupportedOperationError("s3fs would cut '?versionId=' off this key; use driver='obstore'")
        await fs._put_file(str(local), path)

    def info(self, key: str, response: Mapping[str, Any]) -> ObjectInfo:
        """What a response says of the object."""
        return ObjectInfo(
            key,
            size=total_size(response.get("ContentRange"), response.get("ContentLength")),
            etag=response.get("ETag"),
            version=response.get("VersionId"),
            last_modified=response.get("LastModified"),
            checksums=self._checksums(response),
        )

    def _checksums(self, response: Mapping[str, Any]) -> tuple[str, ...] | None:
        if response.get("ContentRange"):
            return None  # S3 shows none of the object with a range: where it shows one, it is that of a part
        composite = response.get("ChecksumType") == "COMPOSITE"
        shown = [from_base64(name, response.get(f"Checksum{name.upper()}")) for name in S3_CHECKSUMS if not composite]
        found = tuple(one for one in shown if one is not None)
        return found if found or self._asks else None
