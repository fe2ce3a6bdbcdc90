"""Where a root and a key lie: the exact URL of a request, and the same in words that hold no secret."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from forebay.exceptions import InvalidURLError

__all__ = ["Target", "origin_of", "parse_target", "quote_key"]

_DEFAULT_PORTS = {"http": 80, "https": 443}
# A key's own characters, percent-encoded; "+" too, because S3 reads a bare one in a path as a space.
_KEY_SAFE = "/~!*'():@$,;=&"
# A root's path and query are already encoded: only what cannot stand in a request line is repaired.
_ROOT_SAFE = "%/~!*'():@$,;=&+?[]|^"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One root. Only `url` and `query` hold secrets, and no representation shows them."""

    origin: str
    path: str
    query: str = field(default="", repr=False)
    userinfo: tuple[str, str] | None = field(default=None, repr=False)

    @property
    def root(self) -> str:
        """The root's path that keys are appended to, without a trailing slash."""
        return self.path.rstrip("/")

    def url(self, key: str) -> str:
        """The URL of ``key`` as it is requested; the query goes with every key."""
        path = f"{self.root}/{quote_key(key)}" if key else self.path or "/"
        return f"{self.origin}{path}?{self.query}" if self.query else self.origin + path

    def shown(self, key: str) -> str:
        """The URL of ``key`` for errors and logs."""
        return self.origin + (f"{self.root}/{quote_key(key, strict=False)}" if key else self.path or "/")


def parse_target(url: str) -> Target:
    """Take an http(s) URL apart.

    Raises:
        InvalidURLError: It has no host, a port that is none, a fragment, or dot segments.
    """
    shown = re.split(r"[?#]", url, maxsplit=1)[0].rpartition("@")[2] or "the URL"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, parts, port = None, urlsplit(""), None
    if not host or parts.scheme.lower() not in _DEFAULT_PORTS:
        raise InvalidURLError(f"{shown!r} is no http or https URL with a host")
    if "#" in url:
        raise InvalidURLError(
            f"{shown!r} goes on with '#', which http never sends; write %23 where it belongs to a name"
        )
    if any(unquote(segment) in (".", "..") for segment in parts.path.split("/")):
        raise InvalidURLError(f"{shown!r} has a '.' or '..' segment, which clients and servers resolve differently")
    userinfo = None
    if parts.username is not None:
        userinfo = unquote(parts.username), unquote(parts.password or "")
    return Target(
        origin=_origin(parts.scheme.lower(), host, port),
        path=quote(parts.path, safe=_ROOT_SAFE),
        query=quote(parts.query, safe=_ROOT_SAFE),
        userinfo=userinfo,
    )


def _origin(scheme: str, host: str, port: int | None) -> str:
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            raise InvalidURLError(f"{host!r} is no host name") from None
    if ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{host}" if port in (None, _DEFAULT_PORTS[scheme]) else f"{scheme}://{host}:{port}"


def origin_of(url: str) -> str | None:
    """Scheme, host and port of an http(s) URL; None for anything else."""
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.scheme.lower() not in _DEFAULT_PORTS:
            return None
        return _origin(parts.scheme.lower(), parts.hostname, parts.port)
    except ValueError:
        return None


def quote_key(key: str, *, strict: bool = True) -> str:
    """A key's characters as they stand in a URL path.

    Raises:
        InvalidURLError: (only ``strict``) a segment is ``.`` or ``..``, which every client and server resolves, or
            the key is not Unicode text.
    """
    if strict and any(segment in (".", "..") for segment in key.split("/")):
        raise InvalidURLError(f"key {key!r} has a '.' or '..' segment, which http resolves: it cannot be asked for")
    try:
        return quote(key, safe=_KEY_SAFE, errors="strict" if strict else "replace")
    except UnicodeEncodeError:
        raise InvalidURLError(f"key {key!r} is not Unicode text, and http has no way to name it") from None
