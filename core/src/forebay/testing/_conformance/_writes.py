"""``upload_file``, where the backend has it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from forebay import open_downloader
from forebay.downloader import Downloader
from forebay.exceptions import UnsupportedOperationError
from forebay.testing._async import run_async
from forebay.testing._conformance._store import Remote, Store, SuiteBase, difference, native_hooks

__all__ = ["WriteTests"]


class WriteTests(SuiteBase):
    """An upload can be read at once, by anybody; a backend without it says so."""

    def test_upload_can_be_read_by_another(
        self, remote: Remote, store: Store, downloader: Downloader, tmp_path: Path
    ) -> None:
        _needs_upload(store, downloader, tmp_path)
        other = open_downloader(remote.url, options=remote.options)
        try:
            for name, data in (("up.bin", random.Random(6).randbytes(3 * 2**20 + 1)), ("empty.bin", b"")):
                (tmp_path / "source").write_bytes(data)
                key = store.key(name)
                downloader.upload_file(key, tmp_path / "source")
                store.adopt(key)
                assert difference(other.download_bytes(key), data) == "", name
                assert difference((tmp_path / "source").read_bytes(), data) == "", "an upload leaves its source alone"
        finally:
            other.close()

    def test_upload_replaces_the_object(self, store: Store, downloader: Downloader, tmp_path: Path) -> None:
        _needs_upload(store, downloader, tmp_path)
        key = store.put("one.bin", b"something longer than what comes")
        (tmp_path / "source").write_bytes(b"short")
        downloader.upload_file(key, tmp_path / "source")
        assert downloader.download_bytes(key) == b"short"

    def test_async_upload_can_be_read(self, store: Store, downloader: Downloader, tmp_path: Path) -> None:
        if "aupload_file" not in native_hooks(downloader):
            pytest.skip("no native aupload_file")
        (tmp_path / "source").write_bytes(b"0123456789")
        key = store.key("up.bin")

        async def main() -> None:
            try:
                await downloader.aupload_file(key, tmp_path / "source")
            finally:
                await downloader.aclose()

        try:
            run_async(main())
        except UnsupportedOperationError as error:
            pytest.skip(f"the backend cannot upload: {error}")
        store.adopt(key)
        assert downloader.download_bytes(key) == b"0123456789"

    def test_upload_says_when_it_cannot(self, store: Store, downloader: Downloader, tmp_path: Path) -> None:
        if _uploads(store, downloader, tmp_path):
            pytest.skip("the backend uploads")


def _uploads(store: Store, downloader: Downloader, folder: Path) -> bool:
    (folder / "first").write_bytes(b"data")
    try:
        downloader.upload_file(store.key("first.bin"), folder / "first")
    except UnsupportedOperationError:
        return False
    store.adopt(store.key("first.bin"))
    return True


def _needs_upload(store: Store, downloader: Downloader, folder: Path) -> None:
    if not _uploads(store, downloader, folder):
        pytest.skip("the backend cannot upload")
