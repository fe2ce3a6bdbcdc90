"""What a store can answer, enumerated: both drivers, sync and async, raise the same class, and no text has a secret."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from servers.answers import FAULTS, NOBODY, Case, check_errors, check_told, errors_of, stat_error
from servers.moto import Moto
from servers.weed import Weed

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
    TransientError,
    UnsupportedOperationError,
)
from forebay.testing import Fault, FaultServer, run_async
from forebay_s3 import S3Downloader
from forebay_s3._errors import TABLE

Open = Callable[..., S3Downloader]
SECRETS = ("AKIAEXAMPLEKEY", "wJalrXUtnFEMI-example-secret", "example-session-token-0123456789", "X-Amz-Signature=")


def xml(code: str) -> bytes:
    """An answer as S3 gives it, which repeats what was signed, as some do."""
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>said</Message>'
        "<AWSAccessKeyId>AKIAEXAMPLEKEY</AWSAccessKeyId><StringToSign>AWS4 example-session-token-0123456789"
        "</StringToSign><Resource>/b/k?X-Amz-Signature=0123456789abcdef</Resource><RequestId>4442587FB7D0A2F9"
        "</RequestId></Error>"
    ).encode()


ANSWERS = (
    Case(404, "NoSuchKey", ObjectNotFoundError, "no such object"),
    Case(404, "NoSuchBucket", ObjectNotFoundError, "no such bucket"),
    Case(404, "NoSuchVersion", ObjectNotFoundError),
    Case(404, "", ObjectNotFoundError, "no such object or bucket"),
    Case(500, "500", ServerError, "500 Internal Server Error"),
    Case(403, "AccessDenied", AccessDeniedError, "missing object looks so too"),
    Case(403, "AllAccessDisabled", AccessDeniedError),
    Case(403, "InvalidAccessKeyId", AuthenticationError, "access_key_id"),
    Case(403, "SignatureDoesNotMatch", AuthenticationError, "secret key"),
    Case(400, "ExpiredToken", AuthenticationError, "expired"),
    Case(400, "TokenRefreshRequired", AuthenticationError, "expired"),
    Case(400, "InvalidToken", AuthenticationError, "session token"),
    Case(403, "RequestTimeTooSkewed", AuthenticationError, "clock"),
    Case(400, "AuthorizationHeaderMalformed", StorageError, "another region"),
    Case(301, "PermanentRedirect", StorageError, "another region"),
    Case(307, "TemporaryRedirect", StorageError, "another region"),
    Case(307, "", StorageError, "another region"),
    Case(403, "InvalidObjectState", UnsupportedOperationError, "archived"),
    Case(412, "PreconditionFailed", ObjectChangedError),
    Case(416, "InvalidRange", InvalidRangeError),
    Case(400, "RequestTimeout", StorageTimeoutError),
    Case(503, "SlowDown", ThrottledError),
    Case(503, "ServiceUnavailable", ThrottledError),
    Case(429, "TooManyRequests", ThrottledError),
    Case(500, "InternalError", ServerError),
    Case(409, "OperationAborted", ServerError),
    Case(405, "MethodNotAllowed", UnsupportedOperationError),
    Case(501, "NotImplemented", UnsupportedOperationError),
    Case(403, "SomethingNew", AccessDeniedError),
    Case(400, "SomethingNew", StorageError),
    Case(502, "", ServerError),
    Case(401, "", AuthenticationError),
)

#: What goes wrong with a range alone.
RANGE_FAULTS = {
    "range shifted (P2)": (Fault(shift_range=2), ServerError),
    "range claims another place": (Fault(content_range="bytes 0-3/10"), ServerError),
}


@pytest.mark.parametrize("case", ANSWERS, ids=str)
def test_each_answer_means_the_same_on_both_drivers(faults: FaultServer, faulty: Open, case: Case) -> None:
    faults.put("bucket/key.bin", b"0123456789")
    body = xml(case.code) if case.code else b""
    faults.script(None, Fault(status=case.status, body=body, headers={"Retry-After": "7"}), times=None)
    downloader = faulty(session_token="example-session-token-0123456789")
    for error in errors_of(downloader):
        assert type(error) is case.error, repr(error)
        # obstore does not say which kind of redirect it could not follow.
        assert error.status == (301 if case.status == 307 and probe_name(downloader) == "obstore" else case.status)
        assert (error.key, error.backend, error.url) == ("key.bin", "s3", "s3://bucket/key.bin")
        assert case.says in str(error)
        check_told(error, "s3", SECRETS)
        if isinstance(error, TransientError):
            seen = probe_name(downloader) == "fsspec"  # N2: obstore shows no headers, and our own backoff rules
            assert error.retry_after == (7.0 if seen else None)
    if case.status not in (409, 416):  # a HEAD has no body that could say more, and no range
        assert type(stat_error(downloader)) is case.error


def probe_name(downloader: S3Downloader) -> str:
    return str(downloader.options["driver"])


def test_every_code_of_the_table_is_raised_as_it_says(faults: FaultServer, faulty: Open) -> None:
    downloader = faulty()
    for code, meaning in TABLE.codes.items():
        faults.unscript()
        faults.script(None, Fault(status=400, body=xml(code)), times=None)
        with pytest.raises(meaning.error) as error:
            downloader.download_bytes("key.bin", 2, 4)
        assert type(error.value) is meaning.error, code
        assert code in str(error.value) or meaning.error is ObjectNotFoundError


@pytest.mark.parametrize("name", [*FAULTS, *RANGE_FAULTS])
def test_each_fault_means_the_same_on_both_drivers(faults: FaultServer, faulty: Open, name: str) -> None:
    fault, expected = {**FAULTS, **RANGE_FAULTS}[name]
    faults.put("bucket/key.bin", b"0123456789")
    faults.script(None, fault, times=None)
    check_errors(errors_of(faulty(timeout=0.5), whole=name in FAULTS), expected, "s3", SECRETS)


def test_refused_port(faulty: Open, driver: str) -> None:
    says = "Connection refused" if driver == "obstore" else "no connection"
    check_errors(errors_of(faulty(endpoint_url=NOBODY)), ConnectionFailedError, "s3", SECRETS, says)


def test_no_driver_retries_by_itself(faults: FaultServer, faulty: Open) -> None:
    """N10: the engine retries, with jitter and a budget; a second retry below it would multiply both."""
    faults.put("bucket/key.bin", b"0123456789")
    # (aiohttp repeats a request whose connection died before any answer, once and at once: that is left to it.)
    for fault in (
        Fault(status=503, body=xml("SlowDown")),
        Fault(status=500),
        Fault(hang=True),
        Fault(cut=True, after=2),
    ):
        faults.unscript()
        faults.forget_requests()
        faults.script(None, fault, times=None)
        with pytest.raises(TransientError):
            faulty(timeout=0.5).download_bytes("key.bin", 2, 4)
        assert len(faults.requests) == 1


def test_a_connection_that_was_left_after_a_refused_range_is_no_failure(faults: FaultServer, faulty: Open) -> None:
    """Q1: of an empty object too. Some servers close after a 416 without a word; only the next request may find out."""
    faults.put("bucket/empty.bin", b"")
    faults.put("bucket/key.bin", b"0123456789")
    downloader = faulty()
    for key, data in (("empty.bin", b""), ("key.bin", b"23")):
        faults.script(None, Fault(status=416))
        faults.script(None, Fault(cut=True))
        if key == "key.bin":
            with pytest.raises(InvalidRangeError):
                downloader.download_bytes(key, 20, 2)
        assert downloader.download_bytes(key, 2 if data else 0, 2) == data
    if probe_name(downloader) == "obstore":  # aiohttp asks again by itself
        faults.script(None, Fault(cut=True))
        with pytest.raises(TransientError):
            downloader.download_bytes("key.bin", 2, 2)


@pytest.mark.slow
def test_slow_body_that_moves_is_no_timeout(faults: FaultServer, faulty: Open) -> None:
    """N3: the deadline is for each read, not for the body."""
    data = bytes(range(100))
    faults.put("bucket/key.bin", data)
    faults.script(None, Fault(drip=(10, 0.2)), times=None)
    assert faulty(timeout=1.5).download_bytes("key.bin") == data


@pytest.mark.parametrize("server", ["weed", "moto"])
def test_missing_object_missing_bucket_and_wrong_keys_on_servers(
    server: str, request: pytest.FixtureRequest, opened: Open
) -> None:
    store: Weed | Moto = request.getfixturevalue(server)
    store.put("key.bin", b"0123456789")
    options = store.options
    for error in errors_of(opened("s3://bench/no-such-folder", **options)):
        assert type(error) is ObjectNotFoundError
    for error in errors_of(opened("s3://no-such-bucket", **options)):
        assert type(error) is ObjectNotFoundError
        assert "bucket" in str(error).partition(":")[0]
    wrong = {**options, "secret_access_key": "wJalrXUtnFEMI-example-secret"}
    refusals = [*errors_of(opened("s3://bench", **wrong)), stat_error(opened("s3://bench", **wrong))]
    check_errors(refusals, AuthenticationError, "s3", SECRETS)
    unknown = {**wrong, "access_key_id": "AKIAEXAMPLEKEY"}
    check_errors(errors_of(opened("s3://bench", **unknown)), AuthenticationError, "s3", SECRETS)
    with pytest.raises(AuthenticationError):
        list(opened("s3://bench", **wrong).list())
    for error in errors_of(opened("s3://bench", endpoint_url=options["endpoint_url"], anonymous=True)):
        assert type(error) in (AccessDeniedError, AuthenticationError)


def test_changed_object_is_an_error_and_never_a_mixture(weed: Weed, opened: Open) -> None:
    """R4: If-Match on every part."""
    weed.put("changing.bin", b"0123456789")
    downloader = opened(weed.url, **weed.options)

    async def main() -> None:
        first = await downloader.aread_range("changing.bin", 0, 4)
        again = await downloader.aread_range("changing.bin", 4, 4, if_match=first.info.etag)
        assert bytes(again.data) == b"4567"
        weed.put("changing.bin", b"abcdefghij")
        with pytest.raises(ObjectChangedError):
            await downloader.aread_range("changing.bin", 4, 4, if_match=first.info.etag)
        await downloader.aclose()

    run_async(main())


def test_etag_is_compared_where_the_store_ignores_if_match(faults: FaultServer, faulty: Open) -> None:
    faults.put("bucket/key.bin", b"0123456789", etag='"one"')
    faults.script(None, Fault(headers={"ETag": '"two"'}), times=None)
    downloader = faulty()

    async def main() -> None:
        with pytest.raises(ObjectChangedError):
            await downloader.aread_range("key.bin", 4, 4, if_match='"one"')
        await downloader.aclose()

    run_async(main())


def test_no_credentials_say_so(faults: FaultServer, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """L4: also where the machine is asked and does not answer."""
    faults.put("bucket/key.bin", b"0123456789")
    for error in errors_of(opened("s3://bucket", endpoint_url=faults.url())):
        assert type(error) is AuthenticationError
        assert "credentials" in str(error)
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
    for error in errors_of(opened("s3://bucket", endpoint_url=faults.url())):
        assert type(error) is AuthenticationError
        assert "credentials" in str(error)
    assert not [one for one in faults.requests if one.key.startswith("bucket")], "nothing was asked without credentials"
