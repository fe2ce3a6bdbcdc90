"""Whether this machine's clock is the reason for a refusal: signatures and tokens hold for a while only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from forebay.cli._doctor._step import Step, attempt

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["compare", "may_be_the_cause"]

_PATIENCE = 5.0
#: Clouds take requests that are signed up to 15 minutes ago; a token or signature may begin this very minute.
_TOLERATED = 60.0


def may_be_the_cause(error: Exception | None) -> bool:
    """Whether ``error`` is one that a wrong clock leads to."""
    from forebay.exceptions import AccessDeniedError, AuthenticationError

    return isinstance(error, AccessDeniedError | AuthenticationError)


def compare(endpoint: object) -> Iterator[Step]:
    """Ask the endpoint for its time, with nobody's credentials; drivers do not show the header that tells it."""
    if not isinstance(endpoint, str):
        return

    def look() -> tuple[str, Mapping[str, object]]:
        seconds = _difference(endpoint)
        if seconds is None:
            return "the server does not tell its time", {}
        return f"{abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} the server's", {"seconds": seconds}

    found = attempt("clock", look, harmless=(OSError, ValueError), then="; the clocks were not compared").step
    seconds = found.facts.get("seconds")
    if isinstance(seconds, float) and abs(seconds) > _TOLERATED:
        text = f"this machine's clock is {found.detail}: set it, signatures and tokens hold for a while only"
        found = Step(name=found.name, outcome="warning", detail=text, seconds=found.seconds, facts=found.facts)
    yield found


def _difference(endpoint: str) -> float | None:
    """Seconds that this clock is ahead of the server's."""
    from email.utils import parsedate_to_datetime
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    from forebay._config import wall_clock

    before = wall_clock()
    try:
        with urlopen(Request(endpoint, method="HEAD"), timeout=_PATIENCE) as response:
            date = response.headers.get("Date")
    except HTTPError as exc:  # an answer too
        date = exc.headers.get("Date")
        exc.close()
    if not date:
        return None
    return (before + wall_clock()) / 2 - parsedate_to_datetime(date).timestamp()
