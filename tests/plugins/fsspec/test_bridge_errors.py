"""What file systems raise, in our terms: one class a cause, and no secret in any text (N, U)."""

from __future__ import annotations

import errno
import ftplib
import pickle
import socket
import traceback
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem
from servers.answers import opening
from servers.ftp import Ftp
from servers.sftp import Sftp

import forebay
from forebay.downloader import Downloader
from forebay.exceptions import (
    AccessDeniedError,
    AuthenticationError,
    ConfigError,
    ConnectionFailedError,
    IncompleteBodyError,
    InvalidURLError,
    MissingDependencyError,
    ObjectChangedError,
    ObjectNotFoundError,
    ServerError,
    StorageError,
    StorageTimeoutError,
    ThrottledError,
    TransientError,
)
from forebay.testing import Fault, FaultServer, run_async
from forebay_drivers.errors import Subject
from forebay_drivers.fsspec import translate

DATA = b"0123456789"


@pytest.fixture
def faults() -> Iterator[FaultServer]:
    with FaultServer() as server:
        server.put("key.bin", DATA)
        yield server


@pytest.fixture
def opened() -> Iterator[Callable[..., Downloader]]:
    with opening(lambda url, **options: forebay.open_downloader(url, options=options or None)) as opened:
        yield opened


class _Sink:
    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        self.data += data
        return len(data)


FAULTS: dict[str, tuple[Fault, type[StorageError]]] = {
    "401": (Fault(status=401), AuthenticationError),
    "403": (Fault(status=403), AccessDeniedError),
    "404": (Fault(status=404), ObjectNotFoundError),
    "416": (Fault(status=418), StorageError),
    "429": (Fault(status=429, headers={"Retry-After": "7"}), ThrottledError),
    "500": (Fault(status=500), ServerError),
    "503": (Fault(status=503, headers={"Retry-After": "7"}), ThrottledError),
    "closed before the answer": (Fault(cut=True), ConnectionFailedError),
    "reset before the answer": (Fault(reset=True), ConnectionFailedError),
    "no answer": (Fault(hang=True), StorageTimeoutError),
    "body cut": (Fault(cut=True, after=2), IncompleteBodyError),
    "body stops moving": (Fault(hang=True, after=2), StorageTimeoutError),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", FAULTS)
def test_http_faults_keep_their_class(case: str, faults: FaultServer, opened: Callable[..., Downloader]) -> None:
    fault, cls = FAULTS[case]
    faults.script("key.bin", fault, times=50)
    one = opened(f"fsspec+{faults.url()}", timeout=1.0)

    async def stream() -> None:
        try:
            await one.adownload_fileobj("key.bin", _Sink())
        finally:
            await one.aclose()

    for read in (lambda: one.download_bytes("key.bin", 0, 5), lambda: run_async(stream())):
        with pytest.raises(StorageError) as caught:
            read()
        assert type(caught.value) is cls, f"{caught.value!r}"
        assert "key.bin" in str(caught.value)
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (type(copy), str(copy)) == (cls, str(caught.value))
        if isinstance(caught.value, ThrottledError):
            assert caught.value.retry_after == 7
    # fsspec calls every failure of a question about an object "not found".
    if case not in ("body cut", "body stops moving"):
        with pytest.raises(StorageError) as caught:
            one.stat("key.bin")
        assert type(caught.value) is cls


def test_refused_port_is_a_connection_that_failed(opened: Callable[..., Downloader]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        for scheme in ("http", "ftp", "sftp"):
            with pytest.raises(ConnectionFailedError):
                opened(f"fsspec+{scheme}://127.0.0.1:{port}").stat("key.bin")


def test_object_that_changes_between_parts_is_an_error(faults: FaultServer, opened: Callable[..., Downloader]) -> None:
    """P, R4: parts of two versions never make one object."""
    one = opened(f"fsspec+{faults.url()}")

    async def main() -> None:
        first = await one.aread_range("key.bin", 0, 5)  # type: ignore[attr-defined]
        assert bytes(first.data) == DATA[:5]
        faults.put("key.bin", DATA[::-1])
        with pytest.raises(ObjectChangedError):
            await one.aread_range("key.bin", 5, 5, if_match=first.info.etag)  # type: ignore[attr-defined]
        await one.aclose()

    run_async(main())


def test_server_that_ignores_ranges_gives_the_right_bytes(
    faults: FaultServer, opened: Callable[..., Downloader]
) -> None:
    """P1."""
    faults.script("key.bin", Fault(ignore_range=True), times=50)
    assert opened(f"fsspec+{faults.url()}").download_bytes("key.bin", 2, 3) == b"234"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["ftp", "sftp"])
def test_wrong_password_is_told_without_it(
    request: pytest.FixtureRequest, scheme: str, opened: Callable[..., Downloader]
) -> None:
    """L, U1: neither in the URL nor in the options."""
    wrong, server = "not-the-password", request.getfixturevalue(scheme)
    urls = {
        f"fsspec+{scheme}://{server.USER}:{wrong}@127.0.0.1:{server.port}": {},
        f"fsspec+{scheme}://127.0.0.1:{server.port}": {"username": server.USER, "password": wrong},
    }
    for url, options in urls.items():
        one = opened(url, **options)
        with pytest.raises(AuthenticationError) as caught:
            one.stat("key.bin")
        assert wrong not in "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(one)


def test_connection_that_broke_is_replaced(ftp: Ftp, opened: Callable[..., Downloader]) -> None:
    """J15: one failure does not poison what comes after it."""
    ftp.put("good.bin", DATA)
    one = opened(f"fsspec+{ftp.url}", encoding="utf-8")
    assert one.download_bytes("good.bin") == DATA
    driver = next(iter(one._drivers.values()))  # type: ignore[attr-defined]
    (held,) = driver._idle
    held.ftp.sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(TransientError):
        one.download_bytes("good.bin")
    assert one.download_bytes("good.bin") == DATA


def test_sftp_connection_that_broke_is_replaced(sftp: Sftp, opened: Callable[..., Downloader]) -> None:
    """J15, N4: as above, and in the middle of a body."""
    data = bytes(range(256)) * (100 << 10)
    sftp.put("good.bin", data)
    one = opened(f"fsspec+{sftp.url}")
    assert one.download_bytes("good.bin", 5, 5) == data[5:10]
    driver = next(iter(one._drivers.values()))  # type: ignore[attr-defined]

    class Breaks:
        def write(self, piece: bytes | bytearray | memoryview, /) -> int:
            if transport.is_active():
                transport.sock.shutdown(socket.SHUT_RDWR)
                transport.join(5)
            return len(piece)

    transport = driver._idle[0].client.get_transport()
    with pytest.raises(TransientError):
        one.download_fileobj("good.bin", Breaks())
    assert one.download_bytes("good.bin") == data


def test_unreadable_file_is_denied(tmp_path: Path, opened: Callable[..., Downloader]) -> None:
    """L11: our classes are the builtin ones too, so that fsspec's users' handlers work."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    one = opened(f"fsspec+file://{tmp_path}")
    with pytest.raises(StorageError):
        one.download_bytes("loop")
    assert issubclass(AccessDeniedError, PermissionError)
    assert issubclass(ObjectNotFoundError, FileNotFoundError)


SUBJECT = Subject("key.bin", "fsspec", "fsspec", lambda key: f"fsspec+x://place/{key}", ("hidden-secret",))

BUILTINS: tuple[tuple[BaseException, type[StorageError]], ...] = (
    (FileNotFoundError("x"), ObjectNotFoundError),
    (IsADirectoryError("x"), ObjectNotFoundError),
    (PermissionError("x"), AccessDeniedError),
    (TimeoutError("x"), StorageTimeoutError),
    (ConnectionResetError("x"), ConnectionFailedError),
    (EOFError(), ConnectionFailedError),
    (OSError(errno.EHOSTUNREACH, "x"), ConnectionFailedError),
    (socket.gaierror(8, "x"), ConnectionFailedError),
    (OSError(errno.EIO, "x"), StorageError),
    (OSError("Forbidden: https://x\nno"), AccessDeniedError),
    (ftplib.error_perm("530 Login incorrect"), AuthenticationError),
    (ftplib.error_perm("550 No such file"), ObjectNotFoundError),
    (ftplib.error_temp("421 Too many"), ThrottledError),
)


@pytest.mark.parametrize(("raised", "cls"), BUILTINS, ids=repr)
def test_builtin_errors_have_one_meaning(raised: BaseException, cls: type[StorageError]) -> None:
    told = translate(raised, SUBJECT)
    assert type(told) is cls


def test_deepest_cause_counts() -> None:
    """s3fs, adlfs and fsspec's http put a builtin error before the SDK's own."""
    outer = FileNotFoundError("http://x")
    outer.__cause__ = ConnectionRefusedError("x")
    assert type(translate(outer, SUBJECT)) is ConnectionFailedError


def test_unknown_errors_come_as_they_are_and_secrets_do_not() -> None:
    assert translate(ZeroDivisionError("a bug"), SUBJECT) is None
    assert translate(KeyError("a bug"), SUBJECT) is None
    told = translate(OSError(errno.EIO, "rejected: hidden-secret"), SUBJECT)
    assert told is not None
    assert "hidden-secret" not in "".join(traceback.format_exception(told))


def test_missing_package_is_named() -> None:
    """S4: a protocol whose package is not there says what to install."""
    if find_spec("smbprotocol") is not None:
        pytest.skip("smbprotocol is installed")
    with pytest.raises(MissingDependencyError, match="smbprotocol") as caught:
        forebay.open_downloader("fsspec+smb://host/share")
    assert isinstance(caught.value, ImportError)


def test_unknown_protocol_names_the_near_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'memory'"):
        forebay.open_downloader("fsspec+memry://x")


def test_option_that_is_missing_or_wrong_is_a_config_error() -> None:
    one = forebay.open_downloader("fsspec+ftp:///folder-and-no-host")
    try:
        with pytest.raises(ConfigError, match="host"):
            one.stat("x")
    finally:
        one.close()
    with pytest.raises(ConfigError, match="storage_options"):
        forebay.open_downloader("fsspec+memory://x", options={"storage_options": "not json"})


def test_root_that_fsspec_would_read_otherwise_is_refused(ftp: Ftp) -> None:
    """O2: some file systems take a '?' in a path for a query."""
    with pytest.raises(InvalidURLError):
        forebay.open_downloader(f"fsspec+{ftp.url}/what?x=1")
    with pytest.raises(InvalidURLError, match="query"):
        forebay.open_downloader("fsspec+http://127.0.0.1:1/x?sig=1")


def test_local_file_system_is_the_working_one() -> None:
    """The root without a path is the root of the disk, not the working directory."""
    one = forebay.open_downloader("fsspec+file://")
    try:
        assert one.stat(str(Path(__file__).resolve()).lstrip("/")).size == Path(__file__).stat().st_size
    finally:
        one.close()
    assert LocalFileSystem._strip_protocol("file://") != "/"
