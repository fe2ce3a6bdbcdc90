"""obstore's errors in our terms: the one table of the obstore driver.

obstore shows a status, and most kinds of failure, only in the text of its errors (SERVERS: class alone is not enough, a
405 is a FileNotFoundError). The text also holds URLs, the key and the response's body, so those are cut out before
anything is looked for. Response headers are not shown: no ``retry_after``, no request id.
"""

from __future__ import annotations

import re

from obstore.exceptions import BaseError

from forebay.exceptions import (
    ConnectionFailedError,
    IncompleteBodyError,
    ServerError,
    StorageError,
    StorageTimeoutError,
)
from forebay_http._choice import Handover
from forebay_http._errors import Subject, failure, status_failure

__all__ = ["SDK_ERRORS", "translate"]

#: All that obstore raises for a request: its own classes, and builtins for a missing object and a path it cannot take.
SDK_ERRORS = (BaseError, FileNotFoundError, NotImplementedError, ValueError)


_STATUS = re.compile(r" in [0-9.]+[a-zµ]+ - Server returned non-2xx status code: (\d{3})")
_NOISE = re.compile(r"https?://[^\s,]+|path: \"(?:[^\"\\]|\\.)*\"|href: \"(?:[^\"\\]|\\.)*\"")

_HANDOVERS: tuple[tuple[str, str], ...] = (
    ("MissingContentLength", "the response has no Content-Length"),
    ("RangeNotSupported", "the server does not answer a range request with a range"),
    ("ParseContentRange", "the server does not say how large the object is"),
    ("Could not parse path", "obstore has no way to name the key"),
)

_KINDS: tuple[tuple[str, type[StorageError], str], ...] = (
    ("TooManyRedirects", StorageError, "too many redirects"),
    ("BareRedirect", StorageError, "a redirect without a Location"),
    ("kind: Redirect", StorageError, "a redirect that cannot be followed"),
    ("invalid peer certificate", StorageError, "the server's certificate is not trusted; see ca_file and verify_tls"),
    ("InvalidCertificate", StorageError, "the server's certificate is not trusted; see ca_file and verify_tls"),
    ("UnexpectedRange", ServerError, "the server answered with another range than the asked one"),
    ("NoContentRange", ServerError, "the server answered with a part that does not say where it belongs"),
    ("TimedOut", StorageTimeoutError, "no answer, or no more of the body, within the deadline"),
    ("kind: Timeout", StorageTimeoutError, "no answer, or no more of the body, within the deadline"),
    ("kind: Connect,", ConnectionFailedError, "no connection"),
    ("Parse(", ServerError, "the server's answer is no HTTP"),
    ("kind: Body", IncompleteBodyError, "the body broke off"),
    ("kind: Decode", IncompleteBodyError, "the body broke off"),
    ("kind: Request", ConnectionFailedError, "the connection broke before the answer"),
    ("kind: Interrupted", ConnectionFailedError, "the connection broke before the answer"),
)


def translate(exc: Exception, subject: Subject) -> StorageError | Handover:
    """What an error of obstore's means: an error of ours with a cause that holds no secret, or a handover."""
    text = str(exc)
    cause = _clean_cause(exc, subject)
    status = _STATUS.search(text)
    if status:
        code = int(status[1])
        if code == 416:
            return Handover("the range is not in the object, and only response headers say why", lasting=False)
        return status_failure(code, subject, cause=cause)
    bare = _NOISE.sub("", text)
    for mark, reason in _HANDOVERS:
        if mark in bare:
            return Handover(reason)
    for mark, cls, what in _KINDS:
        if mark in bare:
            return failure(cls, what, subject, cause=cause)
    return failure(StorageError, f"obstore failed ({type(exc).__name__})", subject, cause=cause)


def _clean_cause(exc: Exception, subject: Subject) -> Exception:
    # The debug half repeats the text and the URL, and the response's body may echo what was signed.
    first = str(exc).partition("\n")[0].partition("Debug source")[0]
    return type(exc)(subject.clean(re.sub(r"(status code: \d{3}[^:]*):.*", r"\1", first)))
