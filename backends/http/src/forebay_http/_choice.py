"""Which requests obstore must not serve, and why. Whatever is not named here it serves, faster than anything else."""

from __future__ import annotations

import threading
from importlib.util import find_spec

from forebay_drivers import fork
from forebay_http._options import HttpOptions
from forebay_http._target import Target

__all__ = ["Choice", "Handover", "options_refusal"]

# What obstore's client itself takes off when a redirect leaves the origin (measured).
_STRIPPED = frozenset({"authorization", "cookie", "proxy-authorization"})
_REMEMBERED = 4096
_ENOUGH = 3  # so many objects handed over and none served: the whole root is like that


class Handover(Exception):
    """obstore cannot serve this object; the aiohttp driver can. ``lasting``: it will be so the next time too."""

    def __init__(self, reason: str, *, lasting: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.lasting = lasting


def options_refusal(options: HttpOptions) -> str | None:
    """Why the options rule obstore out for every root; None where they do not."""
    if options.driver == "fsspec":
        return "asked for with driver='fsspec'"
    if find_spec("obstore") is None:
        return "obstore is not installed"
    leaking = sorted(name for name in options.headers if name.lower() not in _STRIPPED)
    if leaking:
        return f"obstore would send the header {leaking[0]} along with a redirect to another host"
    return None


def _root_refusal(target: Target) -> str | None:
    if target.query:
        return "obstore would send the URL's query, as Referer, along with a redirect to another host"
    return None


def _key_refusal(target: Target, key: str) -> str | None:
    if not key:
        return "obstore drops a trailing slash" if target.path.endswith("/") and target.path != "/" else None
    if "+" in key:
        return "obstore leaves + as it is, which some servers read as a space"
    if not key.isprintable():
        return "obstore refuses control characters"
    return None


class Choice:
    """The decision for one root and process: what is known before a request, and what responses have shown since."""

    def __init__(self, target: Target, options: HttpOptions) -> None:
        self._target = target
        self._root_reason = options_refusal(options) or _root_refusal(target)
        self._keys: dict[str, str] = {}
        self._served = False
        self._lock = threading.Lock()

    def against(self, key: str) -> str | None:
        """Why obstore must not be asked for ``key``; None where it may."""
        return self._root_reason or fork.unusable_reason() or _key_refusal(self._target, key) or self._keys.get(key)

    def served(self) -> None:
        """obstore has served an object of this root."""
        self._served = True

    def handed_over(self, key: str, handover: Handover) -> str:
        """The next request for ``key`` goes to aiohttp at once; after a few such keys, every request of the root."""
        reason = handover.reason
        if not handover.lasting:
            return reason
        with self._lock:
            self._keys[key] = reason
            if len(self._keys) >= _ENOUGH and not self._served:
                self._root_reason = reason
            while len(self._keys) > _REMEMBERED:
                del self._keys[next(iter(self._keys))]
        return reason
