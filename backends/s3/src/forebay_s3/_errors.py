"""What the codes of S3, and of what is compatible with it, mean: the one table of both drivers.

obstore shows the code in the body that its text repeats, botocore as an attribute of its error.
"""

from __future__ import annotations

import re

from forebay.exceptions import (
    AccessDeniedError,
    AuthenticationError,
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

_OPTIONS = "see the options access_key_id, secret_access_key, session_token, profile and credentials"
_REGION = "the bucket is in another region; see the option region, and endpoint_url for a server of your own"
_EXPIRED = "the credentials have expired; get new ones, or give a callable as the option credentials"
_CLOCK = "this machine's clock and the server's differ too much; set the clock"

_NO_BUCKET = Meaning(ObjectNotFoundError, "there is no such bucket")
_NO_OBJECT = Meaning(ObjectNotFoundError, "there is no such object")
_DENIED = Meaning(
    AccessDeniedError,
    "access is denied (a missing object looks so too where listing is not allowed, and a private bucket to anonymous); "
    + _OPTIONS,
)
_UNKNOWN = Meaning(AuthenticationError, f"the server does not know the access key; {_OPTIONS}")
_SIGNATURE = Meaning(AuthenticationError, f"the secret key does not match the access key; {_OPTIONS}")
_SLOW_DOWN = Meaning(ThrottledError, "the server asks for fewer requests")
_FAILED = Meaning(ServerError, "the server failed")

TABLE = ErrorTable(
    codes={
        "NoSuchKey": _NO_OBJECT,
        "NoSuchVersion": _NO_OBJECT,
        "NoSuchBucket": _NO_BUCKET,
        "AccessDenied": _DENIED,
        "AllAccessDisabled": _DENIED,
        "AccountProblem": _DENIED,
        "InvalidAccessKeyId": _UNKNOWN,
        "InvalidClientTokenId": _UNKNOWN,
        "SignatureDoesNotMatch": _SIGNATURE,
        "ExpiredToken": Meaning(AuthenticationError, _EXPIRED),
        "ExpiredTokenException": Meaning(AuthenticationError, _EXPIRED),
        "TokenRefreshRequired": Meaning(AuthenticationError, _EXPIRED),
        "InvalidToken": Meaning(AuthenticationError, f"the session token is not valid; {_OPTIONS}"),
        "InvalidSecurity": Meaning(AuthenticationError, f"the credentials are not valid; {_OPTIONS}"),
        "RequestTimeTooSkewed": Meaning(AuthenticationError, _CLOCK),
        "RequestExpired": Meaning(AuthenticationError, _CLOCK),
        "PermanentRedirect": Meaning(StorageError, _REGION),
        "TemporaryRedirect": Meaning(StorageError, _REGION),
        "AuthorizationHeaderMalformed": Meaning(StorageError, _REGION),
        "IllegalLocationConstraintException": Meaning(StorageError, _REGION),
        "InvalidObjectState": Meaning(
            UnsupportedOperationError, "the object is archived and cannot be read before it is restored"
        ),
        "MethodNotAllowed": Meaning(UnsupportedOperationError, "the server does not allow that on the object"),
        "NotImplemented": Meaning(UnsupportedOperationError, "the server cannot do that"),
        "PreconditionFailed": Meaning(ObjectChangedError, "the object changed"),
        "RequestTimeout": Meaning(StorageTimeoutError, "the server waited too long for the request"),
        "SlowDown": _SLOW_DOWN,
        "SlowDownRead": _SLOW_DOWN,
        "SlowDownWrite": _SLOW_DOWN,
        "ServiceUnavailable": _SLOW_DOWN,
        "Throttling": _SLOW_DOWN,
        "ThrottlingException": _SLOW_DOWN,
        "TooManyRequests": _SLOW_DOWN,
        "RequestLimitExceeded": _SLOW_DOWN,
        "BandwidthLimitExceeded": _SLOW_DOWN,
        "InternalError": _FAILED,
        "OperationAborted": _FAILED,
    },
    statuses={
        404: Meaning(ObjectNotFoundError, "there is no such object or bucket"),  # of a HEAD, which has no body
        301: Meaning(StorageError, _REGION),
        307: Meaning(StorageError, _REGION),
    },
    code_in_text=re.compile(r"<Code>\s*([A-Za-z0-9_.]+)\s*</Code>"),
    remedy=f"{_OPTIONS} (a missing object may look so too)",
)
