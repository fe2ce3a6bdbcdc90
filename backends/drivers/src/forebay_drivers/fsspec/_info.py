"""What a file system's ``info`` says of an object, as an `ObjectInfo`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from forebay.types import ObjectInfo

__all__ = ["CHECKSUMS", "is_folder", "object_info"]

#: Where a dialect leaves checksums of the whole object, as `ObjectInfo` has them.
CHECKSUMS = "forebay:checksums"

_ETAGS = ("ETag", "etag", "Etag")
_VERSIONS = ("VersionId", "version_id", "generation")
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "modified", "modify", "created", "date_time")
#: Facts that change with the bytes, where there is no etag.
_TELLING = ("sha", "blob_id", "CRC", "crc", "checksum", "ino", "inode")


def is_folder(info: Mapping[str, object]) -> bool:
    """Whether ``info`` is of a folder, which is no object."""
    return info.get("type") == "directory"


def object_info(key: str, info: Mapping[str, object]) -> ObjectInfo:
    """Size, etag and date. Without an etag of the store's, a weak one is made of what changes with the bytes.

    A weak one never pins parts: two writes within one tick of the store's clock look alike.
    """
    size = info.get("size")
    version = next((info[name] for name in _VERSIONS if info.get(name)), None)
    return ObjectInfo(
        key,
        size=size if isinstance(size, int) else None,
        etag=_etag(info),
        version=None if version is None else str(version),
        last_modified=_modified(info),
        checksums=_checksums(info),
    )


def _checksums(info: Mapping[str, object]) -> tuple[str, ...] | None:
    """What a dialect has read of them under our own name; no file system uses it."""
    told = info.get(CHECKSUMS)
    return told if isinstance(told, tuple) else None


def _etag(info: Mapping[str, object]) -> str | None:
    for name in _ETAGS:
        value = info.get(name)
        if value:
            text = str(value)
            return text if text.startswith(('"', "W/")) else f'"{text}"'
    # Times are compared as moments: a listing may spell them otherwise than the answer about one object.
    telling = [f"{name}={info[name]}" for name in _TELLING if info.get(name) is not None]
    telling += [f"{name}={_moment(info[name])}" for name in _TIMES if info.get(name) is not None]
    if not telling:
        return None
    digest = hashlib.blake2b("\0".join([*telling, f"size={info.get('size')}"]).encode(), digest_size=12)
    return f'W/"{digest.hexdigest()}"'


def _modified(info: Mapping[str, object]) -> datetime | None:
    for name in _TIMES:
        moment = _moment(info.get(name))
        if moment is not None:
            return moment
    return None


def _moment(value: object) -> datetime | None:
    if isinstance(value, datetime):
        # Without a zone it is UTC: that is what the file systems mean that leave it out.
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    try:
        if isinstance(value, bool) or value is None:
            return None
        if isinstance(value, (int, float)):
            return datetime.fromtimestamp(value, UTC)
        if isinstance(value, str):
            return _read(value)
        if isinstance(value, (tuple, list)) and len(value) >= 6:  # zip's way
            year, month, day, hour, minute, second = value[:6]
            return datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        return None  # an unreadable date is no date
    return None


def _read(text: str) -> datetime:
    if text.isdigit() and len(text) == 14:  # FTP's way
        return datetime.strptime(text + "+0000", "%Y%m%d%H%M%S%z")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = parsedate_to_datetime(text)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
