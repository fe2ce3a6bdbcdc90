"""What both drivers' errors have in common: the meaning of a status, the words, and a cause without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from forebay._config import wall_clock
from forebay.exceptions import (
    AccessDeniedError,
    AuthenticationError,
    InvalidRangeError,
    ObjectChangedError,
    ObjectNotFoundError,
    ServerError,
    StorageError,
    StorageTimeoutError,
    ThrottledError,
    TransientError,
    UnsupportedOperationError,
)
from forebay_http._target import Target

__all__ = ["BACKEND", "STATUSES", "Subject", "failure", "retry_after", "status_failure"]

BACKEND = "http"

#: What a status means, for both drivers. Not listed: 5xx is `ServerError`, anything else is `StorageError`.
STATUSES: Mapping[int, type[StorageError]] = {
    401: AuthenticationError,
    403: AccessDeniedError,
    404: ObjectNotFoundError,
    405: UnsupportedOperationError,
    408: StorageTimeoutError,
    410: ObjectNotFoundError,
    412: ObjectChangedError,
    416: InvalidRangeError,
    425: ThrottledError,
    429: ThrottledError,
    451: AccessDeniedError,
    501: UnsupportedOperationError,
    503: ThrottledError,
    505: UnsupportedOperationError,
}

_URL_SECRETS = re.compile(r"(https?://)(?:[^\s/@\"']*@)?([^\s?\"'<>,)]*)(\?[^\s\"'<>,)]*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a request was about: goes into every error. Made for each request, so it costs next to nothing."""

    key: str
    driver: str
    target: Target
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def url(self) -> str:
        """The object's URL without a secret."""
        return self.target.shown(self.key)

    def clean(self, text: str) -> str:
        """``text`` without any URL's user, password and query, and without the credentials in use."""
        text = _URL_SECRETS.sub(lambda match: match[1] + match[2], text)
        for secret in self.secrets:
            text = text.replace(secret, "<redacted>")
        return text


def failure(
    cls: type[StorageError],
    what: str,
    subject: Subject,
    *,
    status: int | None = None,
    request_id: str | None = None,
    wait: float | None = None,
    cause: BaseException | None = None,
) -> StorageError:
    """An error that stands alone: what happened, to which key, where."""
    named = f", request id {request_id}" if request_id else ""
    text = f"{subject.clean(what)}: key {subject.key!r} at {subject.url} (http backend, {subject.driver} driver{named})"
    error = cls(text, url=subject.url, key=subject.key, backend=BACKEND, status=status, request_id=request_id)
    if isinstance(error, TransientError):
        error.retry_after = wait
    error.__cause__ = cause
    return error


def status_failure(
    status: int,
    subject: Subject,
    *,
    request_id: str | None = None,
    wait: float | None = None,
    cause: BaseException | None = None,
) -> StorageError:
    """The error that a refusing status stands for."""
    cls = STATUSES.get(status, ServerError if status >= 500 else StorageError)
    try:
        phrase = f" {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = ""
    remedy = ""
    if status in (401, 403):
        remedy = "; see the options username, password, bearer_token and headers (a missing object may look so too)"
    what = f"the server answered {status}{phrase}{remedy}"
    return failure(cls, what, subject, status=status, request_id=request_id, wait=wait, cause=cause)


def retry_after(value: str | None) -> float | None:
    """Seconds that a ``Retry-After`` header asks for: a number or a date; None where it says nothing readable."""
    if not value:
        return None
    if value.strip().isdigit():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(moment.timestamp() - wall_clock(), 0.0)
