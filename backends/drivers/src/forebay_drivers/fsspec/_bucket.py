"""What the dialects of the object stores have in common: keys are literal, and each response says of what it is."""

from __future__ import annotations

import re

from forebay.exceptions import ServerError
from forebay_drivers.fsspec._dialect import Dialect
from forebay_drivers.validators import is_strong

__all__ = ["BucketDialect", "check_content_range", "total_size"]

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(?:\d+|\*)")


class BucketDialect(Dialect):
    """Paths are ``BUCKET/KEY``. Requests go to the SDK itself: fsspec's paths would lose outer slashes and versions."""

    literal_slashes = True
    tells = True

    @staticmethod
    def split(path: str) -> tuple[str, str]:
        """Bucket and key, byte for byte."""
        bucket, _, key = path.partition("/")
        return bucket, key

    @staticmethod
    def range_header(start: int, stop: int | None) -> str | None:
        """The value of a Range header; None for the whole object."""
        if not start and stop is None:
            return None
        return f"bytes={start}-{'' if stop is None else stop - 1}"

    @staticmethod
    def strong(if_match: str | None) -> str | None:
        """The etag where the store can be asked to compare it."""
        return if_match if if_match is not None and is_strong(if_match) else None


def total_size(content_range: str | None, content_length: object) -> int | None:
    """The size of the whole object from a response's headers."""
    total = (content_range or "").rpartition("/")[2]
    if total.isdigit():
        return int(total)
    if content_range:
        return None
    text = str(content_length)
    return int(text) if text.isdigit() else None


def check_content_range(content_range: str | None, start: int, stop: int | None, size: int | None) -> None:
    """Raise where a response says of its bytes that they are others than the asked ones; ``size`` None: not known.

    Raises:
        ServerError: The range starts somewhere else, or has another length than the bytes that came.
    """
    if not content_range:
        return  # the whole body: the caller cuts the piece out of it
    match = _CONTENT_RANGE.fullmatch(content_range.strip())
    first, last = (int(match[1]), int(match[2])) if match else (-1, -1)
    if first != start or size not in (None, last - first + 1) or (stop is not None and last >= stop):
        raise ServerError("the server answered with another range than the asked one")
