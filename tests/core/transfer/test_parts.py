"""Ranged parts of one object over real HTTP: order, versions, retries, ends that do not fit."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest
import xxhash
from servers.transfer_kit import FixedRoom, PlainHTTP, RangeHTTP, SimpleLimiter, fetch, make_source, quick_policy

from forebay._transfer import DaemonPool
from forebay.exceptions import (
    ChecksumMismatchError,
    IncompleteBodyError,
    ObjectChangedError,
    ObjectNotFoundError,
    SizeMismatchError,
    StorageError,
    ThrottledError,
)
from forebay.testing import Fault, FaultServer, Gate, run_async
from forebay.types import ObjectInfo, RangeRead

PART = 64 * 1024


def digest(data: bytes) -> str:
    return f"xxh3-64:{xxhash.xxh3_64_hexdigest(data)}"


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 5 * PART, 5 * PART + 17])
def test_every_size_comes_back_exactly_q1_q8(server: FaultServer, tmp_path: Path, size: int, known: bool) -> None:
    data = os.urandom(size)
    server.put("a", data)
    result = run_async(fetch(make_source(RangeHTTP(server.url()), "a", stored=size if known else None), tmp_path / "f"))
    assert (tmp_path / "f").read_bytes() == data
    assert (result.bytes, result.stored_bytes, result.digest) == (size, size, digest(data))
    if size:
        assert result.etag == server.etag("a")


def test_parts_overlap_and_later_ones_are_pinned_r4(server: FaultServer, tmp_path: Path) -> None:
    data = os.urandom(12 * PART)
    server.put("a", data)
    gate = Gate()
    server.script("a", Fault(gate=gate), times=4)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            source = make_source(RangeHTTP(server.url()), "a", stored=len(data))
            group.create_task(fetch(source, tmp_path / "f", policy=quick_policy(parallel_parts=4)))
            await asyncio.to_thread(server.wait_for_requests, 4)
            assert server.peak == 4
            gate.open()

    run_async(main())
    assert (tmp_path / "f").read_bytes() == data
    pinned = [request.headers.get("if-match") for request in server.requests]
    assert pinned[:4] == [None] * 4
    assert pinned[4:] == [server.etag("a")] * 8


@pytest.mark.parametrize("after", [1, 3, 6])
def test_object_replaced_between_parts_is_an_error_never_a_mixture_r4(
    server: FaultServer, tmp_path: Path, after: int
) -> None:
    server.put("a", b"1" * 10 * PART)
    server.swap("a", b"2" * 10 * PART, after=after)
    source = make_source(RangeHTTP(server.url()), "a", stored=10 * PART)
    with pytest.raises(ObjectChangedError, match="backend test"):
        run_async(fetch(source, tmp_path / "f", policy=quick_policy(parallel_parts=2)))
    assert not any(tmp_path.iterdir())


def test_standalone_object_is_read_once_more_when_it_changes_r4(server: FaultServer, tmp_path: Path) -> None:
    server.put("a", b"1" * 10 * PART)
    server.swap("a", b"2" * 9 * PART, after=3)
    source = make_source(RangeHTTP(server.url()), "a", standalone=True)
    result = run_async(fetch(source, tmp_path / "f", policy=quick_policy(parallel_parts=2)))
    assert (tmp_path / "f").read_bytes() == b"2" * 9 * PART
    assert result.etag == server.etag("a")


@pytest.mark.parametrize("etag", ["", 'W/"1"'])
def test_without_strong_validator_one_connection_brings_the_whole_r5(
    server: FaultServer, tmp_path: Path, etag: str
) -> None:
    server.put("a", b"1" * 10 * PART, etag=etag)
    source = make_source(RangeHTTP(server.url()), "a", stored=10 * PART)
    run_async(fetch(source, tmp_path / "f", policy=quick_policy(parallel_parts=1)))
    assert (tmp_path / "f").read_bytes() == b"1" * 10 * PART
    assert [request.range is None for request in server.requests] == [False, True]


def test_promised_digest_makes_parts_safe_without_validator_r5(server: FaultServer, tmp_path: Path) -> None:
    server.put("a", b"1" * 10 * PART, etag="")
    source = make_source(RangeHTTP(server.url()), "a", stored=10 * PART, digest=digest(b"1" * 10 * PART))
    run_async(fetch(source, tmp_path / "f"))
    assert len(server.requests) == 10


def test_only_the_failed_part_is_asked_again_n4(server: FaultServer, tmp_path: Path) -> None:
    data = os.urandom(6 * PART)
    server.put("a", data)
    server.script("a", Fault(cut=True, after=1000), skip=2)
    result = run_async(fetch(make_source(RangeHTTP(server.url()), "a", stored=len(data)), tmp_path / "f"))
    assert (tmp_path / "f").read_bytes() == data
    assert (result.requests, result.retries) == (7, 1)


def test_five_times_503_then_ok_n1(server: FaultServer, tmp_path: Path) -> None:
    server.put("a", b"x" * 100)
    server.script("a", Fault(status=503), times=5)

    async def main() -> SimpleLimiter:
        limiter = SimpleLimiter()
        await fetch(make_source(RangeHTTP(server.url()), "a", stored=100), tmp_path / "f", limiter=limiter)
        return limiter

    assert run_async(main()).throttles == 5
    assert (tmp_path / "f").read_bytes() == b"x" * 100


def test_last_error_is_the_first_class_with_its_history_u3(server: FaultServer, tmp_path: Path) -> None:
    server.put("a", b"x" * 100)
    server.script("a", Fault(status=503), times=None)
    with pytest.raises(ThrottledError) as caught:
        run_async(
            fetch(
                make_source(RangeHTTP(server.url()), "a", stored=100),
                tmp_path / "f",
                policy=quick_policy(max_attempts=3),
            )
        )
    error = caught.value
    assert (error.attempts, error.key, error.backend, error.status) == (3, "a", "test", 503)
    assert "'a'" in str(error)
    assert "backend test" in str(error)
    assert len([note for note in error.__notes__ if "503 for a" in note]) == 2
    assert len(server.requests) == 3


def test_missing_object_is_not_tried_again_n9(server: FaultServer, tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match="'a'"):
        run_async(fetch(make_source(RangeHTTP(server.url()), "a", stored=10 * PART), tmp_path / "f"))
    assert not any(tmp_path.iterdir())


def test_body_longer_or_shorter_than_promised_p10(server: FaultServer, tmp_path: Path) -> None:
    server.put("a", b"x" * 100)
    for promised in (99, 101):
        with pytest.raises(SizeMismatchError, match="100 bytes"):
            run_async(fetch(make_source(RangeHTTP(server.url()), "a", stored=promised), tmp_path / "f"))
    assert len(server.requests) == 2


class ShortRanges(RangeHTTP):
    """Answers with fewer bytes than asked, and does not say so."""

    async def aread_range(self, key: str, offset: int, length: int, *, if_match: str | None = None) -> RangeRead:
        got = await super().aread_range(key, offset, length, if_match=if_match)
        return RangeRead(data=memoryview(got.data)[:-1], info=ObjectInfo(key))


def test_short_answer_is_noticed_whatever_the_hook_says_b12(server: FaultServer, tmp_path: Path) -> None:
    server.put("a", b"x" * 3 * PART)
    source = make_source(ShortRanges(server.url()), "a", stored=3 * PART)
    with pytest.raises(IncompleteBodyError):
        run_async(fetch(source, tmp_path / "f", policy=quick_policy(max_attempts=2)))


def test_damaged_bytes_are_fetched_once_more_n5_b11(server: FaultServer, tmp_path: Path) -> None:
    data = os.urandom(3 * PART)
    server.put("a", data)
    server.script("a", Fault(corrupt_at=10))
    source = make_source(RangeHTTP(server.url()), "a", stored=len(data), digest=digest(data))
    run_async(fetch(source, tmp_path / "f"))
    assert (tmp_path / "f").read_bytes() == data


def test_wrong_digest_names_both_after_one_more_try_b11(server: FaultServer, tmp_path: Path) -> None:
    server.put("a", b"x" * 3 * PART)
    source = make_source(RangeHTTP(server.url()), "a", stored=3 * PART, digest=digest(b"y"))
    with pytest.raises(ChecksumMismatchError) as caught:
        run_async(fetch(source, tmp_path / "f"))
    assert caught.value.expected == digest(b"y")
    assert caught.value.actual == digest(b"x" * 3 * PART)
    assert len(server.requests) == 6
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_other_digests_are_checked_too(server: FaultServer, tmp_path: Path, algorithm: str) -> None:
    import hashlib

    server.put("a", b"x" * PART * 2)
    good = f"{algorithm}:{hashlib.new(algorithm, b'x' * PART * 2).hexdigest()}"
    run_async(fetch(make_source(RangeHTTP(server.url()), "a", stored=2 * PART, digest=good), tmp_path / "f"))
    bad = make_source(RangeHTTP(server.url()), "a", stored=2 * PART, digest=f"{algorithm}:00")
    with pytest.raises(ChecksumMismatchError):
        run_async(fetch(bad, tmp_path / "g"))


def test_cancel_in_the_middle_leaves_nothing_b8_j14(server: FaultServer, tmp_path: Path) -> None:
    server.put("a", b"x" * 8 * PART)
    server.script("a", Fault(hang=True, after=10), times=None, skip=2)

    async def main() -> float:
        pool = DaemonPool("test-hook")
        limiter = SimpleLimiter()
        source = make_source(HangingRanges(server.url()), "a", stored=8 * PART)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(fetch(source, tmp_path / "f", limiter=limiter, pool=pool))
            await asyncio.to_thread(server.wait_for_requests, 8)
            begin = asyncio.get_running_loop().time()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.shield(asyncio.gather(task))
            took = asyncio.get_running_loop().time() - begin
        pool.close(0.0)
        assert (limiter.requests, limiter.bytes) == (0, 0)
        return took

    assert run_async(main()) < 10.0  # a read hangs for a minute
    assert not any(tmp_path.iterdir())


class HangingRanges(RangeHTTP):
    """Reads in threads that nobody waits for."""

    async def aread_range(self, key: str, offset: int, length: int, *, if_match: str | None = None) -> RangeRead:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[RangeRead] = loop.create_future()

        def read() -> None:
            try:
                got = self._read(key, offset, length, if_match)
            except StorageError:
                return  # the server's end cuts what hangs
            loop.call_soon_threadsafe(future.set_result, got)

        threading.Thread(target=read, daemon=True).start()
        return await future


def test_siblings_end_before_the_error_leaves_a13(tmp_path: Path) -> None:
    all_run = asyncio.Event()

    class OneBad(RangeHTTP):
        running = 0

        async def aread_range(self, key: str, offset: int, length: int, *, if_match: str | None = None) -> RangeRead:
            if offset == 3 * PART:
                await all_run.wait()
                raise ValueError("the fourth")
            OneBad.running += 1
            if OneBad.running == 5:
                all_run.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.01)  # a clean-up that takes a moment
                OneBad.running -= 1
            raise AssertionError("unreachable")

    with pytest.raises(ValueError, match="the fourth") as caught:
        run_async(fetch(make_source(OneBad("http://127.0.0.1:1"), "a", stored=6 * PART), tmp_path / "f"))
    assert OneBad.running == 0
    assert caught.value.__notes__ == ["while reading 'a' (test://store/a, backend test)"]
    assert not any(tmp_path.iterdir())


def test_bytes_in_flight_stay_within_the_bound_k3(server: FaultServer, tmp_path: Path) -> None:
    """Two objects with a bound of three parts: no deadlock, and never more in flight."""
    data = {key: os.urandom(9 * PART + 5) for key in "ab"}
    for key, body in data.items():
        server.put(key, body)

    async def main() -> SimpleLimiter:
        limiter = SimpleLimiter(requests=8, max_bytes=3 * PART)
        async with asyncio.TaskGroup() as group:
            for key, body in data.items():
                source = make_source(RangeHTTP(server.url()), key, stored=len(body))
                group.create_task(fetch(source, tmp_path / key, limiter=limiter))
        return limiter

    limiter = run_async(main())
    assert limiter.most_bytes <= 3 * PART
    assert (limiter.requests, limiter.bytes) == (0, 0)
    for key, body in data.items():
        assert (tmp_path / key).read_bytes() == body


def test_fetched_but_unused_part_counts_as_in_flight(server: FaultServer, tmp_path: Path) -> None:
    """The first part hangs back; those behind it are here, and still hold their slots, so nothing more is asked for."""
    data = os.urandom(8 * PART)
    server.put("a", data)
    gate = Gate()
    server.script("a", Fault(gate=gate), times=1)

    async def main() -> None:
        limiter = SimpleLimiter(max_bytes=3 * PART)
        async with asyncio.TaskGroup() as group:
            source = make_source(RangeHTTP(server.url()), "a", stored=len(data))
            group.create_task(fetch(source, tmp_path / "f", limiter=limiter))
            await limiter.until_moved(2 * PART)
            assert limiter.bytes == 3 * PART
            assert len(server.requests) == 3
            gate.open()

    run_async(main())
    assert (tmp_path / "f").read_bytes() == data


def test_waiting_for_room_of_unknown_size_gives_slots_up(server: FaultServer, tmp_path: Path) -> None:
    """An object whose size nobody knew waits for room; meanwhile another can use the only slot."""
    server.put("big", b"b" * 4 * PART)
    server.put("small", b"s" * PART)

    async def main() -> None:
        limiter, room = SimpleLimiter(requests=1), FixedRoom(PART)
        downloader = RangeHTTP(server.url())
        async with asyncio.TaskGroup() as group:
            group.create_task(fetch(make_source(downloader, "big"), tmp_path / "big", limiter=limiter, room=room))
            await room.waiting.wait()
            await fetch(make_source(downloader, "small", stored=PART), tmp_path / "small", limiter=limiter)
            await room.grow(4 * PART)

    run_async(main())
    assert (tmp_path / "big").read_bytes() == b"b" * 4 * PART


def test_existing_file_is_never_touched_b14(server: FaultServer, tmp_path: Path) -> None:
    server.put("a", b"x" * 100)
    (tmp_path / "f").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        run_async(fetch(make_source(RangeHTTP(server.url()), "a", stored=100), tmp_path / "f"))
    assert (tmp_path / "f").read_bytes() == b"mine"


def test_room_error_passes_as_it_is(server: FaultServer, tmp_path: Path) -> None:
    class Refused(TimeoutError):
        pass

    class NoRoom(FixedRoom):
        async def ensure(self, total: int) -> None:
            raise Refused("none")

    async def main(stored: int | None) -> None:
        await fetch(make_source(RangeHTTP(server.url()), "a", stored=stored), tmp_path / "f", room=NoRoom())

    server.put("a", b"x" * 100)
    for stored in (100, None):
        with pytest.raises(Refused) as caught:
            run_async(main(stored))
        assert not hasattr(caught.value, "__notes__")
    assert len(server.requests) == 1
    assert not any(tmp_path.iterdir())


class Slow(RangeHTTP):
    """A call that takes a while and shows nothing of it."""

    async def aread_range(self, key: str, offset: int, length: int, *, if_match: str | None = None) -> RangeRead:
        await asyncio.sleep(1.5)
        return await super().aread_range(key, offset, length, if_match=if_match)


class SlowAndSure(Slow):
    detects_stalls = True


@pytest.mark.slow
def test_slow_part_gets_more_time_with_each_try_n3(server: FaultServer, tmp_path: Path) -> None:
    """From outside a slow range and a stalled one look alike; patience doubles, a driver that watches gets far more."""
    server.put("a", b"x" * 100)
    policy = quick_policy(timeout=0.4)
    slow = run_async(fetch(make_source(Slow(server.url()), "a", stored=100), tmp_path / "f", policy=policy))
    assert slow.retries >= 2
    policy = quick_policy(timeout=1.2)  # shorter than the answer takes, and four times that is far longer
    sure = run_async(fetch(make_source(SlowAndSure(server.url()), "a", stored=100), tmp_path / "g", policy=policy))
    assert sure.retries == 0


class Bytes(PlainHTTP):
    """Gives nothing but the bytes of a range, and tells a version of the object when it is asked for it."""

    versions: tuple[str, ...] = ("7",)

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        connection, response = self.open(key, {"Range": f"bytes={offset}-{offset + (length or 0) - 1}"})
        try:
            return response.read()
        finally:
            connection.close()

    def stat(self, key: str) -> ObjectInfo:
        self.versions, version = self.versions[1:] or self.versions, self.versions[0]
        return ObjectInfo(key, size=4 * PART, version=version)


def test_parts_of_a_versioned_object_end_although_no_range_names_the_version_r4(
    server: FaultServer, tmp_path: Path
) -> None:
    """The first part was asked for again and again, for ever: no validator could be sent with it."""
    data = os.urandom(4 * PART)
    server.put("a", data, etag="")
    run_async(fetch(make_source(Bytes(server.url()), "a", stored=len(data)), tmp_path / "f"), timeout=20)
    assert (tmp_path / "f").read_bytes() == data
    assert len(server.requests) == 4


def test_a_versioned_object_that_changes_while_bytes_alone_are_read_is_an_error_r4(
    server: FaultServer, tmp_path: Path
) -> None:
    server.put("a", b"x" * 4 * PART, etag="")
    changing = Bytes(server.url())
    changing.versions = ("7", "8")
    with pytest.raises(ObjectChangedError, match="7 became 8"):
        run_async(fetch(make_source(changing, "a", stored=4 * PART), tmp_path / "f"), timeout=20)
    assert not any(tmp_path.iterdir())


class Forgetful(RangeHTTP):
    """Names the version with the first range only, and no etag."""

    async def aread_range(self, key: str, offset: int, length: int, *, if_match: str | None = None) -> RangeRead:
        got = await super().aread_range(key, offset, length, if_match=if_match)
        return RangeRead(data=got.data, info=ObjectInfo(key, got.info.size, version=None if offset else "7"))


def test_a_part_of_no_version_is_an_error_where_others_have_one_r4(server: FaultServer, tmp_path: Path) -> None:
    """It was asked for again and again, for ever; and to take it would be to mix what may be two objects."""
    server.put("a", b"x" * 4 * PART)
    source = make_source(Forgetful(server.url()), "a", stored=4 * PART)
    with pytest.raises(StorageError, match="without the version"):
        run_async(fetch(source, tmp_path / "f", policy=quick_policy(parallel_parts=1)), timeout=20)
    assert not any(tmp_path.iterdir())
    assert len(server.requests) == 2
