"""obstore's errors in our terms: the one table of the obstore driver.

obstore shows a status, and most kinds of failure, only in the text of its errors (class alone is not enough, a 405 is a
FileNotFoundError). The text also holds URLs, the key and the response's body, so those are cut out before anything is
looked for. Response headers are not shown: no ``retry_after``, no request id.
"""

from __future__ import annotations

import re

from obstore.exceptions import BaseError

from forebay.exceptions import (
    AuthenticationError,
    ConnectionFailedError,
    IncompleteBodyError,
    InvalidRangeError,
    InvalidURLError,
    ServerError,
    StorageError,
    StorageTimeoutError,
    ThrottledError,
    UnsupportedOperationError,
)
from forebay_drivers.errors import NO_TLS, Subject, failure, status_failure

__all__ = ["SDK_ERRORS", "clean_cause", "status_of", "translate", "without_noise"]

#: All that obstore raises for a request: its own classes, and builtins for a missing object and a path it cannot take.
SDK_ERRORS = (BaseError, FileNotFoundError, NotImplementedError, ValueError)

_STATUS = re.compile(r" in [0-9.]+[a-zµ]+ - Server returned non-2xx status code: (\d{3})")
#: Where the clouds offer credentials to their machines. obstore asks there where nothing else gives any.
_MACHINE = re.compile(
    r"Error performing (?:GET|PUT) http://[^\s/]+/(?:latest/(?:api/token|meta-data/)|computeMetadata/|metadata/identity)"
)
#: Why there is no connection, in the words of the system: "Connection refused", "Name or service not known".
_REASON = re.compile(
    r'ConnectError\(.*?(?:message|error): "(?:failed to lookup address information: )?([^"]+)"', re.DOTALL
)
_NOISE = re.compile(r"https?://[^\s,]+|path: \"(?:[^\"\\]|\\.)*\"|href: \"(?:[^\"\\]|\\.)*\"")

_NO_CONNECTION = "no connection"
_KINDS: tuple[tuple[str, type[StorageError], str], ...] = (
    ("TooManyRedirects", StorageError, "too many redirects"),
    ("BareRedirect", StorageError, "a redirect without a Location"),
    ("kind: Redirect", StorageError, "a redirect that cannot be followed"),
    ("invalid peer certificate", StorageError, "the server's certificate is not trusted; see ca_file and verify_tls"),
    ("InvalidCertificate", StorageError, "the server's certificate is not trusted; see ca_file and verify_tls"),
    ("InvalidMessage(", StorageError, NO_TLS),
    ("Wanted range starting at", InvalidRangeError, "the range does not lie in the object"),
    ("UnexpectedRange", ServerError, "the server answered with another range than the asked one"),
    ("NoContentRange", ServerError, "the server answered with a part that does not say where it belongs"),
    ("ParseContentRange", ServerError, "the server answered with a part and does not say of what"),
    ("RangeNotSupported", UnsupportedOperationError, "the server does not answer a range request with a range"),
    ("non-partial response", UnsupportedOperationError, "the server does not answer a range request with a range"),
    ("MissingContentLength", UnsupportedOperationError, "the response has no Content-Length, which obstore needs"),
    ("TimedOut", StorageTimeoutError, "no answer, or no more of the body, within the deadline"),
    ("kind: Timeout", StorageTimeoutError, "no answer, or no more of the body, within the deadline"),
    ("kind: Connect,", ConnectionFailedError, _NO_CONNECTION),
    ("Parse(", ServerError, "the server's answer is no HTTP"),
    ("kind: Body", IncompleteBodyError, "the body broke off"),
    ("kind: Decode", IncompleteBodyError, "the body broke off"),
    ("kind: Request", ConnectionFailedError, "the connection broke before the answer"),
    ("kind: Interrupted", ConnectionFailedError, "the connection broke before the answer"),
)


def translate(exc: Exception, subject: Subject) -> Exception:
    """What an error of obstore's means: an error of ours, whose cause holds no secret."""
    text = str(exc)
    cause = clean_cause(exc, subject)
    status = status_of(text)
    # Its 404 is no missing object, and its 503 no busy bucket; nor is a bucket of such a name that service.
    if _MACHINE.search(text) and (status is None or "token request" in text or "//169.254.169.254/" in text):
        return _machine_failure(status, subject, cause)
    if status is not None:
        return status_failure(status, subject, code=subject.table.code_of(text), cause=cause)
    bare = without_noise(text)
    if "Could not parse path" in bare:
        return InvalidURLError(f"obstore has no way to name the key {subject.key!r} at {subject.url}")
    if type(exc).__name__ == "InvalidPathError":
        what = "the listing holds a key that obstore has no way to name; driver='fsspec' lists it"
        return failure(UnsupportedOperationError, what, subject, cause=cause)
    redirected = subject.table.meaning(301, None) if "BareRedirect" in bare else None
    if redirected is not None:  # a store answers so where the bucket is somewhere else
        return failure(redirected.error, redirected.what, subject, status=301, cause=cause)
    for mark, cls, what in _KINDS:
        if mark in bare:
            reason = _REASON.search(bare) if what == _NO_CONNECTION else None
            return failure(cls, f"{what} ({reason[1]})" if reason else what, subject, cause=cause)
    return failure(StorageError, f"obstore failed ({type(exc).__name__})", subject, cause=cause)


def _machine_failure(status: int | None, subject: Subject, cause: Exception) -> StorageError:
    if status is not None and (status == 429 or status >= 500):
        what = f"this machine's metadata service asks for fewer requests: it answered {status}"
        return failure(ThrottledError, what, subject, status=status, cause=cause)
    said = "" if status is None else f" (its metadata service answered {status})"
    what = f"there are no credentials: none were given, and the machine itself offers none{said}"
    return failure(AuthenticationError, f"{what}; {subject.table.remedy}", subject, cause=cause)


def status_of(text: str) -> int | None:
    """The status of a refusing response; a body that speaks of one is not taken for it."""
    found = _STATUS.search(text)
    return None if found is None else int(found[1])


def without_noise(text: str) -> str:
    """``text`` without URLs and paths, which may hold any word."""
    return _NOISE.sub("", text)


def clean_cause(exc: Exception, subject: Subject) -> Exception:
    """The same error with its first line only: the rest repeats the URL, and a body may echo what was signed."""
    first = str(exc).partition("\n")[0].partition("Debug source")[0]
    return type(exc)(subject.clean(re.sub(r"(status code: \d{3}[^:]*):.*", r"\1", first)))
