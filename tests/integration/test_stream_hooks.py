"""Strangers' downloaders that misbehave: each is named, none takes the user's files, the dataset or the exit along."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from servers.datasets import expected_items, put_dataset

import forebay
from forebay import exceptions
from forebay.testing import FaultServer


class Folder:
    """Takes what `put_dataset` puts, and forgets it: the packed folder itself is the store."""

    def put(self, key: str, data: bytes) -> None:
        return


class Local(forebay.Downloader):
    """A store that is a folder; subclasses misbehave."""

    folder: ClassVar[Path]

    def download_fileobj(self, key: str, fileobj: Any) -> None:
        fileobj.write((self.folder / key).read_bytes())


@pytest.fixture
def register(tmp_path: Path) -> Iterator[Any]:
    put_dataset(Folder(), tmp_path)
    Local.folder = tmp_path / "dataset"

    def register(cls: type[forebay.Downloader]) -> str:
        forebay.register_downloader("odd", cls, overwrite=True)
        return "odd://store"

    yield register
    forebay.unregister_downloader("odd")


def holders(cache: Path) -> int:
    observer = forebay.ChunkCache(cache)
    try:
        return observer.info().holders
    finally:
        observer.close()


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_hook_that_links_to_an_original_is_refused_and_the_original_stays(
    register: Any, tmp_path: Path, link: Any
) -> None:
    """Risk C7: what the cache empties, evicts or removes must be its own."""
    original = tmp_path / "original.bin"
    original.write_bytes(b"precious" * 2_000_000)

    class Links(Local):
        async def adownload_file(self, key: str, path: Path) -> None:
            path.unlink(missing_ok=True)  # noqa: ASYNC240 - the hook of somebody who does not care
            link(original, path)

    with pytest.raises(exceptions.StorageError, match=r"link.*copy the bytes"):
        forebay.fetch(register(Links) + "/x.bin", cache_dir=tmp_path / "cache")
    assert original.read_bytes() == b"precious" * 2_000_000
    assert not list((tmp_path / "cache" / "chunks").rglob("*.tmp"))


class Grows(Local):
    """Writes its file by itself, slowly enough to be watched, and does not say how large it is."""

    async def adownload_file(self, key: str, path: Path) -> None:
        size = int(key.partition(".")[0])
        with open(path, "wb", buffering=0) as file:  # noqa: ASYNC230 - the hook of somebody who does not care
            for start in range(0, size, 1 << 16):
                file.write(bytes(min(1 << 16, size - start)))
                await asyncio.sleep(0.002)


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) - 1, 700_000, 1])
def test_a_file_of_unknown_size_needs_no_larger_budget_than_its_own(register: Any, tmp_path: Path, size: int) -> None:
    """Risk A7: room was asked for in steps that a small budget does not hold, though it holds the file."""
    path = forebay.fetch(register(Grows) + f"/{size}.bin", cache_dir=tmp_path / "cache", max_cache_bytes=1 << 20)
    assert path.read_bytes() == bytes(size)
    forebay.release(path)


def test_a_file_of_unknown_size_that_no_budget_holds_is_an_error(register: Any, tmp_path: Path) -> None:
    with pytest.raises(exceptions.BudgetTooSmallError):
        forebay.fetch(register(Grows) + f"/{(1 << 20) + 1}.bin", cache_dir=tmp_path / "cache", max_cache_bytes=1 << 20)
    assert not [each for each in (tmp_path / "cache" / "chunks").rglob("*") if each.is_file()]


def test_a_close_that_blocks_or_fails_keeps_nobody(
    register: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Risk A11: whoever closes goes on within seconds, and the cache is let go of."""
    monkeypatch.setattr("forebay._downloaders.CLOSE_DEADLINE", 0.3)
    end = threading.Event()

    class Stuck(Local):
        def close(self) -> None:
            end.wait(60)

        async def aclose(self) -> None:
            raise RuntimeError("no goodbye")

    begin = time.monotonic()
    with forebay.open_dataset(register(Stuck), cache_dir=tmp_path / "cache") as ds:
        assert list(ds) == expected_items()
    assert time.monotonic() - begin < 20
    assert holders(tmp_path / "cache") == 0
    assert "no goodbye" in caplog.text
    assert "abandoned" in caplog.text
    end.set()


def test_a_hook_that_blocks_the_loop_is_told_with_its_place(
    register: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Risk A2: one blocking async hook stops every reader; none of them waits for ever."""
    monkeypatch.setattr("forebay._prefetch._io.STUCK_AFTER", 0.5)
    end = threading.Event()

    class Blocks(Local):
        async def adownload_fileobj(self, key: str, fileobj: Any) -> None:
            if key != "index.json":
                end.wait(30)
            self.download_fileobj(key, fileobj)

    with forebay.open_dataset(register(Blocks), cache_dir=tmp_path / "cache") as ds:
        with pytest.raises(exceptions.WorkerCrashedError, match=r"blocks it, at .*threading"):
            ds[0]
        end.set()
        assert ds[0] == expected_items()[0]


def test_an_iterator_that_crossed_a_fork_says_so_and_touches_no_lease(tmp_path: Path) -> None:
    code = """
import os, sys
import forebay
from forebay.exceptions import PrefetchClosedError
options = {"driver": "fsspec"}  # obstore's runtime does not cross a fork, which the child would be told
ds = forebay.open_dataset(sys.argv[1], cache_dir=sys.argv[2], max_cache_bytes="1MiB", options=options)
iterator = iter(ds)
next(iterator)
pid = os.fork()
if pid == 0:
    try:
        for _ in iterator:
            pass
    except PrefetchClosedError as error:
        assert "fork" in str(error)
        del iterator
        assert len(list(ds)) == 40
        os._exit(0)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert len(list(iterator)) == 39
"""
    with FaultServer() as server:
        put_dataset(server, tmp_path / "served")
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, server.url(), tmp_path / "cache"],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (0, "")
