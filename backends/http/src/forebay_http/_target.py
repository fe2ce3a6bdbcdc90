"""Where a root and a key lie: the exact URL of a request, and the same in words that hold no secret."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from forebay._url import redact
from forebay.exceptions import InvalidURLError

__all__ = ["Target", "check_key", "origin_of", "parse_target", "quote_key"]

_DEFAULT_PORTS = {"http": 80, "https": 443}
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
        return self.origin + (f"{self.root}/{quote_key(key)}" if key else self.path or "/")


def parse_target(url: str) -> Target:
    """Take an http(s) URL apart.

    Raises:
        InvalidURLError: It has no host, a port that is none, a fragment, or dot segments.
    """
    shown = redact(url)
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


def check_key(key: str) -> None:
    """Refuse a key that a client or a server would turn into another one.

    Raises:
        InvalidURLError: A segment is ``.`` or ``..``, which both resolve; or empty (a slash at either end, or two in a
            row), which obstore drops and web servers over a file system read as one; or the key is not Unicode text.
    """
    for segment in key.split("/") if key else ():
        if segment in ("", ".", ".."):
            raise InvalidURLError(
                f"key {key!r} has the segment {segment!r}, which http clients and servers resolve to another key; "
                "give the whole URL as the root and an empty key to request it as it is"
            )
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidURLError(f"key {key!r} is not Unicode text, and http has no way to name it") from None


def quote_key(key: str) -> str:
    """A key's characters as they stand in a URL path."""
    return quote(key, safe="/", errors="replace")
