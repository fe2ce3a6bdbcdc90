"""One thing that the doctor tries, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = ["Look", "Outcome", "Step", "attempt", "tried"]

Facts = Mapping[str, object]
#: What a step does: in words and in facts.
Look = Callable[[], tuple[str, Facts]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """``outcome``: ok, failed, skipped (not possible and no fault) or warning (worth a look, and not tried)."""

    name: str
    outcome: str
    detail: str
    seconds: float = 0.0
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A step, and the error that it ended in."""

    step: Step
    error: Exception | None = None


def tried(name: str, look: Look) -> Step:
    """What ``look`` found, or how it failed."""
    return attempt(name, look).step


def attempt(name: str, look: Look, *, harmless: tuple[type[Exception], ...] = (), then: str = "") -> Outcome:
    """What ``look`` found, or how it failed; after an error in ``harmless`` the step is skipped, and ``then`` said."""
    from forebay._config import monotonic
    from forebay._url import redact

    begin = monotonic()
    try:
        detail, facts = look()
    except Exception as exc:  # noqa: BLE001 - whatever a step raises is what the person on call came for
        known = {
            "error": type(exc).__name__,
            "status": getattr(exc, "status", None),
            "request_id": getattr(exc, "request_id", None),
            "retryable": bool(getattr(exc, "retryable", isinstance(exc, ConnectionError | TimeoutError))),
        }
        passes = isinstance(exc, harmless)
        text = f"{type(exc).__name__}: {' '.join(str(exc).split())}" + (then if passes else "")
        outcome, seconds = "skipped" if passes else "failed", monotonic() - begin
        return Outcome(
            step=Step(name=name, outcome=outcome, detail=redact(text), seconds=seconds, facts=known), error=exc
        )
    return Outcome(step=Step(name=name, outcome="ok", detail=redact(detail), seconds=monotonic() - begin, facts=facts))
