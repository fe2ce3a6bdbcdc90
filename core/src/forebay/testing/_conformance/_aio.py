"""The optional async hooks give what the sync ones give, and behave in an event loop."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from forebay.downloader import Downloader, SupportsRangeRead
from forebay.exceptions import InvalidRangeError, ObjectChangedError, TransientError
from forebay.testing._async import run_async
from forebay.testing._conformance._store import (
    Remote,
    Sink,
    Store,
    SuiteBase,
    async_ways,
    difference,
    native_hooks,
    secrets_of,
    told,
)

__all__ = ["AsyncTests"]

DATA = bytes(range(100))


class AsyncTests(SuiteBase):
    """Skipped, visibly, where a backend has only sync hooks."""

    def test_async_hooks_give_the_exact_bytes(self, store: Store, downloader: Downloader, tmp_path: Path) -> None:
        objects = {
            store.put("empty.bin", b""): b"",
            store.put("all-bytes.bin", bytes(range(256)) * 40): bytes(range(256)) * 40,
            store.put("a b%20.bin", b"right"): b"right",
        }

        async def main() -> None:
            for name, read in async_ways(downloader, tmp_path).items():
                for key, data in objects.items():
                    assert difference(await read(key), data) == "", f"{name} of {key}"
            await downloader.aclose()

        run_async(main())

    def test_async_large_object_is_complete(self, store: Store, downloader: Downloader, tmp_path: Path) -> None:
        native_hooks(downloader)
        data = random.Random(4).randbytes(9 * 2**20 + 13)
        key = store.put("large.bin", data)

        async def main() -> None:
            for name, read in async_ways(downloader, tmp_path).items():
                assert difference(await read(key), data) == "", name
            await downloader.aclose()

        run_async(main())

    def test_async_ranges_are_exact(self, store: Store, downloader: Downloader) -> None:
        if "adownload_bytes" not in native_hooks(downloader):
            pytest.skip("no native adownload_bytes")
        key = store.put("one.bin", DATA)
        empty = store.put("empty.bin", b"")

        async def main() -> None:
            for offset, length in ((0, 1), (10, 25), (99, 1), (60, None), (90, 500), (10, 0)):
                stop = None if length is None else offset + length
                assert await downloader.adownload_bytes(key, offset, length) == DATA[offset:stop], (offset, length)
            assert await downloader.adownload_bytes(empty, 0, 10) == b""
            for offset, length in ((100, 5), (5000, 5), (-1, 5), (0, -5)):
                with pytest.raises(InvalidRangeError):
                    await downloader.adownload_bytes(key, offset, length)
            await downloader.aclose()

        run_async(main())

    def test_range_read_pins_the_version(self, store: Store, downloader: Downloader) -> None:
        if not isinstance(downloader, SupportsRangeRead):
            pytest.skip("no aread_range")
        key = store.put("one.bin", DATA)
        ranged: SupportsRangeRead = downloader

        async def main() -> None:
            first = await ranged.aread_range(key, 10, 20)
            assert bytes(first.data) == DATA[10:30]
            assert (first.info.key, first.info.size) == (key, 100), "info tells of the whole object"
            assert bytes((await ranged.aread_range(key, 90, 500)).data) == DATA[90:]
            with pytest.raises(InvalidRangeError):
                await ranged.aread_range(key, 100, 5)
            etag = first.info.etag
            if etag is not None and not etag.startswith("W/"):
                again = await ranged.aread_range(key, 0, 5, if_match=etag)
                assert (bytes(again.data), again.info.etag) == (DATA[:5], etag)
                store.put("one.bin", DATA[::-1] + b"changed")
                with pytest.raises(ObjectChangedError):
                    await ranged.aread_range(key, 0, 5, if_match=etag)
            await downloader.aclose()

        run_async(main())

    def test_async_missing_key_is_not_found(
        self, remote: Remote, store: Store, downloader: Downloader, tmp_path: Path
    ) -> None:
        store.put("there.bin", b"data")

        async def main() -> None:
            for name, read in async_ways(downloader, tmp_path).items():
                with pytest.raises(FileNotFoundError) as caught:
                    await read(store.key("absent-object.bin"))
                assert not isinstance(caught.value, TransientError), name
                assert "absent-object.bin" in str(caught.value), f"{name}: the error does not name the key"
                for secret in secrets_of(remote):
                    assert secret not in told(caught.value), f"{name}: the error shows a secret"
            await downloader.aclose()

        run_async(main())

    def test_astat_agrees_with_stat(self, store: Store, downloader: Downloader) -> None:
        if "astat" not in native_hooks(downloader):
            pytest.skip("no native astat")
        key = store.put("one.bin", b"0123456789")

        async def main() -> None:
            info = await downloader.astat(key)
            assert (info.key, info.size) == (key, 10) or info.size is None
            with pytest.raises(FileNotFoundError):
                await downloader.astat(store.key("absent.bin"))
            await downloader.aclose()
            assert info == downloader.stat(key)

        run_async(main())

    def test_gathered_reads_do_not_mix(self, store: Store, downloader: Downloader, tmp_path: Path) -> None:
        native_hooks(downloader)
        objects = {store.put(f"{n}.bin", (data := random.Random(n).randbytes(5000 + n))): data for n in range(16)}

        async def main() -> None:
            for name, read in async_ways(downloader, tmp_path).items():
                keys = [*objects, *objects]
                got = await asyncio.gather(*(read(key) for key in keys))
                assert [key for key, data in zip(keys, got, strict=True) if data != objects[key]] == [], name
            await downloader.aclose()

        run_async(main())

    def test_one_failed_read_leaves_the_others_alone(
        self, store: Store, downloader: Downloader, tmp_path: Path
    ) -> None:
        native_hooks(downloader)
        keys = [store.put(f"{n}.bin", b"data") for n in range(6)]
        keys.insert(3, store.key("absent.bin"))

        async def main() -> None:
            for name, read in async_ways(downloader, tmp_path).items():
                got = await asyncio.gather(*(read(key) for key in keys), return_exceptions=True)
                assert isinstance(got.pop(3), FileNotFoundError), name
                assert got == [b"data"] * 6, name
            await downloader.aclose()

        run_async(main())

    def test_cancelled_read_says_so_and_leaves_it_usable(
        self, store: Store, downloader: Downloader, tmp_path: Path
    ) -> None:
        native_hooks(downloader)
        data = random.Random(5).randbytes(4 * 2**20)
        key = store.put("large.bin", data)

        async def main() -> None:
            loop = asyncio.get_running_loop()
            for name, read in async_ways(downloader, tmp_path).items():
                for turns in (1, 2, 5):
                    task = asyncio.create_task(read(key))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    (outcome,) = await asyncio.gather(task, return_exceptions=True)
                    finished = outcome == data  # it may have been done before the cancellation came
                    assert finished or isinstance(outcome, asyncio.CancelledError), f"{name}: {outcome!r}"
                assert difference(await read(key), data) == "", f"{name} after a cancelled read"
            if "adownload_fileobj" in native_hooks(downloader):
                running: list[asyncio.Task[None]] = []
                sink = Sink(lambda: loop.call_soon_threadsafe(running[0].cancel))
                running.append(asyncio.create_task(downloader.adownload_fileobj(key, sink)))
                (fate,) = await asyncio.gather(*running, return_exceptions=True)
                assert fate is None or isinstance(fate, asyncio.CancelledError), f"cancelled mid-body: {fate!r}"
            await downloader.aclose()

        run_async(main())

    def test_second_event_loop_works_like_the_first(self, store: Store, downloader: Downloader, tmp_path: Path) -> None:
        native_hooks(downloader)
        key = store.put("one.bin", DATA)

        async def main() -> None:
            for name, read in async_ways(downloader, tmp_path).items():
                assert await read(key) == DATA, name
            await downloader.aclose()

        run_async(main())
        run_async(main())
