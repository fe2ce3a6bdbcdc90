"""Ways to have a downloader refused, and all that its error tells."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import pytest

from forebay import Downloader
from forebay.downloader import SupportsRangeRead
from forebay.exceptions import (
    ConnectionFailedError,
    IncompleteBodyError,
    ServerError,
    StorageError,
    StorageTimeoutError,
    ThrottledError,
)
from forebay.testing import Fault, FaultServer, run_async

__all__ = [
    "FAULTS",
    "KEY",
    "NOBODY",
    "Case",
    "check_errors",
    "check_one_attempt",
    "check_told",
    "errors_of",
    "opening",
    "stat_error",
]

KEY = "key.bin"
#: No server takes a port so low, and none that a test starts is given it.
NOBODY = "http://127.0.0.1:1"

D = TypeVar("D", bound=Downloader)


@dataclass(frozen=True)
class Case:
    """A store's answer, and what has to become of it."""

    status: int
    code: str
    error: type[StorageError]
    says: str = ""

    def __str__(self) -> str:
        return f"{self.status}-{self.code or 'bare'}"


#: What goes wrong below HTTP, or in a body.
FAULTS = {
    "closed before the answer": (Fault(cut=True), ConnectionFailedError),
    "reset before the answer": (Fault(reset=True), ConnectionFailedError),
    "no answer": (Fault(hang=True), StorageTimeoutError),
    "body cut": (Fault(cut=True, after=2), IncompleteBodyError),
    "body reset": (Fault(reset=True, after=2), IncompleteBodyError),
    "body stops moving": (Fault(hang=True, after=2), StorageTimeoutError),
    "502": (Fault(status=502), ServerError),
}


@contextmanager
def opening(make: Callable[..., D]) -> Iterator[Callable[..., D]]:
    """``make``, whose downloaders are closed at the end."""
    made: list[D] = []

    def opened(*args: object, **options: object) -> D:
        made.append(make(*args, **options))
        return made[-1]

    try:
        yield opened
    finally:
        for one in made:
            one.close()


def errors_of(downloader: Downloader, *, whole: bool = True) -> list[StorageError]:
    """The errors of a range and of a whole read, sync and async; ``whole=False`` leaves the whole ones out."""
    ranges: list[tuple[int, int | None]] = [(2, 4), (0, None)] if whole else [(2, 4)]
    found: list[StorageError] = []
    for offset, length in ranges:
        with pytest.raises(StorageError) as error:
            downloader.download_bytes(KEY, offset, length)
        found.append(error.value)

    async def main() -> None:
        reads: list[Awaitable[object]] = [downloader.adownload_bytes(KEY, *one) for one in ranges]
        if isinstance(downloader, SupportsRangeRead):
            reads.append(downloader.aread_range(KEY, 2, 4))
        for read in reads:
            with pytest.raises(StorageError) as error:
                await read
            found.append(error.value)
        await downloader.aclose()

    run_async(main())
    return found


def stat_error(downloader: Downloader) -> StorageError:
    """The error of `stat`."""
    with pytest.raises(StorageError) as error:
        downloader.stat(KEY)
    return error.value


def check_told(error: StorageError, backend: str, secrets: tuple[str, ...]) -> None:
    """The error stands alone, survives a process boundary, and shows no secret anywhere."""
    text = "".join(traceback.format_exception(error)) + repr(error) + repr(error.__context__) + str(vars(error))
    assert not [secret for secret in secrets if secret in text]
    assert error.key == KEY
    assert KEY in str(error)
    assert error.backend == backend
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


def check_errors(
    errors: Iterable[StorageError], wanted: type[StorageError], backend: str, secrets: tuple[str, ...], says: str = ""
) -> None:
    """Each is exactly of that class, says so, and `check_told`."""
    for error in errors:
        assert type(error) is wanted, f"{error!r} from {error.__cause__!r}"
        assert says in str(error)
        check_told(error, backend, secrets)


def check_one_attempt(downloader: Downloader, faults: FaultServer) -> None:
    """The engine's policy rules: no SDK tries again by itself (N10), neither an answer nor a body."""
    for fault, error in ((Fault(status=503), ThrottledError), (Fault(cut=True, after=2), IncompleteBodyError)):
        faults.unscript()
        faults.script(None, fault, times=None)
        faults.forget_requests()
        with pytest.raises(error):
            downloader.download_bytes(KEY, 2, 4)
        assert len(faults.requests) == 1
