"""What Azure can answer, enumerated: both drivers raise the same class, and no text has a secret (N1-N9, U)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from servers.answers import (
    FAULTS,
    KEY,
    NOBODY,
    Case,
    check_errors,
    check_one_attempt,
    check_told,
    errors_of,
    opening,
    stat_error,
)
from servers.azurite import Azurite

from forebay.exceptions import (
    AccessDeniedError,
    AuthenticationError,
    ConnectionFailedError,
    InvalidRangeError,
    ObjectChangedError,
    ObjectNotFoundError,
    ServerError,
    StorageError,
    StorageTimeoutError,
    ThrottledError,
    UnsupportedOperationError,
)
from forebay.testing import Fault, FaultServer
from forebay_azure import AzureDownloader
from forebay_azure._errors import TABLE

pytestmark = pytest.mark.xdist_group("azure")
ACCOUNT = "devstoreaccount1"
WRONG_KEY = "d3Jvbmcta2V5LXdyb25nLWtleS13cm9uZy1rZXktd3Jvbmcta2V5LXdyb25nLWtleQ=="
PROOF = "c2lnbmF0dXJlLW9mLWEtdGVzdA%3D%3D"
SECRETS = (WRONG_KEY, PROOF, "c2lnbmF0dXJlLW9mLWEtdGVzdA==", Azurite.KEY)
SAS = f"sv=2023-11-03&sr=c&sp=rl&se=2027-01-01T00%3A00%3A00Z&sig={PROOF}"

ANSWERS = (
    Case(404, "BlobNotFound", ObjectNotFoundError, "no such object"),
    Case(404, "ContainerNotFound", ObjectNotFoundError, "no such container"),
    Case(409, "ContainerBeingDeleted", ObjectNotFoundError, "no such container"),
    Case(409, "ContainerDisabled", ObjectNotFoundError, "no such container"),
    Case(404, "ResourceNotFound", ObjectNotFoundError, "private"),
    Case(403, "AuthenticationFailed", AuthenticationError, "sas_token"),
    Case(400, "InvalidAuthenticationInfo", AuthenticationError, "account_key"),
    Case(401, "NoAuthenticationInformation", AuthenticationError, "wants credentials"),
    Case(403, "AccountIsDisabled", AccessDeniedError, "disabled"),
    Case(403, "AuthorizationFailure", AccessDeniedError),
    Case(403, "AuthorizationPermissionMismatch", AccessDeniedError),
    Case(403, "AuthorizationProtocolMismatch", AccessDeniedError),
    Case(403, "AuthorizationResourceTypeMismatch", AccessDeniedError),
    Case(403, "AuthorizationServiceMismatch", AccessDeniedError),
    Case(403, "AuthorizationSourceIPMismatch", AccessDeniedError),
    Case(403, "InsufficientAccountPermissions", AccessDeniedError),
    Case(403, "KeyBasedAuthenticationNotPermitted", AccessDeniedError, "account keys"),
    Case(409, "PublicAccessNotPermitted", AccessDeniedError, "anonymous"),
    Case(409, "BlobArchived", UnsupportedOperationError, "archive"),
    Case(409, "BlobBeingRehydrated", UnsupportedOperationError, "archive"),
    Case(412, "ConditionNotMet", ObjectChangedError),
    Case(412, "TargetConditionNotMet", ObjectChangedError),
    Case(416, "InvalidRange", InvalidRangeError),
    Case(503, "ServerBusy", ThrottledError),
    Case(500, "InternalError", ServerError),
    Case(500, "OperationTimedOut", StorageTimeoutError),
    Case(401, "", AuthenticationError),
    Case(403, "", AccessDeniedError),
    Case(404, "", ObjectNotFoundError),
    Case(500, "", ServerError),
    Case(503, "", ThrottledError),
    Case(400, "SomethingNew", StorageError),
)


def answer(case: Case, secret: object) -> Fault:
    """The answer as Azure gives it, which repeats what was signed, as Azure does."""
    text = f"<Error><Code>{case.code}</Code><Message>said</Message><Detail>{secret}</Detail></Error>"
    headers = {"Retry-After": "7", "Content-Type": "application/xml"}
    if case.code:
        headers["x-ms-error-code"] = case.code
    return Fault(status=case.status, body=text.encode() if case.code else b"", headers=headers)


@pytest.fixture
def faults() -> Iterator[FaultServer]:
    with FaultServer() as server:
        server.put(f"{ACCOUNT}/bench/{KEY}", b"0123456789")
        yield server


@pytest.fixture
def opened(driver: str) -> Iterator[Callable[..., AzureDownloader]]:
    def make(endpoint: str, root: str = "az://bench", **options: object) -> AzureDownloader:
        given: dict[str, object] = {"timeout": 0.5, "connect_timeout": 1.0, "driver": driver, "endpoint_url": endpoint}
        who = options or {"account_key": WRONG_KEY}
        return AzureDownloader(root, {**given, "account_name": ACCOUNT, **who})

    with opening(make) as opened:
        yield opened


def test_every_row_of_the_table_is_tried() -> None:
    assert set(TABLE.codes) <= {case.code for case in ANSWERS}


@pytest.mark.parametrize("who", [{"account_key": WRONG_KEY}, {"sas_token": SAS}], ids=["key", "sas"])
@pytest.mark.parametrize("case", ANSWERS, ids=str)
def test_answers(
    opened: Callable[..., AzureDownloader], driver: str, faults: FaultServer, case: Case, who: dict[str, object]
) -> None:
    faults.script(None, answer(case, *who.values()), times=None)
    for error in errors_of(opened(faults.url(), **who)):
        assert type(error) is case.error
        assert case.says in str(error)
        assert error.status == case.status
        check_told(error, "azure", SECRETS)
        if isinstance(error, ThrottledError):
            assert error.retry_after == (7.0 if driver == "fsspec" else None), "obstore hides headers"


@pytest.mark.parametrize("what", FAULTS)
def test_faults(opened: Callable[..., AzureDownloader], faults: FaultServer, what: str) -> None:
    fault, wanted = FAULTS[what]
    faults.script(None, fault, times=None)
    check_errors(errors_of(opened(faults.url(), sas_token=SAS)), wanted, "azure", SECRETS)


def test_nobody_answers(opened: Callable[..., AzureDownloader], driver: str) -> None:
    says = "Connection refused" if driver == "obstore" else ""
    check_errors(errors_of(opened(NOBODY)), ConnectionFailedError, "azure", SECRETS, says)


def test_one_attempt_a_request(opened: Callable[..., AzureDownloader], faults: FaultServer) -> None:
    check_one_attempt(opened(faults.url()), faults)


def test_missing_object_and_container(opened: Callable[..., AzureDownloader], azurite: Azurite) -> None:
    for root in (azurite.url, "az://no-such-container"):
        downloader = opened(azurite.endpoint, root, account_key=azurite.KEY)
        check_errors([*errors_of(downloader), stat_error(downloader)], ObjectNotFoundError, "azure", SECRETS)
    with pytest.raises(ObjectNotFoundError):
        list(opened(azurite.endpoint, "az://no-such-container", account_key=azurite.KEY).list())


@pytest.mark.parametrize("who", ["wrong key", "expired signature", "signature of another account's key", "nobody"])
def test_credentials_that_the_server_refuses(
    opened: Callable[..., AzureDownloader], azurite: Azurite, who: str
) -> None:
    azurite.put(KEY, b"0123456789")
    ways: dict[str, dict[str, object]] = {
        "wrong key": {"account_key": WRONG_KEY},
        "expired signature": {"sas_token": azurite.sas(lasts=timedelta(minutes=-1))},
        "signature of another account's key": {"sas_token": SAS},
        "nobody": {"anonymous": True},
    }
    downloader = opened(azurite.endpoint, **ways[who])
    # Azurite has one code for all of them, AuthorizationFailure; Azure's own ones are in the table above.
    refusals = [*errors_of(downloader), stat_error(downloader)]
    check_errors(refusals, AccessDeniedError, "azure", SECRETS, says="account_key")


def test_signature_that_has_ended_is_not_sent(
    opened: Callable[..., AzureDownloader], azurite: Azurite, faults: FaultServer
) -> None:
    """The end stands in it; a quarter of an hour is left to clocks that differ."""
    for error in errors_of(opened(faults.url(), sas_token=azurite.sas(lasts=timedelta(hours=-1)))):
        assert type(error) is AuthenticationError
        assert "has ended" in str(error)
        assert "sig=" not in str(error)
    assert not faults.requests


def test_no_credentials_at_all(opened: Callable[..., AzureDownloader], faults: FaultServer) -> None:
    """Without any, and with a machine that is not to be asked, nothing is sent and the remedy is named (M8)."""
    for error in errors_of(opened(faults.url(), account_key=None)):
        assert type(error) is AuthenticationError
        assert "account_key" in str(error)
    assert not faults.requests
