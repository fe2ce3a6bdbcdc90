"""A sound backend, and one backend for each test of the conformance suite that has exactly that bug.

Not collected by itself: ``test_conformance_suite.py`` runs pytest on this file and looks at what failed.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, unquote

import pytest

from forebay import register_downloader, unregister_downloader
from forebay.downloader import Downloader, SupportsWrite
from forebay.exceptions import (
    ConnectionFailedError,
    InvalidRangeError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
)
from forebay.testing import DownloaderConformance
from forebay.types import Capabilities, ObjectInfo, RangeRead

SECRET = "hush-hush-1"
OPTIONS: Mapping[str, type] = {"password": str, "headers": dict, "labels": object}
STORE: dict[str, bytes] = {}


class Sound(Downloader):
    """Every hook there is, over a dictionary."""

    option_types: ClassVar[Mapping[str, type] | None] = OPTIONS

    def _get(self, key: str) -> bytes:
        if key not in STORE:
            raise ObjectNotFoundError(f"no object {key!r}", key=key)
        return STORE[key]

    def _slice(self, key: str, offset: int, length: int | None) -> bytes:
        data = self._get(key)
        if offset < 0 or (length is not None and length < 0):
            raise InvalidRangeError(f"negative range of {key!r}")
        if length == 0:
            return b""
        if offset and offset >= len(data):
            raise InvalidRangeError(f"{key!r} ends before byte {offset}")
        return data[offset:] if length is None else data[offset : offset + length]

    def _info(self, key: str) -> ObjectInfo:
        data = self._get(key)
        return ObjectInfo(key, size=len(data), etag=f'"{hash(data)}"')

    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        fileobj.write(self._get(key))

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._slice(key, offset, length)

    def stat(self, key: str) -> ObjectInfo:
        return self._info(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return iter([self._info(key) for key in sorted(STORE) if key.startswith(prefix)])

    def upload_file(self, key: str, path: Path) -> None:
        STORE[key] = path.read_bytes()

    async def adownload_file(self, key: str, path: Path) -> None:
        await asyncio.to_thread(path.write_bytes, self._get(key))

    async def adownload_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        data = memoryview(self._get(key))
        for begin in range(0, len(data), 2**20):
            fileobj.write(data[begin : begin + 2**20])
            await asyncio.sleep(0)

    async def adownload_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        await asyncio.sleep(0)
        return self._slice(key, offset, length)

    async def aread_range(self, key: str, offset: int, length: int, *, if_match: str | None = None) -> RangeRead:
        info = self._info(key)
        if if_match not in (None, info.etag):
            raise ObjectChangedError(f"{key!r} changed", key=key)
        return RangeRead(data=self._slice(key, offset, length), info=info)

    async def astat(self, key: str) -> ObjectInfo:
        return self._info(key)

    async def aupload_file(self, key: str, path: Path) -> None:
        self.upload_file(key, path)


class SyncOnly(Downloader):
    """The least that a backend can be."""

    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        if key not in STORE:
            raise FileNotFoundError(f"no object {key!r}")
        fileobj.write(STORE[key])


# Whole objects.


class TranslatesNewlines(Sound):
    bug_in = "test_download_fileobj_writes_the_exact_bytes"

    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        fileobj.write(self._get(key).replace(b"\r\n", b"\n"))


class ResumesByItself(Sound):
    bug_in = "test_download_fileobj_needs_only_write"

    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        seen: set[str] = self.__dict__.setdefault("seen", set())
        if key not in seen:
            seen.add(key)
            fileobj.write(self._get(key))


class LosesTheTail(Sound):
    bug_in = "test_download_file_writes_the_exact_bytes"

    def download_file(self, key: str, path: Path) -> None:
        data = self._get(key)
        path.write_bytes(data[: len(data) // 4096 * 4096 or None])


class WritesInPlace(Sound):
    bug_in = "test_download_file_replaces_what_is_there"

    def download_file(self, key: str, path: Path) -> None:
        path.touch()
        with open(path, "r+b") as file:
            file.write(self._get(key))


class ReturnsAnotherType(Sound):
    bug_in = "test_download_bytes_returns_the_whole_object"

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> Any:
        return bytearray(self._slice(key, offset, length))


class TakesEmptyForMissing(Sound):
    bug_in = "test_empty_object_is_empty_everywhere"

    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        fileobj.write(self._get(key) or self._get(key + "!"))


class StopsAtEightMiB(Sound):
    bug_in = "test_large_object_is_complete"

    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        fileobj.write(self._get(key)[: 2**23])


class Unzips(Sound):
    bug_in = "test_bytes_are_never_decoded"

    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        data = self._get(key)
        fileobj.write(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)


class MissingIsEmpty(Sound):
    bug_in = "test_missing_key_is_not_found"

    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        fileobj.write(STORE.get(key, b""))


class StatsTheMissing(Sound):
    bug_in = "test_stat_of_missing_key_is_not_found"

    def stat(self, key: str) -> ObjectInfo:
        return self._info(key) if key in STORE else ObjectInfo(key, size=0)


class TellsSecrets(Sound):
    bug_in = "test_error_names_the_key_and_no_secret"

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        if key not in STORE:
            raise ObjectNotFoundError(f"GET {self.root}/{key} with {self.options['headers']}: 404")
        return super().download_bytes(key, offset, length)


class TwoPartError(FileNotFoundError):
    def __init__(self, bucket: str, key: str) -> None:
        super().__init__(f"{bucket}/{key}")


class RaisesWhatDoesNotPickle(Sound):
    bug_in = "test_error_pickles"

    def _get(self, key: str) -> bytes:
        if key not in STORE:
            raise TwoPartError("bucket", key)
        return STORE[key]


class BlamesTheNetwork(Sound):
    bug_in = "test_error_of_the_file_object_comes_through"

    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        data = self._get(key)
        try:
            fileobj.write(data)
        except OSError as error:
            raise ConnectionFailedError(f"the body of {key!r} broke: {error}") from error


class RemembersObjects(Sound):
    bug_in = "test_replaced_object_is_read_anew"

    def _get(self, key: str) -> bytes:
        memory: dict[str, bytes] = self.__dict__.setdefault("memory", {})
        return memory.setdefault(key, super()._get(key))


class RemembersTheDeleted(Sound):
    bug_in = "test_deleted_object_is_gone"

    def _get(self, key: str) -> bytes:
        memory: dict[str, bytes] = self.__dict__.setdefault("memory", {})
        memory.update({key: STORE[key]} if key in STORE else {})
        return memory.get(key) or super()._get(key)


class CountsBlocks(Sound):
    bug_in = "test_stat_tells_the_truth"

    def stat(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, size=-(-len(self._get(key)) // 512) * 512)


class TagsAtRandom(Sound):
    bug_in = "test_etag_follows_the_content"

    def stat(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, size=len(self._get(key)), etag=f'"{uuid.uuid4()}"')


# Ranges.


class TakesLengthForEnd(Sound):
    bug_in = "test_range_is_the_exact_slice"

    def _slice(self, key: str, offset: int, length: int | None) -> bytes:
        return super()._slice(key, offset, length if length is None else max(length - offset, 0))


class ReadsOneBlockWithoutLength(Sound):
    bug_in = "test_range_without_length_goes_to_the_end"

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._slice(key, offset, 32 if offset and length is None else length)


class RefusesToCut(Sound):
    bug_in = "test_range_past_the_end_is_cut"

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        if length is not None and offset + length > len(self._get(key)) > offset:
            raise InvalidRangeError(f"{key!r} is shorter")
        return self._slice(key, offset, length)


class TakesZeroForAll(Sound):
    bug_in = "test_range_of_length_zero_is_empty"

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._slice(key, offset, length or None)


class EmptyPastTheEnd(Sound):
    bug_in = "test_range_that_starts_at_or_past_the_end_is_an_error"

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        return b"" if offset >= len(self._get(key)) else self._slice(key, offset, length)


class SlicesLikePython(Sound):
    bug_in = "test_negative_range_is_an_error"

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._get(key)[offset:] if offset < 0 else self._slice(key, offset, length)


class RangeOfNothing(Sound):
    bug_in = "test_range_of_a_missing_key_is_not_found"

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        if key not in STORE and offset:
            raise InvalidRangeError(f"no bytes at {offset}")
        return self._slice(key, offset, length)


# Keys.


class DecodesKeys(Sound):
    bug_in = "test_key_is_taken_literally"

    def _get(self, key: str) -> bytes:
        return super()._get(unquote(key))


class CutsKeysAtTheFragment(Sound):
    bug_in = "test_key_is_taken_literally"

    def _get(self, key: str) -> bytes:
        return super()._get(key.partition("#")[0])


class KnowsOneRoot(Sound):
    bug_in = "test_object_is_found_by_its_own_url"

    def _get(self, key: str) -> bytes:
        return super()._get(key if self.root.partition("://")[2].count("/") else f"{self.root}/{key}")


class CollapsesSlashes(Sound):
    bug_in = "test_key_is_taken_literally"

    def _get(self, key: str) -> bytes:
        return super()._get(key.replace("//", "/"))


class FollowsDots(Sound):
    bug_in = "test_key_cannot_leave_the_root"

    def _get(self, key: str) -> bytes:
        return Path(os.path.normpath("/base/" + key)).read_bytes() if ".." in key else super()._get(key)


class ListsOneLevel(Sound):
    bug_in = "test_list_is_complete_and_recursive"

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for info in super().list(prefix):
            if "/" not in info.key[len(prefix) :]:
                yield info


class ListsFolders(Sound):
    bug_in = "test_list_takes_the_prefix_as_text"

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return super().list(prefix.rstrip("/") + "/")


class ListsFromMemory(Sound):
    bug_in = "test_list_shows_changes_at_once"

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        memory: dict[str, list[ObjectInfo]] = self.__dict__.setdefault("memory", {})
        return iter(memory.setdefault(prefix, [*super().list(prefix)]))


class ListsEncodedKeys(Sound):
    bug_in = "test_listed_keys_can_be_read"

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for info in super().list(prefix):
            yield ObjectInfo(quote(info.key), size=info.size)


class CannotList(Sound):
    bug_in = "test_list_says_when_it_cannot"

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        raise NotImplementedError


# Async hooks.


class SkipsNulBytes(Sound):
    bug_in = "test_async_hooks_give_the_exact_bytes"

    async def adownload_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        fileobj.write(self._get(key).rstrip(b"\xff"))


class AsyncStopsAtEightMiB(Sound):
    bug_in = "test_async_large_object_is_complete"

    async def adownload_file(self, key: str, path: Path) -> None:
        await asyncio.to_thread(path.write_bytes, self._get(key)[: 2**23])


class AsyncTakesLengthForEnd(Sound):
    bug_in = "test_async_ranges_are_exact"

    async def adownload_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._get(key)[offset:length]


class IgnoresTheVersion(Sound):
    bug_in = "test_range_read_pins_the_version"

    async def aread_range(self, key: str, offset: int, length: int, *, if_match: str | None = None) -> RangeRead:
        return await super().aread_range(key, offset, length)


class AsyncMissingIsEmpty(Sound):
    bug_in = "test_async_missing_key_is_not_found"

    async def adownload_file(self, key: str, path: Path) -> None:
        await asyncio.to_thread(path.write_bytes, STORE.get(key, b""))


class AstatKnowsLess(Sound):
    bug_in = "test_astat_agrees_with_stat"

    async def astat(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, size=len(self._get(key)))


class SharesAVariable(Sound):
    bug_in = "test_gathered_reads_do_not_mix"

    async def adownload_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        self.current = key
        await asyncio.sleep(0)
        return self._slice(self.current, offset, length)


class BreaksForAll(Sound):
    bug_in = "test_one_failed_read_leaves_the_others_alone"
    broken = False

    async def adownload_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        self.broken = self.broken or key not in STORE
        await asyncio.sleep(0)
        if self.broken:
            raise ObjectNotFoundError(f"no object {key!r}")
        return self._slice(key, offset, length)


class TranslatesCancellation(Sound):
    bug_in = "test_cancelled_read_says_so_and_leaves_it_usable"

    async def adownload_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        try:
            await super().adownload_fileobj(key, fileobj)
        except asyncio.CancelledError as error:
            raise StorageError(f"the read of {key!r} broke") from error


class LeavesATask(Sound):
    bug_in = "test_cancelled_read_says_so_and_leaves_it_usable"

    async def adownload_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        self.task = asyncio.create_task(asyncio.Event().wait())
        return await super().adownload_bytes(key, offset, length)


class KeepsItsLoop(Sound):
    bug_in = "test_second_event_loop_works_like_the_first"
    loop: asyncio.AbstractEventLoop | None = None

    async def adownload_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        self.loop = self.loop or asyncio.get_running_loop()
        if self.loop is not asyncio.get_running_loop():
            raise RuntimeError("attached to a different loop")
        return self._slice(key, offset, length)


# Threads and life.


class SharesAFile(Sound):
    bug_in = "test_threads_do_not_mix"
    pause = threading.Event

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        self.file = io.BytesIO(self._get(key))
        SharesAFile.pause().wait(0.001)
        self._slice(key, offset, length)
        self.file.seek(offset)
        return self.file.read(-1 if length is None else length)


class StartsALoop(Sound):
    bug_in = "test_sync_hooks_work_inside_a_running_loop"

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        coro = self.adownload_bytes(key, offset, length)
        try:
            return asyncio.run(coro)
        finally:
            coro.close()


class HoldsALock(Sound):
    bug_in = "test_pickles_after_use"

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        self.lock = threading.Lock()
        return self._slice(key, offset, length)


class ClosesForAll(Sound):
    bug_in = "test_two_downloaders_share_nothing"
    closed = False

    def __init__(self, root: str, options: Mapping[str, object] | None = None) -> None:
        super().__init__(root, options)
        ClosesForAll.closed = False

    def _get(self, key: str) -> bytes:
        if self.closed:
            raise RuntimeError("the client was closed")
        return super()._get(key)

    def close(self) -> None:
        ClosesForAll.closed = True


class ChangesOptions(Sound):
    bug_in = "test_options_stay_as_they_were_given"

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        labels = self.options["labels"]
        assert isinstance(labels, list)
        labels.append("signed")
        return self._slice(key, offset, length)


class TakesAnyOption(Sound):
    bug_in = "test_unknown_option_is_refused"
    option_types: ClassVar[Mapping[str, type] | None] = {**OPTIONS, "no_such_option": object}


class ClosesWhatWasNeverMade(Sound):
    bug_in = "test_close_works_without_and_after_use"

    def close(self) -> None:
        self.__dict__["client"].close()


class ShowsOptions(Sound):
    bug_in = "test_repr_is_one_line_without_secrets"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self.options)})"


class PromisesAnything(Sound):
    bug_in = "test_probe_tells_what_works"

    @classmethod
    def probe_driver(cls, options: Mapping[str, object]) -> Capabilities:
        return Capabilities(native_async=True, driver="")


# Uploads.


class UploadsText(Sound):
    bug_in = "test_upload_can_be_read_by_another"

    def upload_file(self, key: str, path: Path) -> None:
        STORE[key] = path.read_text(errors="ignore").encode()


class AppendsUploads(Sound):
    bug_in = "test_upload_replaces_the_object"

    def upload_file(self, key: str, path: Path) -> None:
        STORE[key] = path.read_bytes() + STORE.get(key, b"")


class ForgetsAsyncUploads(Sound):
    bug_in = "test_async_upload_can_be_read"

    async def aupload_file(self, key: str, path: Path) -> None:
        await asyncio.sleep(0)


class CannotUpload(Sound):
    bug_in = "test_upload_says_when_it_cannot"

    def upload_file(self, key: str, path: Path) -> None:
        raise NotImplementedError


class PlantedRemote:
    url = f"planted://store/root?sig={SECRET}"

    def __init__(self) -> None:
        self.options = {"password": SECRET, "headers": {"X-Key": SECRET}, "labels": ["a"]}

    def put(self, key: str, data: bytes) -> None:
        STORE[key] = data

    def delete(self, key: str) -> None:
        STORE.pop(key, None)

    def object_url(self, key: str) -> str:
        return f"planted://store/{key}"  # this store has the same objects under every root


def suite_for(cls: type[Downloader]) -> type[DownloaderConformance]:
    class Suite(DownloaderConformance):
        @pytest.fixture
        def remote(self) -> Iterator[PlantedRemote]:
            register_downloader("planted", cls, overwrite=True)
            yield PlantedRemote()
            unregister_downloader("planted")
            STORE.clear()

    return Suite


BUGS = [cls for cls in Sound.__subclasses__() if hasattr(cls, "bug_in")]
TestSound = suite_for(Sound)
TestSyncOnly = suite_for(SyncOnly)
for bug in BUGS:
    globals()[f"Test{bug.__name__}"] = suite_for(bug)


class TestWithoutRemote(DownloaderConformance):
    """Forgot the one thing that it has to bring."""


class TestKnownGap(DownloaderConformance):
    known_gaps: ClassVar[Mapping[str, str]] = {"test_pickles_after_use": "this store lives in one process"}

    @pytest.fixture
    def remote(self) -> Iterator[PlantedRemote]:
        register_downloader("planted", HoldsALock, overwrite=True)
        yield PlantedRemote()
        unregister_downloader("planted")
