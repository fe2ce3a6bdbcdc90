"""What Google can answer, enumerated: both drivers raise the same class, and no text has a secret (N1-N9, U)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from servers.answers import (
    FAULTS,
    NOBODY,
    Case,
    check_errors,
    check_one_attempt,
    check_told,
    errors_of,
    opening,
    stat_error,
)
from servers.fakegcs import FakeGcs

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
from forebay_gcs import GcsDownloader
from forebay_gcs._errors import TABLE

pytestmark = pytest.mark.xdist_group("gcs")
TOKEN = "ya29.example-token-0123456789"
SECRETS = (TOKEN, "0123456789abcdef")

#: Codes of the XML API (obstore) and reasons of the JSON API (gcsfs).
ANSWERS = (
    Case(404, "NoSuchKey", ObjectNotFoundError),
    Case(404, "NoSuchBucket", ObjectNotFoundError),
    Case(404, "BucketNotFound", ObjectNotFoundError),
    Case(404, "notFound", ObjectNotFoundError),
    Case(403, "AccessDenied", AccessDeniedError, "token"),
    Case(403, "forbidden", AccessDeniedError, "token"),
    Case(403, "accountDisabled", AccessDeniedError),
    Case(403, "UserProjectAccessDenied", AccessDeniedError, "user_project"),
    Case(400, "UserProjectMissing", AccessDeniedError, "user_project"),
    Case(400, "UserProjectInconsistent", StorageError, "user_project"),
    Case(401, "AuthenticationRequired", AuthenticationError, "wants credentials"),
    Case(401, "required", AuthenticationError, "wants credentials"),
    Case(401, "authError", AuthenticationError, "not accepted"),
    Case(401, "InvalidAuthentication", AuthenticationError, "not accepted"),
    Case(403, "InvalidSecurity", AuthenticationError, "not accepted"),
    Case(403, "SignatureDoesNotMatch", AuthenticationError, "not accepted"),
    Case(400, "ExpiredToken", AuthenticationError, "expired"),
    Case(400, "uploadType", UnsupportedOperationError, "driver='fsspec'"),
    Case(412, "PreconditionFailed", ObjectChangedError),
    Case(412, "conditionNotMet", ObjectChangedError),
    Case(416, "InvalidRange", InvalidRangeError),
    Case(416, "requestedRangeNotSatisfiable", InvalidRangeError),
    Case(408, "RequestTimeout", StorageTimeoutError),
    Case(429, "SlowDown", ThrottledError),
    Case(429, "TooManyRequests", ThrottledError),
    Case(429, "rateLimitExceeded", ThrottledError),
    Case(403, "userRateLimitExceeded", ThrottledError),
    Case(503, "ServiceUnavailable", ThrottledError),
    Case(500, "InternalError", ServerError),
    Case(500, "internalError", ServerError),
    Case(503, "backendError", ServerError),
    Case(401, "", AuthenticationError),
    Case(403, "", AccessDeniedError),
    Case(404, "", ObjectNotFoundError),
    Case(500, "", ServerError),
    Case(503, "", ThrottledError),
    Case(400, "SomethingNew", StorageError),
)


HEADERS = {"Retry-After": "7", "X-GUploader-UploadID": "upload-id"}


def body(case: Case, driver: str) -> bytes:
    """The answer in the language that the driver's API speaks; it repeats what nobody may see."""
    said = f"{TOKEN} X-Goog-Signature=0123456789abcdef"
    if not case.code:
        return b""
    if driver == "obstore":
        return f"<?xml version='1.0'?><Error><Code>{case.code}</Code><Details>{said}</Details></Error>".encode()
    error = {"code": case.status, "message": said, "errors": [{"reason": case.code, "message": said}]}
    return json.dumps({"error": error}).encode()


@pytest.fixture
def faults() -> Iterator[FaultServer]:
    with FaultServer() as server:
        for key in ("bench/key.bin", "download/storage/v1/b/bench/o/key.bin"):
            server.put(key, b"0123456789")
        yield server


@pytest.fixture
def opened(driver: str) -> Iterator[Callable[..., GcsDownloader]]:
    def make(endpoint: str, root: str = "gs://bench", **options: object) -> GcsDownloader:
        given = {"token": TOKEN, "timeout": 0.5, "connect_timeout": 1.0, "driver": driver, "endpoint_url": endpoint}
        return GcsDownloader(root, {**given, **options})

    with opening(make) as opened:
        yield opened


def test_every_row_of_the_table_is_tried() -> None:
    assert set(TABLE.codes) <= {case.code for case in ANSWERS}


@pytest.mark.parametrize("case", ANSWERS, ids=str)
def test_answers(opened: Callable[..., GcsDownloader], driver: str, faults: FaultServer, case: Case) -> None:
    faults.script(None, Fault(status=case.status, body=body(case, driver), headers=HEADERS), times=None)
    for error in errors_of(opened(faults.url())):
        assert type(error) is case.error
        assert case.says in str(error)
        assert error.status == case.status
        assert error.request_id == ("upload-id" if driver == "fsspec" else None), "obstore hides headers"
        check_told(error, "gcs", SECRETS)
        if isinstance(error, ThrottledError):
            assert error.retry_after == (7.0 if driver == "fsspec" else None), "obstore hides headers"


@pytest.mark.parametrize("what", FAULTS)
def test_faults(opened: Callable[..., GcsDownloader], faults: FaultServer, what: str) -> None:
    fault, wanted = FAULTS[what]
    faults.script(None, fault, times=None)
    check_errors(errors_of(opened(faults.url())), wanted, "gcs", SECRETS)


def test_nobody_answers(opened: Callable[..., GcsDownloader], driver: str) -> None:
    says = "Connection refused" if driver == "obstore" else ""
    check_errors(errors_of(opened(NOBODY)), ConnectionFailedError, "gcs", SECRETS, says)


def test_one_attempt_a_request(opened: Callable[..., GcsDownloader], faults: FaultServer) -> None:
    """gcsfs would try six times."""
    check_one_attempt(opened(faults.url()), faults)


def test_missing_object_and_bucket(opened: Callable[..., GcsDownloader], driver: str, fakegcs: FakeGcs) -> None:
    for root in (fakegcs.url, "gs://no-such-bucket"):
        downloader = opened(fakegcs.endpoint, root)
        check_errors([*errors_of(downloader), stat_error(downloader)], ObjectNotFoundError, "gcs", SECRETS)
    if driver == "fsspec":  # the emulator answers 500 to a listing through the XML API
        with pytest.raises(ObjectNotFoundError):
            list(opened(fakegcs.endpoint, "gs://no-such-bucket").list())


def test_no_credentials_at_all(opened: Callable[..., GcsDownloader], faults: FaultServer) -> None:
    """Without any, and with a machine that is not to be asked, nothing is sent and the remedy is named (M8)."""
    for error in errors_of(opened(faults.url(), token=None)):
        assert type(error) is AuthenticationError
        assert "token" in str(error)
    assert not faults.requests
