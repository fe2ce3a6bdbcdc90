"""What fsspec's file systems and the SDKs under them raise, in our terms: the one table of the fsspec driver.

No SDK is imported: an error is known by the names of its classes, and its status by the attributes that they document.
fsspec's own errors often hide the SDK's one behind them (s3fs makes an OSError of a throttled request, fsspec's http
file system a FileNotFoundError of a refused connection), so causes are looked at too, the deepest first.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from forebay.exceptions import (
    AccessDeniedError,
    AuthenticationError,
    ConnectionFailedError,
    ForebayError,
    IncompleteBodyError,
    ObjectChangedError,
    ObjectNotFoundError,
    ServerError,
    StorageError,
    StorageTimeoutError,
    UnsupportedOperationError,
)
from forebay_drivers.errors import NO_TLS, Subject, failure, retry_after, status_failure, system_reason

__all__ = ["SDK_CLASSES", "translate"]

_NO_ANSWER = "no answer, or no more of the body, within the deadline"
_NO_CONNECTION = "no connection"
_BROKE = "the connection broke before the answer"
_BODY_BROKE = "the body broke off"
_DAMAGED = "the body arrived damaged: its checksum is another"
_CERTIFICATE = "the server's certificate is not trusted; see ca_file and verify_tls"
_NO_CREDENTIALS = "there are no usable credentials"
_Row = tuple[type[StorageError], str]

#: (package, class) to its meaning, for errors without a status. An error's first class that is listed counts.
SDK_CLASSES: Mapping[tuple[str, str], _Row] = {
    ("aiohttp", "ClientConnectorCertificateError"): (StorageError, _CERTIFICATE),
    ("aiohttp", "ClientConnectorSSLError"): (StorageError, NO_TLS),
    ("aiohttp", "ServerTimeoutError"): (StorageTimeoutError, _NO_ANSWER),
    ("aiohttp", "ClientPayloadError"): (IncompleteBodyError, _BODY_BROKE),
    ("aiohttp", "ClientConnectorError"): (ConnectionFailedError, _NO_CONNECTION),
    ("aiohttp", "ClientConnectionError"): (ConnectionFailedError, _BROKE),
    ("aiohttp", "ClientResponseError"): (ServerError, "the server's answer is no HTTP"),
    ("aiohttp", "InvalidURL"): (StorageError, "the URL cannot be requested"),
    ("botocore", "ConnectTimeoutError"): (StorageTimeoutError, _NO_ANSWER),
    ("botocore", "ReadTimeoutError"): (StorageTimeoutError, _NO_ANSWER),
    ("botocore", "SSLError"): (StorageError, _CERTIFICATE),
    ("botocore", "IncompleteReadError"): (IncompleteBodyError, _BODY_BROKE),
    ("botocore", "ResponseStreamingError"): (IncompleteBodyError, _BODY_BROKE),
    ("botocore", "FlexibleChecksumError"): (IncompleteBodyError, _DAMAGED),
    ("botocore", "EndpointConnectionError"): (ConnectionFailedError, _NO_CONNECTION),
    ("botocore", "ProxyConnectionError"): (ConnectionFailedError, "no connection to the proxy"),
    ("botocore", "ConnectionClosedError"): (ConnectionFailedError, _BROKE),
    ("botocore", "HTTPClientError"): (ConnectionFailedError, _BROKE),
    ("botocore", "ConnectionError"): (ConnectionFailedError, _NO_CONNECTION),
    ("botocore", "NoCredentialsError"): (AuthenticationError, _NO_CREDENTIALS),
    ("botocore", "PartialCredentialsError"): (AuthenticationError, _NO_CREDENTIALS),
    ("botocore", "CredentialRetrievalError"): (AuthenticationError, _NO_CREDENTIALS),
    ("botocore", "ProfileNotFound"): (AuthenticationError, "there is no such profile of credentials"),
    ("botocore", "SSOError"): (AuthenticationError, "the single sign-on session cannot be used"),
    ("botocore", "ResponseParserError"): (ServerError, "the server's answer cannot be read"),
    ("google", "DefaultCredentialsError"): (AuthenticationError, _NO_CREDENTIALS),
    ("google", "TransportError"): (ConnectionFailedError, "no connection to where credentials are asked for"),
    ("google", "RefreshError"): (AuthenticationError, "the credentials could not be refreshed"),
    ("google", "GoogleAuthError"): (AuthenticationError, _NO_CREDENTIALS),
    ("gcsfs", "ChecksumError"): (IncompleteBodyError, _DAMAGED),
    ("requests", "SSLError"): (StorageError, _CERTIFICATE),
    ("requests", "ProxyError"): (ServerError, "a gateway failed"),  # gcsfs: its word for a 502
    ("requests", "Timeout"): (StorageTimeoutError, _NO_ANSWER),
    ("requests", "ChunkedEncodingError"): (IncompleteBodyError, _BODY_BROKE),
    ("requests", "ConnectionError"): (ConnectionFailedError, _NO_CONNECTION),
    ("azure", "ServiceRequestTimeoutError"): (StorageTimeoutError, _NO_ANSWER),
    ("azure", "ServiceResponseTimeoutError"): (StorageTimeoutError, _NO_ANSWER),
    ("azure", "IncompleteReadError"): (IncompleteBodyError, _BODY_BROKE),
    ("azure", "ServiceRequestError"): (ConnectionFailedError, _NO_CONNECTION),
    ("azure", "ServiceResponseError"): (ConnectionFailedError, _BROKE),
    ("azure", "ClientAuthenticationError"): (AuthenticationError, _NO_CREDENTIALS),
    ("paramiko", "AuthenticationException"): (AuthenticationError, "the server takes neither password nor key"),
    ("paramiko", "BadHostKeyException"): (StorageError, "the server shows another host key than the known one"),
    ("paramiko", "NoValidConnectionsError"): (ConnectionFailedError, _NO_CONNECTION),
    ("paramiko", "SSHException"): (ConnectionFailedError, _BROKE),
    ("builtins", "FileNotFoundError"): (ObjectNotFoundError, "there is no such object"),
    ("builtins", "NotADirectoryError"): (ObjectNotFoundError, "there is no such object"),
    ("builtins", "IsADirectoryError"): (ObjectNotFoundError, "there is a folder and no object"),
    ("builtins", "PermissionError"): (AccessDeniedError, "access was denied"),
    ("builtins", "TimeoutError"): (StorageTimeoutError, _NO_ANSWER),
    ("builtins", "ConnectionError"): (ConnectionFailedError, _BROKE),
    ("builtins", "EOFError"): (ConnectionFailedError, _BROKE),  # ftplib, paramiko: the other side hung up
    ("builtins", "NotImplementedError"): (UnsupportedOperationError, "the file system cannot do that"),
    ("socket", "gaierror"): (ConnectionFailedError, "the host's name cannot be resolved"),
}
_NETWORK_ERRNOS = frozenset(
    {
        errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH,
        errno.ENETDOWN, errno.ENETUNREACH, errno.ENOTCONN, errno.EPIPE, errno.ESHUTDOWN,
    }
)  # fmt: skip
_MAX_CAUSES = 6


@dataclass(frozen=True, slots=True)
class _Facts:
    status: int
    code: str | None = None
    request_id: str | None = None
    wait: float | None = None


class SdkError(Exception):
    """What the SDK said, in words: its own error may hold the request with its signature."""


def translate(exc: BaseException, subject: Subject) -> ForebayError | None:
    """What an error means; None where nothing in it is known, so that it is passed on as it is."""
    if isinstance(exc, StorageError) and exc.backend is None:
        # A dialect's own: it knows what happened, and not where.
        return failure(type(exc), exc.message, subject, status=exc.status, cause=exc.__cause__)
    if isinstance(exc, ForebayError):
        return None
    chain = list(_causes(exc))
    cause = SdkError(f"{type(exc).__module__}.{type(exc).__qualname__}: {subject.clean(str(exc))}")
    for link in reversed(chain):
        facts = _facts(link)
        if facts is not None:
            return status_failure(
                facts.status, subject, code=facts.code, request_id=facts.request_id, wait=facts.wait, cause=cause
            )
    for link in reversed(chain):
        row = _row(link)
        if row is not None:
            if row[1] is _NO_CONNECTION and (reason := system_reason(chain)):
                return failure(row[0], f"{row[1]} ({reason})", subject, cause=cause)
            remedy = subject.table.remedy if row[0] is AuthenticationError else ""
            return failure(row[0], f"{row[1]}; {remedy}" if remedy else row[1], subject, cause=cause)
    if isinstance(exc, OSError):
        # fsspec's general word for a refusal; the text is the store's.
        return failure(StorageError, f"the file system failed: {exc}", subject, cause=cause)
    return None


def _causes(exc: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = exc
    for _ in range(_MAX_CAUSES):
        if link is None:
            return
        yield link
        link = link.__cause__


def _row(exc: BaseException) -> _Row | None:
    for cls in type(exc).__mro__:
        row = SDK_CLASSES.get((cls.__module__.partition(".")[0], cls.__name__))
        if row is not None:
            # botocore and requests have one class for all that goes wrong with TLS.
            return (row[0], NO_TLS) if row[1] is _CERTIFICATE and "certificate" not in str(exc).lower() else row
    if isinstance(exc, OSError) and exc.errno in _NETWORK_ERRNOS:
        return ConnectionFailedError, _BROKE
    if type(exc) is OSError and exc.errno is None and str(exc).startswith("Forbidden"):
        return AccessDeniedError, "access was denied"  # gcsfs: its word for a 403
    if type(exc) is ValueError and str(exc).startswith("Bad Request"):
        return StorageError, "the server calls the request a bad one"  # gcsfs: its word for a 400
    if type(exc) is FileExistsError and not exc.errno:
        return ObjectChangedError, "the object changed"  # gcsfs: its word for a 412
    return None


# -- errors that carry the status of a response ----------------------------------------------------------------------


def _facts(exc: BaseException) -> _Facts | None:
    packages = {cls.__module__.partition(".")[0] for cls in type(exc).__mro__}
    for package, read in _READERS.items():
        if package in packages:
            return read(exc)
    return None


def _botocore(exc: BaseException) -> _Facts | None:
    response = getattr(exc, "response", None)
    if not isinstance(response, dict):
        return None
    code = str(response.get("Error", {}).get("Code") or "") or None
    meta = response.get("ResponseMetadata", {})
    status = _number(meta.get("HTTPStatusCode")) or _number(code)
    if status is None:
        return None
    headers = meta.get("HTTPHeaders", {})
    return _Facts(
        status,
        None if code is not None and code.isdigit() else code,
        meta.get("RequestId") or None,
        retry_after(headers.get("retry-after")),
    )


def _gcsfs(exc: BaseException) -> _Facts | None:
    status = _number(getattr(exc, "code", None))
    if status is None:
        return None
    # Of gcsfs's own error these are empty; the gcs backend's has them.
    headers = getattr(exc, "headers", None) or {}
    reason = getattr(exc, "reason", None)
    return _Facts(status, reason, headers.get("X-GUploader-UploadID"), retry_after(headers.get("Retry-After")))


def _azure(exc: BaseException) -> _Facts | None:
    status = _number(getattr(exc, "status_code", None))
    if status is None:
        return None
    headers = getattr(getattr(exc, "response", None), "headers", None) or {}
    code = getattr(exc, "error_code", None)
    code = getattr(code, "value", code) or headers.get("x-ms-error-code")
    return _Facts(status, code, headers.get("x-ms-request-id"), retry_after(headers.get("Retry-After")))


def _aiohttp(exc: BaseException) -> _Facts | None:
    status = _number(getattr(exc, "status", None))
    if not status or not 300 <= status < 600:
        return None  # 0 and 400 from its own parser are no answers of the server's
    headers = getattr(exc, "headers", None) or {}
    return _Facts(status, None, headers.get("x-request-id"), retry_after(headers.get("Retry-After")))


def _requests(exc: BaseException) -> _Facts | None:
    response = getattr(exc, "response", None)
    status = _number(getattr(response, "status_code", None))
    if status is None or response is None:
        return None
    return _Facts(status, None, response.headers.get("x-request-id"), retry_after(response.headers.get("Retry-After")))


#: What an FTP reply means as a status.
_FTP = {"421": 503, "425": 503, "426": 500, "430": 401, "450": 503, "451": 500, "530": 401, "532": 401, "550": 404}


def _ftplib(exc: BaseException) -> _Facts | None:
    code = str(exc)[:3]
    return _Facts(_FTP[code]) if code in _FTP else None


_READERS = {
    "botocore": _botocore,
    "gcsfs": _gcsfs,
    "azure": _azure,
    "aiohttp": _aiohttp,
    "requests": _requests,
    "httpx": _requests,
    "huggingface_hub": _requests,
    "ftplib": _ftplib,
}


def _number(value: object) -> int | None:
    try:
        return int(str(value))
    except ValueError:
        return None
