"""Roots and keys of object stores: taken literally, or refused before any I/O."""

from __future__ import annotations

import re

from forebay._url import parse_url, redact
from forebay.exceptions import InvalidURLError

__all__ = ["check_key", "split_root"]

_BUCKET = re.compile(r"[^\s@/?#\\]+")


def split_root(root: str) -> tuple[str, str]:
    """Bucket and prefix of ``scheme://BUCKET/PREFIX``; the prefix is literal, without its last slash.

    Raises:
        InvalidURLError: The bucket has a character that no bucket has.
    """
    url = parse_url(root)
    bucket, _, prefix = url.rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise InvalidURLError(f"{url.redacted} names no bucket that there can be: {url.scheme}://BUCKET/KEY")
    return bucket, prefix.removesuffix("/")


def check_key(key: str, root: str) -> None:
    """Refuse what no client of an object store would hand on as it is.

    Raises:
        InvalidURLError: The key is empty or not Unicode text, or has a ``.`` or ``..`` segment.
    """
    if not key:
        raise InvalidURLError(f"an empty key names no object under {redact(root)}")
    if not {".", ".."}.isdisjoint(key.split("/")):
        raise InvalidURLError(
            f"key {key!r} under {redact(root)} has a '.' or '..' segment, which HTTP clients resolve to another key"
        )
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidURLError(f"key {key!r} is not Unicode text, and {redact(root)} has no way to name it") from None
