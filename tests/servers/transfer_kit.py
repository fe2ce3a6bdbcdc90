"""What tests of the transfer give it: a limiter, a room, and downloaders that speak real HTTP to a `FaultServer`."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

from forebay._transfer import DaemonPool, Source, TransferPolicy, TransferResult, transfer
from forebay.downloader import Downloader, SupportsWrite, probe
from forebay.exceptions import (
    IncompleteBodyError,
    InvalidRangeError,
    ObjectChangedError,
    ObjectNotFoundError,
    ServerError,
    ThrottledError,
    UnsupportedOperationError,
)
from forebay.types import CodecSpec, ObjectInfo, RangeRead

__all__ = [
    "FixedRoom",
    "PlainHTTP",
    "RangeHTTP",
    "SimpleLimiter",
    "StreamHTTP",
    "fetch",
    "make_source",
    "quick_policy",
    "with_pool",
]


class SimpleLimiter:
    """Bounds requests and bytes, first come first served; remembers the most that was in flight."""

    def __init__(self, requests: int = 16, max_bytes: int = 1 << 30) -> None:
        self.limit = requests
        self.max_bytes = max_bytes
        self.requests = self.bytes = 0
        self.most_requests = self.most_bytes = 0
        self.moved_bytes = self.throttles = 0
        self.granted: list[tuple[int, ...]] = []
        self._changed = asyncio.Condition()
        self._progress = asyncio.Event()

    @asynccontextmanager
    async def slot(self, priority: tuple[int, ...], nbytes: int) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: self._fits(nbytes))
            self.requests += 1
            self.bytes += nbytes
            self.most_requests = max(self.most_requests, self.requests)
            self.most_bytes = max(self.most_bytes, self.bytes)
            self.granted.append(priority)
        try:
            yield
        finally:
            self.requests -= 1
            self.bytes -= nbytes
            async with self._changed:
                self._changed.notify_all()

    def _fits(self, nbytes: int) -> bool:
        return self.requests == 0 or (self.requests < self.limit and self.bytes + nbytes <= self.max_bytes)

    def moved(self, nbytes: int) -> None:
        self.moved_bytes += nbytes
        self._progress.set()

    async def until_moved(self, nbytes: int) -> None:
        """Return once so many bytes have arrived."""
        async with asyncio.timeout(60):
            while self.moved_bytes < nbytes:
                self._progress.clear()
                await self._progress.wait()

    def throttled(self) -> None:
        self.throttles += 1


class FixedRoom:
    """Grants up to ``size`` bytes; more waits for `grow`."""

    def __init__(self, size: int = 1 << 40) -> None:
        self.size = size
        self.asked: list[int] = []
        self.waiting = asyncio.Event()
        self._changed = asyncio.Condition()

    async def ensure(self, total: int) -> None:
        self.asked.append(total)
        async with self._changed:
            if total > self.size:
                self.waiting.set()
            await self._changed.wait_for(lambda: total <= self.size)

    async def grow(self, size: int) -> None:
        async with self._changed:
            self.size = size
            self._changed.notify_all()


class _HTTP(Downloader):
    """Opens one connection a request; errors become what a real backend makes of them."""

    def open(self, key: str, headers: dict[str, str]) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        parts = urlsplit(self.root)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        connection.request("GET", f"{parts.path}/{quote(key)}", headers=headers)
        response = connection.getresponse()
        try:
            self.check(key, response)
        except BaseException:
            connection.close()
            raise
        return connection, response

    def check(self, key: str, response: http.client.HTTPResponse) -> None:
        status, text = response.status, f"{response.status} for {key}"
        if status == 404:
            raise ObjectNotFoundError(text, status=status)
        if status == 412:
            raise ObjectChangedError(text, status=status)
        if status == 416:
            raise InvalidRangeError(text, status=status)
        if status in (429, 503):
            wait = response.headers.get("retry-after")
            raise ThrottledError(text, status=status, retry_after=float(wait) if wait else None)
        if status >= 500:
            raise ServerError(text, status=status)
        if status not in (200, 206):
            raise RuntimeError(text)


class PlainHTTP(_HTTP):
    """Only the abstract method: what most people write."""

    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        connection, response = self.open(key, {})
        try:
            while piece := response.read1(64 * 1024):
                fileobj.write(piece)
            if response.length:
                raise IncompleteBodyError(f"{response.length} bytes of {key} are missing")
        finally:
            connection.close()


class StreamHTTP(PlainHTTP):
    """A native ``adownload_fileobj`` over asyncio streams, which reuses one buffer as some clients do."""

    async def adownload_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        parts = urlsplit(self.root)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            head = f"GET {parts.path}/{quote(key)} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
            writer.write(head.encode())
            status = int((await reader.readline()).split()[1])
            length: int | None = None
            while (line := (await reader.readline()).strip()) != b"":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            if status in (429, 503):
                raise ThrottledError(f"{status} for {key}", status=status)
            if status != 200:
                raise RuntimeError(f"{status} for {key}")
            buffer, seen = bytearray(64 * 1024), 0
            while piece := await reader.read(len(buffer)):
                buffer[: len(piece)] = piece
                seen += len(piece)
                fileobj.write(memoryview(buffer)[: len(piece)])
            if length is not None and seen < length:
                raise IncompleteBodyError(f"{length - seen} bytes of {key} are missing")
        finally:
            writer.close()


class RangeHTTP(PlainHTTP):
    """Ranges with validators, each in a thread of the loop's own executor."""

    async def aread_range(self, key: str, offset: int, length: int, *, if_match: str | None = None) -> RangeRead:
        return await asyncio.to_thread(self._read, key, offset, length, if_match)

    def _read(self, key: str, offset: int, length: int, if_match: str | None) -> RangeRead:
        headers = {"Range": f"bytes={offset}-{offset + length - 1}"}
        if if_match is not None:
            headers["If-Match"] = if_match
        try:
            connection, response = self.open(key, headers)
        except InvalidRangeError:
            if offset == 0:
                return RangeRead(data=b"", info=ObjectInfo(key, size=0))
            raise
        try:
            if response.status != 206:
                raise UnsupportedOperationError("this server has no ranges")
            total = int(response.headers["content-range"].rpartition("/")[2])
            data = response.read()
        except http.client.IncompleteRead as exc:
            raise IncompleteBodyError(f"{exc.expected} bytes of {key} are missing") from exc
        finally:
            connection.close()
        return RangeRead(data=data, info=ObjectInfo(key, size=total, etag=response.headers.get("etag")))


def quick_policy(**changes: object) -> TransferPolicy:
    """Small parts and short waits."""
    from forebay._retry import Backoff

    values: dict[str, object] = {"part_size": 64 * 1024, "backoff": Backoff(base=0.01, cap=0.05), "timeout": 10.0}
    return TransferPolicy(**{**values, **changes})  # type: ignore[arg-type]


def make_source(
    downloader: Downloader,
    key: str,
    *,
    stored: int | None = None,
    decoded: int | None = None,
    codec: CodecSpec | None = None,
    digest: str | None = None,
    etag: str | None = None,
    standalone: bool = False,
) -> Source:
    """A source as the engine makes it."""
    return Source(
        downloader=downloader,
        capabilities=probe(downloader),
        key=key,
        url=f"test://store/{key}",
        backend="test",
        stored_bytes=stored,
        decoded_bytes=decoded,
        codec=codec,
        digest=digest,
        etag=etag,
        standalone=standalone,
    )


async def fetch(
    source: Source,
    path: Path,
    *,
    policy: TransferPolicy | None = None,
    limiter: SimpleLimiter | None = None,
    room: FixedRoom | None = None,
    pool: DaemonPool | None = None,
) -> TransferResult:
    """`transfer` with defaults, in a pool of its own that is closed afterwards."""
    own = pool or DaemonPool("test-hook")
    try:
        return await transfer(
            source,
            path,
            room=room or FixedRoom(),
            limiter=limiter or SimpleLimiter(),
            pool=own,
            policy=policy or quick_policy(),
        )
    finally:
        if pool is None:
            own.close(0.0)


def with_pool(function: Callable[[DaemonPool], None]) -> None:
    """Run ``function`` with a pool and see all its threads end."""
    before = set(threading.enumerate())
    pool = DaemonPool("test-hook")
    try:
        function(pool)
    finally:
        pool.close(60.0)
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("test-hook"):
            thread.join(60.0)
            assert not thread.is_alive()
