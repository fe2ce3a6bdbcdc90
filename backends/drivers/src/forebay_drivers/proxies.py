"""Which proxy a URL goes through, from the variables that every tool honours (obstore reads the same ones itself)."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

__all__ = ["no_proxy_at_all", "proxy_for"]


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """The proxy for ``url``: HTTP(S)_PROXY by its scheme, else ALL_PROXY, unless NO_PROXY names its host."""
    parts = urlsplit(url)
    scheme, host = parts.scheme.lower(), parts.hostname or ""
    proxy = None
    if scheme == "https" or "REQUEST_METHOD" not in environ:
        # In a CGI program HTTP_PROXY is a request header that anybody can send.
        proxy = _variable(environ, f"{scheme}_proxy")
    elif scheme == "http":
        proxy = environ.get("http_proxy")
    proxy = proxy or _variable(environ, "all_proxy")
    if not proxy or _excluded(host, _variable(environ, "no_proxy") or ""):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def no_proxy_at_all(environ: Mapping[str, str]) -> bool:
    """Whether NO_PROXY excludes every host. obstore takes ``*`` for names only, not for addresses."""
    return "*" in [pattern.strip() for pattern in (_variable(environ, "no_proxy") or "").split(",")]


def _variable(environ: Mapping[str, str], name: str) -> str | None:
    return environ.get(name) or environ.get(name.upper())


def _excluded(host: str, patterns: str) -> bool:
    return any(_matches(host, pattern.strip().lower()) for pattern in patterns.split(","))


def _matches(host: str, pattern: str) -> bool:
    if pattern in ("", "*"):
        return pattern == "*"
    try:
        return ip_address(host) in ip_network(pattern, strict=False)
    except ValueError:
        bare = pattern.lstrip(".")
        return host == bare or host.endswith(f".{bare}")
