"""aiohttp's errors in our terms: the one table of the aiohttp driver. What a status means stands in `_errors`."""

from __future__ import annotations

import aiohttp

from forebay.exceptions import (
    ConnectionFailedError,
    IncompleteBodyError,
    ServerError,
    StorageError,
    StorageTimeoutError,
)
from forebay_drivers.errors import NO_TLS, Subject, failure, system_reason

__all__ = ["SDK_ERRORS", "translate"]

#: All that aiohttp raises for a request. Its timeouts are `TimeoutError`s; a broken socket may be a bare OSError.
SDK_ERRORS = (aiohttp.ClientError, TimeoutError, OSError, ValueError)

# In order: the first row whose class fits. The last column is for what happens once the body has begun.
_TABLE: tuple[tuple[type[BaseException], type[StorageError], str], ...] = (
    (
        aiohttp.ClientConnectorCertificateError,
        StorageError,
        "the server's certificate is not trusted; see ca_file and verify_tls",
    ),
    (aiohttp.ClientConnectorSSLError, StorageError, NO_TLS),
    (TimeoutError, StorageTimeoutError, "no answer, or no more of the body, within the deadline"),
    (aiohttp.ClientPayloadError, IncompleteBodyError, "the body broke off"),
    (aiohttp.ClientHttpProxyError, ConnectionFailedError, "no connection through the proxy"),
    (aiohttp.ClientProxyConnectionError, ConnectionFailedError, "no connection to the proxy"),
    (aiohttp.ClientConnectorError, ConnectionFailedError, "no connection"),
    (aiohttp.ClientResponseError, ServerError, "the server's answer is no HTTP"),
    (aiohttp.InvalidURL, StorageError, "the URL cannot be requested"),
    (aiohttp.ClientConnectionError, ConnectionFailedError, "the connection broke before the answer"),
    (OSError, ConnectionFailedError, "the connection broke before the answer"),
)


def translate(exc: Exception, subject: Subject, *, in_body: bool) -> StorageError:
    """What an error of aiohttp's means. Once the body has begun, a broken connection is a body that broke off."""
    cause = _clean_cause(exc, subject)
    for sdk, cls, what in _TABLE:
        if isinstance(exc, sdk):
            if in_body and cls is ConnectionFailedError:
                cls, what = IncompleteBodyError, "the body broke off"
            elif sdk is aiohttp.ClientConnectorError and (reason := system_reason([exc])):
                what = f"{what} ({reason})"
            return failure(cls, what, subject, cause=cause)
    return failure(StorageError, f"aiohttp failed ({type(exc).__name__})", subject, cause=cause)


def _clean_cause(exc: Exception, subject: Subject) -> Exception:
    # Some of aiohttp's errors hold the request with its headers, or the whole URL: only their words go on.
    message = getattr(exc, "message", "") or str(exc)
    return aiohttp.ClientError(f"{type(exc).__name__}: {subject.clean(str(message))}")
