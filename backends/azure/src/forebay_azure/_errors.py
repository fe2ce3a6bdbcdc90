"""What Azure's error codes mean; both drivers show them in the response's body or the SDK's error."""

from __future__ import annotations

import re

from forebay.exceptions import (
    AccessDeniedError,
    AuthenticationError,
    InvalidRangeError,
    ObjectChangedError,
    ObjectNotFoundError,
    ServerError,
    StorageTimeoutError,
    ThrottledError,
    UnsupportedOperationError,
)
from forebay_drivers.errors import ErrorTable, Meaning

__all__ = ["TABLE"]

_REMEDY = "see the options account_key, sas_token, connection_string, credentials and anonymous, and `forebay doctor`"
_NO_CONTAINER = Meaning(ObjectNotFoundError, "there is no such container")
_HIDDEN = Meaning(
    ObjectNotFoundError, "there is no such object or container, or it is private and nobody was told who asks"
)
_WHO = Meaning(
    AuthenticationError, f"the credentials are not accepted: a wrong or expired key, signature or token; {_REMEDY}"
)
_NONE = Meaning(AuthenticationError, f"the store wants credentials and got none; {_REMEDY}")
_DENIED = Meaning(AccessDeniedError, f"access was denied; {_REMEDY}")
_CHANGED = Meaning(ObjectChangedError, "the object was replaced while it was read")
_ARCHIVED = "the object lies in the archive tier and has to be brought back (rehydrated) before it can be read"

TABLE = ErrorTable(
    codes={
        "BlobNotFound": Meaning(ObjectNotFoundError, "there is no such object"),
        "ContainerNotFound": _NO_CONTAINER,
        "ContainerBeingDeleted": _NO_CONTAINER,
        "ContainerDisabled": _NO_CONTAINER,
        "ResourceNotFound": _HIDDEN,
        "AuthenticationFailed": _WHO,
        "InvalidAuthenticationInfo": _WHO,
        "NoAuthenticationInformation": _NONE,
        "AccountIsDisabled": Meaning(AccessDeniedError, "the storage account is disabled"),
        "AuthorizationFailure": _DENIED,
        "AuthorizationPermissionMismatch": _DENIED,
        "AuthorizationProtocolMismatch": _DENIED,
        "AuthorizationResourceTypeMismatch": _DENIED,
        "AuthorizationServiceMismatch": _DENIED,
        "AuthorizationSourceIPMismatch": _DENIED,
        "InsufficientAccountPermissions": _DENIED,
        "KeyBasedAuthenticationNotPermitted": Meaning(AccessDeniedError, "the account takes no account keys"),
        "PublicAccessNotPermitted": Meaning(AccessDeniedError, f"the account lets nobody read unknown; {_REMEDY}"),
        "BlobArchived": Meaning(UnsupportedOperationError, _ARCHIVED),
        "BlobBeingRehydrated": Meaning(UnsupportedOperationError, _ARCHIVED),
        "ConditionNotMet": _CHANGED,
        "TargetConditionNotMet": _CHANGED,
        "InvalidRange": Meaning(InvalidRangeError, "the range does not lie in the object"),
        "ServerBusy": Meaning(ThrottledError, "the store asks for fewer requests"),
        "InternalError": Meaning(ServerError, "the store failed"),
        "OperationTimedOut": Meaning(StorageTimeoutError, "the store could not answer in time"),
    },
    statuses={404: Meaning(ObjectNotFoundError, "there is no such object or container")},
    code_in_text=re.compile(r"<Code>(\w+)</Code>"),
    remedy=_REMEDY,
)
