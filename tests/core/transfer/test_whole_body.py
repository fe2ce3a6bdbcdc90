"""Hooks that bring whole bodies: blocking and async ones, that break, stall, lie, run ahead, or never return."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import xxhash
from servers.transfer_kit import (
    FixedRoom,
    PlainHTTP,
    SimpleLimiter,
    StreamHTTP,
    fetch,
    make_source,
    quick_policy,
)

from forebay._transfer import DaemonPool, read_object, stat_object
from forebay.downloader import Downloader, SupportsWrite
from forebay.exceptions import (
    IncompleteBodyError,
    ObjectNotFoundError,
    SizeMismatchError,
    StorageTimeoutError,
)
from forebay.testing import Fault, FaultServer, run_async
from forebay.types import ObjectInfo

PART = 64 * 1024
BOTH = pytest.mark.parametrize("cls", [PlainHTTP, StreamHTTP])


@BOTH
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("size", [0, 1, 5 * PART + 17])
def test_every_size_comes_back_exactly_q1(
    server: FaultServer, tmp_path: Path, cls: type[PlainHTTP], size: int, known: bool
) -> None:
    data = os.urandom(size)
    server.put("a", data)
    result = run_async(fetch(make_source(cls(server.url()), "a", stored=size if known else None), tmp_path / "f"))
    assert (tmp_path / "f").read_bytes() == data
    assert result.digest == f"xxh3-64:{xxhash.xxh3_64_hexdigest(data)}"
    assert (result.requests, result.retries) == (1, 0)


@BOTH
def test_broken_body_begins_anew_b7_b20(server: FaultServer, tmp_path: Path, cls: type[PlainHTTP]) -> None:
    data = os.urandom(5 * PART)
    server.put("a", data)
    server.script("a", Fault(cut=True, after=3 * PART))
    server.script("a", Fault(status=503))
    result = run_async(fetch(make_source(cls(server.url()), "a", stored=len(data)), tmp_path / "f"))
    assert (tmp_path / "f").read_bytes() == data
    assert (result.requests, result.retries) == (3, 2)


class Resumable(PlainHTTP):
    """Blocking, with blocking ranges of its own."""

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        assert length is not None
        connection, response = self.open(key, {"Range": f"bytes={offset}-{offset + length - 1}"})
        try:
            return response.read()
        finally:
            connection.close()


def test_broken_body_is_resumed_where_its_version_is_certain(server: FaultServer, tmp_path: Path) -> None:
    """A promised digest says in the end whether the pieces belong together."""
    data = os.urandom(PART - 100)
    server.put("a", data)
    server.script("a", Fault(cut=True, after=3 * PART // 4))
    digest = f"xxh3-64:{xxhash.xxh3_64_hexdigest(data)}"
    run_async(fetch(make_source(Resumable(server.url()), "a", stored=len(data), digest=digest), tmp_path / "f"))
    assert (tmp_path / "f").read_bytes() == data
    # http.client hands on all that came before the cut
    assert [request.range for request in server.requests] == [None, f"bytes={3 * PART // 4}-{len(data) - 1}"]


def test_blocking_ranges_overlap_where_a_digest_is_promised(server: FaultServer, tmp_path: Path) -> None:
    data = os.urandom(6 * PART)
    server.put("a", data)
    server.latency = 0.05
    digest = f"xxh3-64:{xxhash.xxh3_64_hexdigest(data)}"
    run_async(fetch(make_source(Resumable(server.url()), "a", stored=len(data), digest=digest), tmp_path / "f"))
    assert (tmp_path / "f").read_bytes() == data
    assert len(server.requests) == 6
    assert server.peak > 1


@pytest.mark.slow
@BOTH
def test_slow_body_that_moves_is_not_stalled_n3(server: FaultServer, tmp_path: Path, cls: type[PlainHTTP]) -> None:
    data = os.urandom(30_000)
    server.put("a", data)
    server.script("a", Fault(drip=(1500, 0.15)))
    source = make_source(cls(server.url()), "a", stored=len(data))
    result = run_async(fetch(source, tmp_path / "f", policy=quick_policy(timeout=2.5)))
    assert (tmp_path / "f").read_bytes() == data
    assert result.retries == 0


@BOTH
def test_stalled_body_is_given_up_and_tried_again_n6_j15(
    server: FaultServer, tmp_path: Path, cls: type[PlainHTTP]
) -> None:
    data = os.urandom(5 * PART)
    server.put("a", data)
    server.script("a", Fault(hang=True, after=PART))
    source = make_source(cls(server.url()), "a", stored=len(data))
    result = run_async(fetch(source, tmp_path / "f", policy=quick_policy(timeout=1.0)))
    assert (tmp_path / "f").read_bytes() == data
    assert result.retries >= 1


@BOTH
def test_store_that_never_answers_ends_in_a_timeout_n6(
    server: FaultServer, tmp_path: Path, cls: type[PlainHTTP]
) -> None:
    server.put("a", b"x")
    server.script("a", Fault(hang=True), times=None)
    with pytest.raises(StorageTimeoutError, match="'a'") as caught:
        run_async(
            fetch(
                make_source(cls(server.url()), "a", stored=1),
                tmp_path / "f",
                policy=quick_policy(timeout=0.1, max_attempts=2),
            )
        )
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.attempts == 2
    assert not any(tmp_path.iterdir())


@BOTH
def test_cancel_leaves_nothing_b8(server: FaultServer, tmp_path: Path, cls: type[PlainHTTP]) -> None:
    server.put("a", b"x" * 5 * PART)
    server.script("a", Fault(hang=True, after=PART), times=None)

    async def main() -> None:
        limiter = SimpleLimiter()
        source = make_source(cls(server.url()), "a", stored=5 * PART)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(fetch(source, tmp_path / "f", limiter=limiter))
            await limiter.until_moved(PART)
            assert (tmp_path / "f").exists()
            task.cancel()
        assert (limiter.requests, limiter.bytes) == (0, 0)

    run_async(main())
    assert not any(tmp_path.iterdir())


class Written(Downloader):
    """Writes what it is told, blocking."""

    pieces: tuple[bytes, ...] = ()
    calls = 0
    error: BaseException | None = None

    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        self.calls += 1
        for piece in self.pieces:
            fileobj.write(piece)
        if self.error is not None:
            raise self.error


class WrittenAsync(Written):
    """The same natively."""

    async def adownload_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        self.download_fileobj(key, fileobj)


HOOKS = pytest.mark.parametrize("cls", [Written, WrittenAsync])


def written(cls: type[Written], *pieces: bytes, error: BaseException | None = None) -> Written:
    made = cls("test://store")
    made.pieces, made.error = pieces, error
    return made


@HOOKS
def test_hook_that_writes_nothing_b6(tmp_path: Path, cls: type[Written]) -> None:
    downloader = written(cls)
    source = make_source(downloader, "a", decoded=10)
    with pytest.raises(IncompleteBodyError, match="0 of 10"):
        run_async(fetch(source, tmp_path / "f", policy=quick_policy(max_attempts=2)))
    assert downloader.calls == 2
    assert not any(tmp_path.iterdir())


@HOOKS
def test_longer_body_is_an_error_at_once(tmp_path: Path, cls: type[Written]) -> None:
    downloader = written(cls, b"12345", b"678901")
    with pytest.raises(SizeMismatchError, match="longer than the 10 bytes"):
        run_async(fetch(make_source(downloader, "a", stored=10), tmp_path / "f"))
    assert downloader.calls == 1


@HOOKS
def test_hook_that_hides_our_error_does_not_succeed(tmp_path: Path, cls: type[Written]) -> None:
    class Hides(cls):  # type: ignore[valid-type,misc]
        def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
            try:
                super().download_fileobj(key, fileobj)
            except SizeMismatchError as exc:
                raise RuntimeError("mine") from exc

    with pytest.raises(SizeMismatchError):
        run_async(fetch(make_source(written(Hides, b"x" * 11), "a", stored=10), tmp_path / "f"))


@HOOKS
@pytest.mark.parametrize("error", [KeyError("k"), OSError(5, "io"), FileNotFoundError("gone"), RuntimeError("x")])
def test_strangers_error_stays_itself_with_a_note_u3(tmp_path: Path, cls: type[Written], error: Exception) -> None:
    downloader = written(cls, b"1", error=error)
    with pytest.raises(type(error)) as caught:
        run_async(fetch(make_source(downloader, "k/e y", stored=10), tmp_path / "f"))
    assert caught.value is error
    assert caught.value.__notes__ == ["while reading 'k/e y' (test://store/k/e y, backend test)"]
    assert downloader.calls == 1


@HOOKS
def test_builtin_connection_error_is_tried_again_b13(tmp_path: Path, cls: type[Written]) -> None:
    downloader = written(cls, b"1", error=ConnectionResetError("cut"))
    with pytest.raises(ConnectionResetError, match="cut") as caught:
        run_async(fetch(make_source(downloader, "a", stored=1), tmp_path / "f", policy=quick_policy(max_attempts=3)))
    assert downloader.calls == 3
    assert "gave up after 3 attempts; the earlier ones:" in caught.value.__notes__


@HOOKS
def test_growing_object_waits_for_room_and_comes_whole(tmp_path: Path, cls: type[Written]) -> None:
    """Nobody knows the size; room comes late, once the hook is far ahead of it, or blocked on it."""
    mib = 1 << 20
    downloader = written(cls, *[bytes([n]) * mib for n in range(20)])

    async def main() -> list[int]:
        room, limiter = FixedRoom(8 * mib), SimpleLimiter(requests=1)
        async with asyncio.TaskGroup() as group:
            source = make_source(downloader, "a")
            task = group.create_task(
                fetch(source, tmp_path / "f", room=room, limiter=limiter, policy=quick_policy(part_size=mib))
            )
            await room.waiting.wait()
            async with limiter.slot((9,), 1):  # the only slot is free for others meanwhile
                assert (tmp_path / "f").stat().st_size <= 8 * mib
            await room.grow(24 * mib)
        assert (await task).bytes == 20 * mib
        return room.asked

    assert max(run_async(main())) == 24 * mib
    assert (tmp_path / "f").read_bytes() == b"".join(downloader.pieces)


def test_hook_that_never_returns_is_left_behind_j14(tmp_path: Path) -> None:
    release, late = threading.Event(), []

    class Stuck(Downloader):
        def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
            fileobj.write(b"12345")
            release.wait(20)
            try:
                fileobj.write(b"67890")
            except BaseException as exc:
                late.append(exc)
                raise

    async def main() -> list[str]:
        pool = DaemonPool("test-hook")
        source = make_source(Stuck("test://store"), "a", stored=10)
        with pytest.raises(StorageTimeoutError):
            await fetch(source, tmp_path / "f", pool=pool, policy=quick_policy(timeout=1.0, max_attempts=1))
        return pool.close(0.0)

    assert len(run_async(main())) == 1
    release.set()
    deadline = threading.Event()
    for _ in range(400):
        if late:
            break
        deadline.wait(0.05)
    assert "given up" in str(late[0])
    assert not any(tmp_path.iterdir())


class Files(Written):
    """A native ``adownload_file``."""

    step: Any = staticmethod(lambda: asyncio.sleep(0))

    async def adownload_file(self, key: str, path: Path) -> None:
        self.calls += 1
        with open(path, "wb") as file:  # noqa: ASYNC230 - a careless hook
            for piece in self.pieces:
                file.write(piece)
                file.flush()
                await self.step()
        if self.error is not None and self.calls == 1:
            raise self.error


def test_file_hook_is_preferred_where_bytes_need_nothing_on_the_way(tmp_path: Path) -> None:
    downloader = written(Files, b"123", b"45", error=ConnectionResetError("once"))
    assert isinstance(downloader, Files)
    result = run_async(fetch(make_source(downloader, "a", stored=5), tmp_path / "f"))
    assert (tmp_path / "f").read_bytes() == b"12345"
    assert (result.bytes, result.digest) == (5, f"xxh3-64:{xxhash.xxh3_64_hexdigest(b'12345')}")
    assert (downloader.calls, result.retries) == (2, 1)


def test_file_hook_that_passes_its_promise_is_stopped(tmp_path: Path) -> None:
    class Endless(Files):
        async def adownload_file(self, key: str, path: Path) -> None:
            with open(path, "wb") as file:  # noqa: ASYNC230 - a careless hook
                while True:
                    file.write(b"x" * 100)
                    file.flush()
                    await asyncio.sleep(0.001)

    with pytest.raises(SizeMismatchError, match="longer than the 500 bytes"):
        run_async(fetch(make_source(Endless("test://store"), "a", stored=500), tmp_path / "f"))
    assert not any(tmp_path.iterdir())


def test_file_hook_that_makes_no_file_b6(tmp_path: Path) -> None:
    class Nothing(Files):
        async def adownload_file(self, key: str, path: Path) -> None:
            path.unlink()  # noqa: ASYNC240 - a careless hook

    with pytest.raises(IncompleteBodyError):
        run_async(fetch(make_source(Nothing("test://store"), "a"), tmp_path / "f", policy=quick_policy(max_attempts=1)))


def test_file_hook_of_unknown_size_stays_within_its_room(tmp_path: Path) -> None:
    mib = 1 << 20
    stopped = asyncio.Event()

    class Fast(Files):
        async def adownload_file(self, key: str, path: Path) -> None:
            try:
                await super().adownload_file(key, path)
            except asyncio.CancelledError:
                stopped.set()
                raise

    downloader = written(Fast, *[bytes([n]) * mib for n in range(20)])
    downloader.step = lambda: asyncio.sleep(0.03)  # type: ignore[attr-defined]

    async def main() -> None:
        room = FixedRoom(16 * mib)
        async with asyncio.TaskGroup() as group:
            group.create_task(fetch(make_source(downloader, "a"), tmp_path / "f", room=room))
            await stopped.wait()
            await room.grow(64 * mib)

    run_async(main())
    assert downloader.calls == 2
    assert (tmp_path / "f").read_bytes() == b"".join(downloader.pieces)


def test_file_hook_that_is_done_does_not_wait_for_room_that_it_does_not_need(tmp_path: Path) -> None:
    """Risk A7: room for what might have come was asked for, and waited for, though the whole file had its own."""
    room = FixedRoom(8 << 20)
    downloader = written(Files, b"x" * 1000)
    downloader.step = room.waiting.wait  # type: ignore[attr-defined]
    run_async(fetch(make_source(downloader, "a"), tmp_path / "f", room=room), timeout=20)
    assert (tmp_path / "f").read_bytes() == b"x" * 1000
    assert room.asked[-1] > room.size


def test_small_objects_in_memory(server: FaultServer) -> None:
    server.put("index.json", b"{}" * 1000)
    server.script("index.json", Fault(status=503))

    async def main(max_bytes: int) -> tuple[bytes, ObjectInfo]:
        pool = DaemonPool("test-hook")
        try:
            return await read_object(
                make_source(PlainHTTP(server.url()), "index.json"),
                limiter=SimpleLimiter(),
                pool=pool,
                policy=quick_policy(),
                max_bytes=max_bytes,
            )
        finally:
            pool.close(0.0)

    data, info = run_async(main(2000))
    assert (data, info.size) == (b"{}" * 1000, 2000)
    with pytest.raises(SizeMismatchError, match="1999"):
        run_async(main(1999))


def test_stat_is_tried_again_and_explained(server: FaultServer) -> None:
    server.put("a", b"12345")
    server.script("a", Fault(status=503))

    async def main(key: str) -> ObjectInfo:
        pool = DaemonPool("test-hook")
        try:
            return await stat_object(make_source(PlainHTTP(server.url()), key), pool=pool, policy=quick_policy())
        finally:
            pool.close(0.0)

    assert run_async(main("a")).size == 5
    with pytest.raises(ObjectNotFoundError, match="backend test"):
        run_async(main("b"))
