"""What backends have in common when they tell who asks, for `forebay doctor`. Nothing here holds a secret."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass

from forebay._config import environ
from forebay._url import redact
from forebay.types import AccessStep
from forebay_drivers import tls
from forebay_drivers.options import Network
from forebay_drivers.proxies import proxy_for

__all__ = ["Place", "in_order", "network_words"]


@dataclass(frozen=True, slots=True)
class Place:
    """One place to look at: what is there, if anything, and why it would not count even if it were the strongest.

    Args:
        source: The place in words.
        found: What is there, without a secret; None: nothing.
        useless: Why what is there does not count.
        options: The options that it is about.
        unsure: Only a request tells whether something is there.
    """

    source: str
    found: str | None = None
    _: KW_ONLY
    useless: str | None = None
    options: Iterable[str] = ()
    unsure: bool = False


def in_order(places: Iterable[Place]) -> Iterator[AccessStep]:
    """The outcome of each place: the first with something that counts is used, and nothing after it is reached."""
    taken = False
    for place in places:
        detail = place.found or ""
        if place.useless is not None:
            outcome, detail = "passed over", place.useless
        elif taken:
            outcome = "not reached" if place.found is None or place.unsure else "passed over"
            detail = "" if outcome == "not reached" else f"{detail}; a stronger place is used"
        elif place.unsure:
            outcome, taken = "open", True
        elif place.found is None:
            outcome = "absent"
        else:
            outcome, taken = "used", True
        yield AccessStep(source=place.source, outcome=outcome, detail=detail, options=tuple(place.options))


def network_words(network: Network, endpoint: str) -> str:
    """The proxy and the certificates of connections to ``endpoint``."""
    proxy = proxy_for(endpoint, environ())
    words = "no proxy" if proxy is None else f"through the proxy {redact(proxy)}"
    return words if endpoint.startswith("http:") else f"{words}; {tls.trusted(network)}"
