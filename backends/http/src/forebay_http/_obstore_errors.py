"""What of obstore's errors is a handover under http; everything else means the same as for any store."""

from __future__ import annotations

from forebay_drivers.errors import Subject
from forebay_drivers.obstore import status_of, translate, without_noise
from forebay_http._choice import Handover

__all__ = ["translate_or_hand_over"]

_HANDOVERS: tuple[tuple[str, str], ...] = (
    ("MissingContentLength", "the response has no Content-Length"),
    ("RangeNotSupported", "the server does not answer a range request with a range"),
    ("ParseContentRange", "the server does not say how large the object is"),
    ("Could not parse path", "obstore has no way to name the key"),
)


def translate_or_hand_over(exc: Exception, subject: Subject) -> Exception:
    """An error of ours with a cause that holds no secret, or a handover."""
    text = str(exc)
    status = status_of(text)
    if status == 416:
        return Handover("the range is not in the object, and only response headers say why", lasting=False)
    if status is None:
        bare = without_noise(text)
        for mark, reason in _HANDOVERS:
            if mark in bare:
                return Handover(reason)
    return translate(exc, subject)
