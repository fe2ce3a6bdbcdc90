"""`forebay.pack` to a store: through either upload hook, refused before the first item where there is none."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from formats.folder import read_folder
from servers.process import wait_until

import forebay
from forebay._backends.memory import STORE
from forebay.exceptions import (
    AccessDeniedError,
    DatasetError,
    ObjectNotFoundError,
    ServerError,
    UnsupportedOperationError,
)

ITEMS = [{"index": number, "data": bytes([number]) * 50} for number in range(20)]


class ReadOnly(forebay.Downloader):
    """A store of this module; cannot upload."""

    objects: ClassVar[dict[str, bytes]] = {}
    closed: ClassVar[list[str]] = []

    def download_fileobj(self, key: str, fileobj: Any) -> None:
        if key not in self.objects:
            raise ObjectNotFoundError(f"no {key}")
        fileobj.write(self.objects[key])

    def close(self) -> None:
        self.closed.append("close")


class Blocking(ReadOnly):
    """Uploads through the sync hook."""

    failures: ClassVar[list[Exception]] = []

    def upload_file(self, key: str, path: Path) -> None:
        if self.failures:
            raise self.failures.pop()
        self.objects[key] = path.read_bytes()


class Native(ReadOnly):
    """Uploads through the async hook, all in one loop."""

    loops: ClassVar[set[int]] = set()
    stuck: ClassVar[threading.Event | None] = None
    cancelled: ClassVar[list[str]] = []

    async def aupload_file(self, key: str, path: Path) -> None:
        self.loops.add(id(asyncio.get_running_loop()))
        if self.stuck is not None:
            self.stuck.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(key)
                raise
        self.objects[key] = await asyncio.to_thread(path.read_bytes)

    async def aclose(self) -> None:
        self.closed.append("aclose")


@pytest.fixture(autouse=True)
def lake() -> Iterator[None]:
    """Every test starts with empty stores; ``ro``, ``sync`` and ``native`` are their schemes."""
    for values in (ReadOnly.objects, ReadOnly.closed, Blocking.failures, Native.loops, Native.cancelled):
        values.clear()
    Native.stuck = None
    classes: dict[str, type[forebay.Downloader]] = {"ro": ReadOnly, "sync": Blocking, "native": Native}
    for scheme, cls in classes.items():
        forebay.register_downloader(scheme, cls)
    yield
    for scheme in classes:
        forebay.unregister_downloader(scheme)


def stored(objects: Mapping[str, bytes], folder: Path) -> list[Any]:
    """Read what was uploaded."""
    (folder / "copy").mkdir()
    for key, data in objects.items():
        (folder / "copy" / key).write_bytes(data)
    return read_folder(folder / "copy", folder)


def taking(taken: list[int]) -> Iterator[dict[str, Any]]:
    for item in ITEMS:
        taken.append(1)
        yield item


@pytest.mark.parametrize(("scheme", "closed"), [("sync", ["close"]), ("native", ["aclose", "close"])])
def test_either_hook_stores_a_dataset_and_is_closed(tmp_path: Path, scheme: str, closed: list[str]) -> None:
    result = forebay.pack(ITEMS, f"{scheme}://lake/data?sig=secret", chunk_bytes=300, compression="zstd")
    assert list(ReadOnly.objects)[-1] == "index.json"  # the last to appear
    assert result.chunks == len(ReadOnly.objects) - 1 == 5
    assert result.stored_bytes == sum(len(data) for key, data in ReadOnly.objects.items() if key != "index.json")
    assert stored(ReadOnly.objects, tmp_path) == ITEMS
    assert ReadOnly.closed == closed
    assert len(Native.loops) <= 1
    assert not list(Path(tempfile.gettempdir()).glob("forebay-pack-*"))


def test_a_loop_that_runs_already_is_no_hindrance(tmp_path: Path) -> None:
    async def inside() -> None:
        forebay.pack(ITEMS, "native://lake/data")

    asyncio.run(inside())
    assert stored(ReadOnly.objects, tmp_path) == ITEMS


def test_the_memory_backend_takes_a_dataset(tmp_path: Path) -> None:
    try:
        forebay.pack(ITEMS, "memory://packed/data", chunk_bytes=300)
        names = {name.rpartition("/")[2]: item.data for name, item in STORE.names("packed/data/")}
    finally:
        STORE.clear("memory://packed")
    assert stored(names, tmp_path) == ITEMS


def test_a_backend_without_upload_is_refused_before_the_first_item() -> None:
    taken: list[int] = []
    with pytest.raises(UnsupportedOperationError, match=r"cannot upload.*pack to a local directory"):
        forebay.pack(taking(taken), "ro://lake/data")
    assert not taken
    assert ReadOnly.closed == ["close"]


def test_a_dataset_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    forebay.pack(ITEMS[:3], "sync://lake/data")
    first = dict(ReadOnly.objects)
    taken: list[int] = []
    with pytest.raises(DatasetError, match="overwrite=True"):
        forebay.pack(taking(taken), "sync://lake/data")
    assert not taken
    forebay.pack(ITEMS, "sync://lake/data", overwrite=True)
    # R1: a reader of the old index still finds the old chunks, whole
    assert all(ReadOnly.objects[key] == data for key, data in first.items() if key != "index.json")
    assert stored(ReadOnly.objects, tmp_path) == ITEMS


def test_a_transient_failure_is_repeated(tmp_path: Path) -> None:
    Blocking.failures.extend([ServerError("busy"), ConnectionResetError("gone")])
    forebay.pack(ITEMS, "sync://lake/data")
    assert stored(ReadOnly.objects, tmp_path) == ITEMS


@pytest.mark.parametrize("error", [AccessDeniedError("no"), RuntimeError("theirs")])
def test_any_other_failure_is_the_callers_and_no_index_appears(error: Exception) -> None:
    Blocking.failures.append(error)
    with pytest.raises(type(error)) as caught:
        forebay.pack(ITEMS, "sync://lake/data")
    assert caught.value is error
    assert "index.json" not in ReadOnly.objects
    assert ReadOnly.closed == ["close"]
    assert not list(Path(tempfile.gettempdir()).glob("forebay-pack-*"))


def test_an_interrupt_cancels_the_upload_and_leaves_no_thread() -> None:
    """Ctrl-C while the async hook is stuck: the hook is told, the loop ends, nothing stays behind."""
    stuck = Native.stuck = threading.Event()
    here = threading.get_ident()

    def waits() -> bool:
        return sys._current_frames()[here].f_code.co_name == "wait"

    def press() -> None:
        assert stuck.wait(60)
        wait_until(waits, deadline=60, what="the caller's wait for the upload")
        signal.pthread_kill(here, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # workers of pytest ignore it
    presser = threading.Thread(target=press)
    presser.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            forebay.pack(ITEMS, "native://lake/data")
    finally:
        presser.join()
        signal.signal(signal.SIGINT, before)
    assert Native.cancelled == ["chunk-0-0.bin"]
    assert not [thread for thread in threading.enumerate() if thread.name == "forebay-pack"]
