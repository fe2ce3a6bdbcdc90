"""What the object-store servers have in common: a place to be asked for by tests, through a client that is not ours."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Protocol, Self
from urllib.parse import urlsplit

from servers.process import ServerProcess, free_port

__all__ = ["Answer", "BucketServer", "ServerContext", "Store", "StoreRemote", "call"]

_DEADLINE = 20.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, read whole."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


def call(
    method: str, url: str, body: bytes = b"", headers: Mapping[str, str] | None = None, *, ok: tuple[int, ...] = ()
) -> Answer:
    """One request on a connection of its own; the target goes out as it is written. Fails unless 2xx or in ``ok``."""
    parts = urlsplit(url)
    target = url.split(parts.netloc, 1)[1] or "/"
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_DEADLINE)
    try:
        connection.request(
            method, target, body=body or None, headers={"Content-Length": str(len(body)), **(headers or {})}
        )
        response = connection.getresponse()
        answer = Answer(
            response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        )
    finally:
        connection.close()
    if not 200 <= answer.status < 300 and answer.status not in ok:
        raise OSError(f"{method} {target}: {answer.status} {answer.body[:500]!r}")
    return answer


class Store(Protocol):
    """A running server with one bucket, or container, of tests."""

    BUCKET: str

    @property
    def endpoint(self) -> str:
        """Scheme, host and port (and account), without a trailing slash."""
        ...

    @property
    def url(self) -> str:
        """The bucket's URL, as users write it."""
        ...

    @property
    def options(self) -> dict[str, object]:
        """What `forebay.open_downloader` needs to reach it."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Make or replace an object, through a client that is not ours."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; `FileNotFoundError` where there is none."""
        ...


class StoreRemote:
    """A store as `forebay.testing.DownloaderConformance` wants it, with the driver under test."""

    def __init__(self, store: Store, **options: object) -> None:
        self._store = store
        self.url = store.url
        self.options: Mapping[str, object] = {**store.options, **options}

    def put(self, key: str, data: bytes) -> None:
        """As `Store.put`."""
        self._store.put(key, data)

    def delete(self, key: str) -> None:
        """As `Store.delete`."""
        self._store.delete(key)

    def object_url(self, key: str) -> str:
        """The object's own URL."""
        return f"{self.url}/{key}"


class ServerContext:
    """A context manager that ends whatever its `start` has begun, in the opposite order."""

    def __init__(self) -> None:
        self._exits = ExitStack()
        self.processes: list[ServerProcess] = []

    def start(self) -> None:
        """Start the server; register what has to end with ``self._exits``."""
        raise AssertionError("a subclass starts something")

    def own(self, process: ServerProcess) -> None:
        """End ``process`` with this context."""
        self.processes.append(process)
        self._exits.callback(process.stop)

    def own_on_free_port(
        self, command: Callable[[int], Sequence[str]], log: Path, env: Mapping[str, str] | None = None
    ) -> int:
        """Own what ``command`` makes of a free port, which is returned; another one where somebody was faster."""
        for last in (False, False, True):
            port = free_port()
            try:
                self.own(ServerProcess(command(port), port, log, env))
            except RuntimeError:
                if last:
                    raise
            else:
                break
        return port

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._exits.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()


class BucketServer(ServerContext):
    """One with a bucket, or container, on a port of this machine; what it writes lies in ``directory``."""

    SCHEME: ClassVar[str]
    BUCKET: str

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.port = 0

    @property
    def endpoint(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The bucket."""
        return f"{self.SCHEME}://{self.BUCKET}"
