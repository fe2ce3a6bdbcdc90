"""ETags: which ones can pin the parts of an object to one version."""

from __future__ import annotations

from forebay.exceptions import ObjectChangedError
from forebay_drivers.errors import Subject, failure

__all__ = ["check_unchanged", "is_strong"]


def is_strong(etag: str) -> bool:
    """Whether the validator stands for the very bytes; a weak one never matches an If-Match."""
    return not etag.startswith(("W/", "w/"))


def check_unchanged(etag: str | None, if_match: str | None, subject: Subject) -> None:
    """Raise `ObjectChangedError` where the response shows another etag: some servers ignore If-Match."""
    if if_match is not None and etag is not None and etag != if_match:
        raise failure(ObjectChangedError, f"the object changed: etag {etag} instead of {if_match}", subject)
