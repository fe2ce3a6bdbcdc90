"""What a server can do to a request, enumerated: both drivers, sync and async, raise the same class (N, P2, B12, U)."""

from __future__ import annotations

import pickle
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from forebay.exceptions import (
    AccessDeniedError,
    AuthenticationError,
    ConnectionFailedError,
    IncompleteBodyError,
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
from forebay_http import HttpDownloader

Open = Callable[..., HttpDownloader]

STATUSES: dict[int, type[StorageError]] = {
    400: StorageError,
    401: AuthenticationError,
    402: StorageError,
    403: AccessDeniedError,
    404: ObjectNotFoundError,
    405: UnsupportedOperationError,
    406: StorageError,
    408: StorageTimeoutError,
    409: StorageError,
    410: ObjectNotFoundError,
    412: ObjectChangedError,
    418: StorageError,
    425: ThrottledError,
    429: ThrottledError,
    451: AccessDeniedError,
    500: ServerError,
    501: UnsupportedOperationError,
    502: ServerError,
    503: ThrottledError,
    504: ServerError,
    505: UnsupportedOperationError,
    507: ServerError,
    520: ServerError,
    599: ServerError,
}

SECRETS = {"username": "reader", "password": "open sesame, please"}


@dataclass(frozen=True)
class Case:
    fault: Fault
    error: type[StorageError]


FAULTS = {
    "closed before the answer": Case(Fault(cut=True), ConnectionFailedError),
    "reset before the answer": Case(Fault(reset=True), ConnectionFailedError),
    "no answer": Case(Fault(hang=True), StorageTimeoutError),
    "body cut": Case(Fault(cut=True, after=2), IncompleteBodyError),
    "body reset": Case(Fault(reset=True, after=2), IncompleteBodyError),
    "body stops moving": Case(Fault(hang=True, after=2), StorageTimeoutError),
    "chunked body cut": Case(Fault(cut=True, after=2, framing="chunked"), IncompleteBodyError),
    "range shifted (P2)": Case(Fault(shift_range=2), ServerError),
    "range claims another place": Case(Fault(content_range="bytes 0-3/10"), ServerError),
    "range claims too little": Case(Fault(content_range="bytes 2-3/10"), ServerError),
    "range claims nonsense": Case(Fault(content_range="bytes nonsense"), ServerError),
    "redirect without a place": Case(Fault(status=302), StorageError),
    "redirect that leaves http": Case(Fault(status=302, headers={"Location": "ftp://127.0.0.1/x"}), StorageError),
    "redirect in a circle": Case(Fault(status=302, headers={"Location": "/key.bin"}), StorageError),
}


def errors_of(downloader: HttpDownloader, *, whole: bool = False) -> list[StorageError]:
    """The error of each way to read the object (or four bytes of it)."""
    found: list[StorageError] = []
    with pytest.raises(StorageError) as sync_error:
        downloader.download_bytes("key.bin") if whole else downloader.download_bytes("key.bin", 2, 4)
    found.append(sync_error.value)

    async def main() -> None:
        read = downloader.adownload_bytes("key.bin") if whole else downloader.aread_range("key.bin", 2, 4)
        with pytest.raises(StorageError) as async_error:
            await read
        found.append(async_error.value)
        await downloader.aclose()

    run_async(main())
    return found


def _patience(fault: Fault) -> float:
    """Short where the fault is a silence, else long enough for a machine with much to do."""
    return 0.6 if fault.hang else 30.0


@pytest.mark.parametrize("status", STATUSES)
def test_each_status_means_the_same_on_both_drivers(faults: FaultServer, opened: Open, status: int) -> None:
    faults.put("key.bin", b"0123456789")
    faults.script("key.bin", Fault(status=status, body=b"no such thing, status code: 404"), times=None)
    for error in errors_of(opened(faults.url(), timeout=30)):
        assert type(error) is STATUSES[status]
        assert error.status == status
        assert error.key == "key.bin"
        assert error.backend == "http"
        assert str(status) in str(error)
        assert faults.url("key.bin") in str(error)


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("whole", [False, True], ids=["range", "whole"])
def test_each_fault_means_the_same_on_both_drivers(faults: FaultServer, opened: Open, name: str, whole: bool) -> None:
    case = FAULTS[name]
    if whole and (case.fault.shift_range or case.fault.content_range):
        pytest.skip("only a range has a Content-Range")
    faults.put("key.bin", b"0123456789")
    faults.script("key.bin", case.fault, times=None)
    for error in errors_of(opened(faults.url(), timeout=_patience(case.fault)), whole=whole):
        assert type(error) is case.error, f"{error!r} from {error.__cause__!r}"
        assert "'key.bin'" in str(error)


def test_416_means_the_range_is_not_in_the_object(faults: FaultServer, opened: Open) -> None:
    faults.put("key.bin", b"01")
    for error in errors_of(opened(faults.url())):
        assert type(error) is InvalidRangeError


def test_refused_port_unknown_host_and_untrusted_server(opened: Open) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        for root in (url, "http://no-such-host.invalid"):
            for error in errors_of(opened(root, connect_timeout=30)):
                assert type(error) is ConnectionFailedError


def test_answer_that_is_no_http(opened: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        downloader = opened(f"http://127.0.0.1:{server.getsockname()[1]}", timeout=60)

        async def main() -> None:
            import asyncio

            async def answer() -> None:
                connection, _ = await asyncio.to_thread(server.accept)
                with connection:
                    await asyncio.to_thread(connection.recv, 4096)
                    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")

            async with asyncio.TaskGroup() as group:
                group.create_task(answer())
                with pytest.raises(ServerError, match="no HTTP"):
                    await downloader.aread_range("key.bin", 0, 4)
            await downloader.aclose()

        run_async(main())


def test_retry_after_is_passed_on_where_headers_are_seen(faults: FaultServer) -> None:
    """N2: obstore hides headers, so there our own backoff rules."""
    faults.put("key.bin", b"0123456789")
    faults.script("key.bin", Fault(status=429, headers={"Retry-After": "7", "x-request-id": "abc"}), times=None)
    for driver, seconds in (("fsspec", 7.0), ("obstore", None)):
        downloader = HttpDownloader(faults.url(), {"driver": driver})
        for error in errors_of(downloader):
            assert isinstance(error, ThrottledError)
            assert error.retry_after == seconds
            assert error.request_id == ("abc" if seconds else None)
        downloader.close()


def test_no_driver_retries_by_itself(faults: FaultServer, opened: Open) -> None:
    """N10: the engine retries, with jitter and a budget; a second retry below it would multiply both."""
    faults.put("key.bin", b"0123456789")
    # (aiohttp repeats a request whose connection died before any answer, once and at once: that is left to it.)
    for fault in (Fault(status=503), Fault(hang=True), Fault(cut=True, after=2)):
        faults.unscript()
        faults.forget_requests()
        faults.script("key.bin", fault, times=None)
        downloader = opened(faults.url(), timeout=_patience(fault))
        with pytest.raises(TransientError):
            downloader.download_bytes("key.bin", 2, 4)
        assert len(faults.requests) == 1


@pytest.mark.slow
def test_slow_body_that_moves_is_no_timeout(faults: FaultServer, opened: Open) -> None:
    """N3: the deadline is for each read, not for the body."""
    data = bytes(range(200))
    faults.put("key.bin", data)
    faults.script("key.bin", Fault(drip=(10, 0.15)), times=None)
    assert opened(faults.url(), timeout=2.0).download_bytes("key.bin") == data


@pytest.mark.parametrize("kind", ["status", "cut", "redirect", "port"])
def test_no_error_shows_a_secret(
    faults: FaultServer, opened: Open, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """U1: neither the text, nor the cause, nor the printed traceback, nor a pickle, nor the log."""
    caplog.set_level("DEBUG", "forebay")
    faults.put("key.bin", b"0123456789")
    fault = {
        "status": Fault(status=500, body=b"you signed sig=0123456789abcdef with b3BlbiBzZXNhbWU"),
        "cut": Fault(cut=True),
        "redirect": Fault(status=302, headers={"Location": "/key.bin?sig=0123456789abcdef"}),
        "port": Fault(),
    }[kind]
    faults.script(None, fault, times=None)
    host = faults.url().removeprefix("http://") if kind != "port" else "127.0.0.1:1"
    for query in ("", "?sig=0123456789abcdef"):
        downloader = opened(f"http://reader:open%20sesame%2C%20please@{host}{query}", timeout=30)
        for error in errors_of(downloader):
            shown = "".join(traceback.format_exception(error)) + repr(error) + repr(error.__context__)
            shown += str(pickle.dumps(error)) + repr(downloader) + caplog.text
            for secret in ("sig=", "0123456789abcdef", "open sesame", "open%20sesame", "cmVhZGVyOm9wZW4"):
                assert secret not in shown, shown
            if kind == "port":
                assert "Connection refused" in str(error), "on call one has to know whether it is the name or the port"


def test_error_survives_pickling(faults: FaultServer, opened: Open) -> None:
    for error in errors_of(opened(faults.url())):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.status) == (ObjectNotFoundError, str(error), 404)
