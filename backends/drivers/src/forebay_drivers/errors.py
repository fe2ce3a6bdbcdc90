"""What all drivers' errors have in common: the meaning of a status or a code, the words, and texts without secrets."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from forebay._config import wall_clock
from forebay._url import redact
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

__all__ = [
    "HEAD_SAYS_LITTLE",
    "NO_TLS",
    "STATUSES",
    "ErrorTable",
    "Meaning",
    "Subject",
    "failure",
    "hidden_texts",
    "retry_after",
    "status_failure",
    "system_reason",
]

#: What a status means, for every driver. Not listed: 5xx is `ServerError`, anything else is `StorageError`.
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

#: A HEAD response has no body that says why: a small GET is asked then, and it may be allowed where HEAD is not.
HEAD_SAYS_LITTLE = frozenset({301, 400, 403, 405, 501})

#: What every driver says where a handshake fails, and not for the certificate.
NO_TLS = "no secure connection could be made: does the server speak TLS, or is its address http://?"

_SECRET_LENGTH = 6  # a shorter text would be cut out of words that have nothing to do with it
_URL_SECRETS = re.compile(r"(https?://)(?:[^\s/@\"']*@)?([^\s?\"'<>,)]*)(\?[^\s\"'<>,)]*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a code of the store's means: our class, and what happened in words that name the remedy."""

    error: type[StorageError]
    what: str


@dataclass(frozen=True, slots=True)
class ErrorTable:
    """One backend's part of the error table, for both of its drivers. Codes are stronger than statuses.

    ``code_in_text`` finds the store's own code in the body of a response: obstore shows it in its text only.
    ``remedy`` follows a 401 or 403 that comes without a known code.
    """

    codes: Mapping[str, Meaning] = field(default_factory=dict)
    statuses: Mapping[int, Meaning] = field(default_factory=dict)
    code_in_text: re.Pattern[str] | None = None
    remedy: str = ""

    def code_of(self, text: str) -> str | None:
        """The store's code in the text of a response's body or of an SDK's error."""
        found = None if self.code_in_text is None else self.code_in_text.search(text)
        return None if found is None else found[1]

    def meaning(self, status: int | None, code: str | None) -> Meaning | None:
        """What the code, else the status means to this store; None where only HTTP says something."""
        by_code = self.codes.get(code or "")
        return by_code or self.statuses.get(status or 0)


_HTTP_ONLY = ErrorTable()


@dataclass(frozen=True, slots=True)
class Subject:
    """What a request was about: goes into every error. Made for each request, so it costs next to nothing.

    Args:
        key: As the caller gave it.
        driver: The driver's name.
        backend: The backend's name.
        show: Gives the URL of a key without any secret.
        secrets: Texts that must not be shown, longest first.
        table: What the store's codes and statuses mean.
    """

    key: str
    driver: str
    backend: str
    show: Callable[[str], str]
    secrets: tuple[str, ...] = field(default=(), repr=False)
    table: ErrorTable = field(default=_HTTP_ONLY, repr=False)

    @property
    def url(self) -> str:
        """The object's URL without a secret."""
        return self.show(self.key)

    def clean(self, text: str) -> str:
        """``text`` without any URL's user, password and query, and without the credentials in use."""
        text = _URL_SECRETS.sub(lambda match: match[1] + match[2], text)
        for secret in self.secrets:
            text = text.replace(secret, "<redacted>")
        return redact(text)  # a signature or token that stands outside of a URL

    def say(self, what: str, request_id: str | None = None) -> str:
        """A text that stands alone: what happened, to which key, where."""
        named = f", request id {request_id}" if request_id else ""
        key = f"key {self.key!r} at " if self.key else ""  # empty: the URL itself is the object's
        return f"{self.clean(what)}: {key}{self.url} ({self.backend} backend, {self.driver} driver{named})"


def hidden_texts(texts: Iterable[str]) -> tuple[str, ...]:
    """Those of ``texts`` that no error shows, for `Subject`: longest first, so that no half of one stays."""
    return tuple(sorted({text for text in texts if len(text) >= _SECRET_LENGTH}, key=len, reverse=True))


def system_reason(errors: Iterable[BaseException]) -> str:
    """Why there is no connection, in the words of the system, where one of ``errors`` knows."""
    for error in errors:
        found = getattr(error, "os_error", error)  # aiohttp's name for it
        if isinstance(found, OSError) and found.errno:
            return (found.strerror if isinstance(found, socket.gaierror) else os.strerror(found.errno)) or ""
    return ""


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
    error = cls(
        subject.say(what, request_id),
        url=subject.url,
        key=subject.key,
        backend=subject.backend,
        status=status,
        request_id=request_id,
    )
    if isinstance(error, TransientError):
        error.retry_after = wait
    error.__cause__ = cause
    return error


def status_failure(
    status: int,
    subject: Subject,
    *,
    code: str | None = None,
    request_id: str | None = None,
    wait: float | None = None,
    cause: BaseException | None = None,
) -> StorageError:
    """The error that a refusing status stands for; ``code`` is the store's own word for it."""
    meaning = subject.table.meaning(status, code)
    said = f"{status} {code}" if code and not code.isdigit() else f"{status}{_phrase(status)}"
    if meaning is not None:
        cls, what = meaning.error, f"{meaning.what} (the server answered {said})"
    else:
        cls = STATUSES.get(status, ServerError if status >= 500 else StorageError)
        what = f"the server answered {said}"
        if status in (401, 403) and subject.table.remedy:
            what += f"; {subject.table.remedy}"
    return failure(cls, what, subject, status=status, request_id=request_id, wait=wait, cause=cause)


def _phrase(status: int) -> str:
    try:
        return f" {HTTPStatus(status).phrase}"
    except ValueError:
        return ""


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
