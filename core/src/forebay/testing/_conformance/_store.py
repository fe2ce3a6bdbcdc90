"""What the suite knows of the store under test, and the fixtures that all of its parts share."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit
from uuid import uuid4

import pytest

from forebay import open_downloader
from forebay.downloader import ASYNC_HOOKS, Downloader, overrides, probe

__all__ = [
    "Remote",
    "Sink",
    "Store",
    "SuiteBase",
    "async_ways",
    "difference",
    "native_hooks",
    "secrets_of",
    "sync_ways",
    "told",
]

_SECRET_OPTIONS = frozenset(
    {
        "password",
        "bearer_token",
        "access_key_id",
        "secret_access_key",
        "session_token",
        "token",
        "account_key",
        "sas_token",
        "connection_string",
    }
)


class Remote(Protocol):
    """A place in the store under test. ``put`` and ``delete`` go through a client that is not the downloader.

    A key is relative to ``url``. ``put`` may raise where the store cannot hold such a key. An optional attribute
    ``secrets`` lists texts that no error and no repr may show. An optional method ``object_url(key)`` returns the URL
    by which `forebay.fetch` would be asked for the object; without it the one test that needs it is skipped.
    """

    @property
    def url(self) -> str:
        """The root that the downloader is opened with."""
        ...

    @property
    def options(self) -> Mapping[str, object]:
        """The options that the downloader is opened with."""
        ...

    def put(self, key: str, data: bytes, /) -> object:
        """Store ``data`` under ``key``, replacing what is there."""
        ...

    def delete(self, key: str, /) -> object:
        """Remove the object under ``key``."""
        ...


class Store:
    """A corner of the remote that one test has for itself; emptied afterwards."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self.prefix = f"conformance-{uuid4().hex[:12]}"
        self._held: dict[str, None] = {}

    def key(self, name: str) -> str:
        """The key that ``name`` has in this corner."""
        return f"{self.prefix}/{name}"

    def put(self, name: str, data: bytes) -> str:
        """Store ``data`` and return its key."""
        key = self.key(name)
        self.remote.put(key, data)
        self._held[key] = None
        return key

    def adopt(self, key: str) -> None:
        """Clean ``key`` up too, which the downloader itself has written."""
        self._held[key] = None

    def delete(self, key: str) -> None:
        """Remove the object now."""
        self.remote.delete(key)
        self._held.pop(key, None)

    def clean(self) -> None:
        """Remove all that is left."""
        for key in list(self._held):
            with suppress(FileNotFoundError):  # in some stores two of our keys are one object
                self.delete(key)


class SuiteBase:
    """Fixtures of the suite. A subclass has to define ``remote``."""

    known_gaps: ClassVar[Mapping[str, str]] = {}

    @pytest.fixture
    def remote(self) -> Remote:
        """The store under test."""
        pytest.fail(f"{type(self).__name__} has no `remote` fixture; the conformance suite needs one")

    @pytest.fixture(autouse=True)
    def _respect_known_gaps(self, request: pytest.FixtureRequest) -> None:
        name = getattr(request.node, "originalname", request.node.name)
        if reason := self.known_gaps.get(name):
            pytest.skip(f"known gap: {reason}")

    @pytest.fixture
    def store(self, remote: Remote) -> Iterator[Store]:
        """The test's own corner of the remote."""
        corner = Store(remote)
        yield corner
        corner.clean()

    @pytest.fixture
    def downloader(self, remote: Remote) -> Iterator[Downloader]:
        """The downloader under test, as the engine makes it from the URL."""
        opened = open_downloader(remote.url, options=remote.options)
        yield opened
        opened.close()


class Sink:
    """A ``fileobj`` that has ``write`` and nothing else, and is strict about what it is given."""

    __slots__ = ("_data", "_on_write")

    def __init__(self, on_write: Callable[[], object] | None = None) -> None:
        self._data = bytearray()
        self._on_write = on_write

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        """Keep a copy of ``data``."""
        assert isinstance(data, (bytes, bytearray, memoryview)), f"write() was given a {type(data).__name__}"
        if self._on_write is not None:
            self._on_write()
        size = memoryview(data).nbytes
        self._data += data
        return size


def difference(got: object, wanted: bytes) -> str:
    """How a body differs from what was put, in few words; empty where it does not.

    Not left to pytest: where ``CI`` is set it compares megabytes line by line, which takes minutes.
    """
    if got == wanted:
        return ""
    if not isinstance(got, bytes):
        return f"{type(got).__name__} in place of bytes"
    short = min(len(got), len(wanted))
    low, high = 0, short  # got and wanted agree up to low, and not up to high + 1
    while low < high:
        middle = (low + high + 1) // 2
        if got[:middle] == wanted[:middle]:
            low = middle
        else:
            high = middle - 1
    at = slice(max(low - 8, 0), low + 24)
    return f"{len(got)} bytes for {len(wanted)}, other from byte {low} on: {got[at]!r} for {wanted[at]!r}"


def written(sink: Sink) -> bytes:
    """What a hook wrote; a function, so that the sink itself shows nothing but ``write``."""
    return bytes(sink._data)


def sync_ways(downloader: Downloader, folder: Path) -> dict[str, Callable[[str], bytes]]:
    """Every sync hook that reads a whole object, as a function from key to bytes."""

    def fileobj(key: str) -> bytes:
        sink = Sink()
        downloader.download_fileobj(key, sink)
        return written(sink)

    def file(key: str) -> bytes:
        path = folder / uuid4().hex
        downloader.download_file(key, path)
        return path.read_bytes()

    def whole(key: str) -> bytes:
        return downloader.download_bytes(key)

    return {"download_fileobj": fileobj, "download_file": file, "download_bytes": whole}


def native_hooks(downloader: Downloader) -> set[str]:
    """The async hooks that the engine would call; skips the test where there is none."""
    hooks = {hook for hook in ASYNC_HOOKS if overrides(downloader, hook)}
    if not probe(downloader).native_async or not hooks:
        pytest.skip("no native async hook: the engine runs the sync ones in threads")
    return hooks


def async_ways(downloader: Downloader, folder: Path) -> dict[str, Callable[[str], Coroutine[Any, Any, bytes]]]:
    """Every native async hook that reads a whole object; skips the test where there is none."""

    async def fileobj(key: str) -> bytes:
        sink = Sink()
        await downloader.adownload_fileobj(key, sink)
        return written(sink)

    async def file(key: str) -> bytes:
        path = folder / uuid4().hex
        await downloader.adownload_file(key, path)
        return path.read_bytes()

    async def whole(key: str) -> bytes:
        return await downloader.adownload_bytes(key)

    ways = {"adownload_fileobj": fileobj, "adownload_file": file, "adownload_bytes": whole}
    hooks = native_hooks(downloader)
    return {name: way for name, way in ways.items() if name in hooks}


def secrets_of(remote: Remote) -> set[str]:
    """Texts that belong to the remote's credentials: options, query string, userinfo, and what it names itself."""
    secrets = {str(value) for name, value in remote.options.items() if name in _SECRET_OPTIONS and value}
    headers = remote.options.get("headers")
    if isinstance(headers, Mapping):
        secrets |= {str(value) for value in headers.values()}
    parts = urlsplit(remote.url)
    secrets |= {value for _, value in parse_qsl(parts.query)}
    if parts.password:
        secrets |= {parts.password, unquote(parts.password)}
    secrets |= set(getattr(remote, "secrets", ()))
    return {secret for secret in secrets if len(secret) >= 4}


def told(error: BaseException) -> str:
    """All that a log or a person would see of an error: its chain, its notes, its repr."""
    return "".join(traceback.format_exception(error)) + repr(error)
