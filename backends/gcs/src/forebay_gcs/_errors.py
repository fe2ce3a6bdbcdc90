"""What Google's error codes mean: those of the XML API, which obstore reads through, and the JSON API's reasons."""

from __future__ import annotations

import re

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
    UnsupportedOperationError,
)
from forebay_drivers.errors import ErrorTable, Meaning

__all__ = ["TABLE"]

_REMEDY = "see the options token, credentials and anonymous, and `forebay doctor`"
_NO_OBJECT = Meaning(ObjectNotFoundError, "there is no such object")
_NO_BUCKET = Meaning(ObjectNotFoundError, "there is no such bucket")
_DENIED = Meaning(AccessDeniedError, f"access was denied; {_REMEDY}")
_WHO = Meaning(AuthenticationError, f"the credentials are not accepted: they are wrong or expired; {_REMEDY}")
# The XML API has this word for a wrong token too.
_NONE = Meaning(
    AuthenticationError, f"the store wants credentials: there are none, or they are wrong or expired; {_REMEDY}"
)
_EXPIRED = Meaning(AuthenticationError, f"the credentials have expired; {_REMEDY}")
_PAYS = Meaning(AccessDeniedError, "the bucket's reader pays: give the option user_project")
_SLOW = Meaning(ThrottledError, "the store asks for fewer requests")
_SERVER = Meaning(ServerError, "the store failed")

TABLE = ErrorTable(
    codes={
        "NoSuchKey": _NO_OBJECT,
        "notFound": _NO_OBJECT,
        "NoSuchBucket": _NO_BUCKET,
        "BucketNotFound": _NO_BUCKET,
        "AccessDenied": _DENIED,
        "forbidden": _DENIED,
        "accountDisabled": _DENIED,
        "UserProjectAccessDenied": Meaning(AccessDeniedError, "the user_project may not be billed by this user"),
        "UserProjectMissing": _PAYS,
        "UserProjectInconsistent": Meaning(StorageError, "user_project is another than the request's"),
        "AuthenticationRequired": _NONE,
        "required": _NONE,
        "InvalidSecurity": _WHO,
        "SignatureDoesNotMatch": _WHO,
        "InvalidAuthentication": _WHO,
        "authError": _WHO,
        "ExpiredToken": _EXPIRED,
        "SlowDown": _SLOW,
        "rateLimitExceeded": _SLOW,
        "userRateLimitExceeded": _SLOW,
        "TooManyRequests": _SLOW,
        "InternalError": _SERVER,
        "internalError": _SERVER,
        "backendError": _SERVER,
        "ServiceUnavailable": Meaning(ThrottledError, "the store is busy"),
        "RequestTimeout": Meaning(StorageTimeoutError, "the store waited too long for the request"),
        "PreconditionFailed": Meaning(ObjectChangedError, "the object was replaced while it was read"),
        "conditionNotMet": Meaning(ObjectChangedError, "the object was replaced while it was read"),
        "InvalidRange": Meaning(InvalidRangeError, "the range does not lie in the object"),
        # fake-gcs-server, of a write through the XML API, as obstore makes it.
        "uploadType": Meaning(UnsupportedOperationError, "this emulator stores nothing so; driver='fsspec' can"),
        "requestedRangeNotSatisfiable": Meaning(InvalidRangeError, "the range does not lie in the object"),
    },
    statuses={404: Meaning(ObjectNotFoundError, "there is no such object or bucket")},
    code_in_text=re.compile(r"(?:<Code>|\"reason\": ?\"|\"message\": ?\"invalid )(\w+)[<\"]"),
    remedy=_REMEDY,
)
