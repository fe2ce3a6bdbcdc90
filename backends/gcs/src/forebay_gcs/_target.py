"""The one parser of the ways in which people name a place in Google Cloud Storage."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from forebay._url import URL, parse_url
from forebay.exceptions import InvalidURLError

__all__ = ["GcsTarget", "parse_target"]

_BUCKET = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,220}[a-z0-9])?")
_HOSTS = frozenset({"storage.googleapis.com", "storage.cloud.google.com", "www.googleapis.com"})
_OWN_HOST = re.compile(r"(?P<bucket>[a-z0-9._-]+)\.storage\.googleapis\.com")


@dataclass(frozen=True, slots=True, kw_only=True)
class GcsTarget:
    """A bucket and the start of every key in it: literal, without its last slash, empty for the whole bucket."""

    bucket: str
    prefix: str


def parse_target(root: str) -> GcsTarget:
    """Read ``gs://BUCKET/PREFIX``, ``gcs://…``, or a https URL of Google's hosts.

    What follows the bucket is the prefix byte for byte; in a https URL it is percent-encoded.

    Raises:
        InvalidURLError: There is no bucket by that name, or a https URL of another host or with a query.
    """
    url = parse_url(root)
    if url.scheme in ("http", "https"):
        bucket, prefix = _web(url)
    else:
        bucket, _, prefix = url.rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise InvalidURLError(f"{url.redacted} names no bucket that there can be: gs://BUCKET/KEY")
    return GcsTarget(bucket=bucket, prefix=prefix.removesuffix("/"))


def _web(url: URL) -> tuple[str, str]:
    path, mark, _ = url.rest.partition("?")
    host, _, path = path.partition("/")
    if mark:
        raise InvalidURLError(f"{url.redacted} has a query; a signed URL is read by the http backend")
    own = _OWN_HOST.fullmatch(host.lower())
    if own is not None and host.lower() not in _HOSTS:
        return own["bucket"], unquote(path, errors="strict")
    if host.lower() not in _HOSTS:
        raise InvalidURLError(
            f"{url.redacted} is no URL of Google Cloud Storage; write gs://BUCKET/KEY and endpoint_url"
        )
    bucket, _, prefix = path.partition("/")
    return bucket, unquote(prefix, errors="strict")
