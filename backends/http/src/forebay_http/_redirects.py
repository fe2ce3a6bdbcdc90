"""Where a redirect leads, and what may go there."""

from __future__ import annotations

from urllib.parse import quote, urldefrag, urljoin, urlsplit, urlunsplit

from forebay_http._target import origin_of

__all__ = ["MAX_REDIRECTS", "REDIRECTS", "next_hop"]

REDIRECTS = frozenset({301, 302, 303, 307, 308})
MAX_REDIRECTS = 10


def next_hop(url: str, location: str) -> tuple[str, bool] | None:
    """The URL that ``location`` means, and whether it has the origin of ``url``; None where it is no http(s) URL.

    A user and password in it are dropped: a server does not choose the credentials we send.
    """
    # urljoin keeps a location's own encoding; only what cannot stand in a request line is repaired.
    target = urldefrag(urljoin(url, quote(location, safe="%/~!*'():@$,;=&+?#[]|^"))).url
    origin = origin_of(target)
    if origin is None:
        return None
    parts = urlsplit(target)
    clean = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path or "/", parts.query, ""))
    return clean, origin == origin_of(url)
