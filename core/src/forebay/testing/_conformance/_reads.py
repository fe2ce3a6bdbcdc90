"""Whole objects through the sync hooks."""

from __future__ import annotations

import gzip
import pickle
import random
from pathlib import Path

import pytest

from forebay.downloader import Downloader
from forebay.exceptions import TransientError
from forebay.testing._conformance._store import (
    Remote,
    Sink,
    Store,
    SuiteBase,
    difference,
    secrets_of,
    sync_ways,
    told,
    written,
)

__all__ = ["ReadTests"]


class ReadTests(SuiteBase):
    """What comes back is the object, the whole object and nothing but the object."""

    def test_download_fileobj_writes_the_exact_bytes(self, store: Store, downloader: Downloader) -> None:
        data = bytes(range(256)) * 40 + b"\r\n\x00\xff"
        key = store.put("all-bytes.bin", data)
        sink = Sink()
        downloader.download_fileobj(key, sink)
        assert difference(written(sink), data) == ""

    def test_download_fileobj_needs_only_write(self, store: Store, downloader: Downloader) -> None:
        key = store.put("one.bin", b"0123456789")
        for _ in range(2):  # a retry gets a fresh file object and has to fill it from the start
            sink = Sink()
            downloader.download_fileobj(key, sink)
            assert written(sink) == b"0123456789", "a second read has to write everything again"

    def test_download_file_writes_the_exact_bytes(self, store: Store, downloader: Downloader, tmp_path: Path) -> None:
        data = random.Random(1).randbytes(70_001)
        key = store.put("one.bin", data)
        downloader.download_file(key, tmp_path / "got")
        assert difference((tmp_path / "got").read_bytes(), data) == ""

    def test_download_file_replaces_what_is_there(self, store: Store, downloader: Downloader, tmp_path: Path) -> None:
        key = store.put("short.bin", b"short")
        (tmp_path / "got").write_bytes(b"something longer than the object")
        downloader.download_file(key, tmp_path / "got")
        assert (tmp_path / "got").read_bytes() == b"short"

    def test_download_bytes_returns_the_whole_object(self, store: Store, downloader: Downloader) -> None:
        data = random.Random(2).randbytes(70_001)
        key = store.put("one.bin", data)
        got = downloader.download_bytes(key)
        assert isinstance(got, bytes)
        assert difference(got, data) == ""

    def test_empty_object_is_empty_everywhere(self, store: Store, downloader: Downloader, tmp_path: Path) -> None:
        key = store.put("empty.bin", b"")
        for name, read in sync_ways(downloader, tmp_path).items():
            assert read(key) == b"", name
        assert downloader.download_bytes(key, 0, 10) == b""
        assert downloader.stat(key).size in (0, None)

    def test_large_object_is_complete(self, store: Store, downloader: Downloader, tmp_path: Path) -> None:
        data = random.Random(3).randbytes(9 * 2**20 + 13)
        key = store.put("large.bin", data)
        for name, read in sync_ways(downloader, tmp_path).items():
            assert difference(read(key), data) == "", f"{name} changed an object of {len(data)} bytes"

    def test_bytes_are_never_decoded(self, store: Store, downloader: Downloader, tmp_path: Path) -> None:
        gzipped = gzip.compress(b"data", mtime=0)
        key = store.put("looks-packed.gz", gzipped)
        for name, read in sync_ways(downloader, tmp_path).items():
            assert read(key) == gzipped, f"{name} decoded the object's bytes"

    def test_missing_key_is_not_found(self, store: Store, downloader: Downloader, tmp_path: Path) -> None:
        store.put("there.bin", b"data")
        for name, read in sync_ways(downloader, tmp_path).items():
            with pytest.raises(FileNotFoundError) as caught:
                read(store.key("absent.bin"))
            assert not isinstance(caught.value, TransientError), f"{name}: a missing key is no transient error"

    def test_stat_of_missing_key_is_not_found(self, store: Store, downloader: Downloader) -> None:
        store.put("there.bin", b"data")
        with pytest.raises(FileNotFoundError):
            downloader.stat(store.key("absent.bin"))

    def test_error_names_the_key_and_no_secret(
        self, remote: Remote, store: Store, downloader: Downloader, tmp_path: Path
    ) -> None:
        for name, read in sync_ways(downloader, tmp_path).items():
            with pytest.raises(FileNotFoundError) as caught:
                read(store.key("absent-object.bin"))
            assert "absent-object.bin" in str(caught.value), f"{name}: the error does not name the key"
            for secret in secrets_of(remote):
                assert secret not in told(caught.value), f"{name}: the error shows a secret"

    def test_error_pickles(self, store: Store, downloader: Downloader) -> None:
        with pytest.raises(FileNotFoundError) as caught:
            downloader.download_bytes(store.key("absent.bin"))
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (type(copy), str(copy)) == (type(caught.value), str(caught.value))

    def test_error_of_the_file_object_comes_through(self, store: Store, downloader: Downloader) -> None:
        key = store.put("one.bin", b"0123456789")

        def full() -> None:
            raise OSError(28, "no space left in this test")

        with pytest.raises(OSError, match="no space left in this test") as caught:
            downloader.download_fileobj(key, Sink(full))
        assert not isinstance(caught.value, TransientError), "an error of the local file is not the store's"

    def test_replaced_object_is_read_anew(self, store: Store, downloader: Downloader, tmp_path: Path) -> None:
        key = store.put("one.bin", b"first")
        ways = sync_ways(downloader, tmp_path)
        assert {read(key) for read in ways.values()} == {b"first"}
        store.put("one.bin", b"second, longer")
        for name, read in ways.items():
            assert read(key) == b"second, longer", f"{name} gave an old version"
        assert downloader.stat(key).size in (14, None)

    def test_deleted_object_is_gone(self, store: Store, downloader: Downloader, tmp_path: Path) -> None:
        key = store.put("one.bin", b"data")
        ways = sync_ways(downloader, tmp_path)
        assert {read(key) for read in ways.values()} == {b"data"}
        store.delete(key)
        for read in ways.values():
            with pytest.raises(FileNotFoundError):
                read(key)

    def test_stat_tells_the_truth(self, store: Store, downloader: Downloader) -> None:
        key = store.put("one.bin", b"0123456789")
        info = downloader.stat(key)
        assert info.key == key
        assert info.size in (10, None)
        if info.last_modified is not None:
            assert info.last_modified.tzinfo is not None, "last_modified needs a time zone"

    def test_etag_follows_the_content(self, store: Store, downloader: Downloader) -> None:
        key = store.put("one.bin", b"0123456789")
        first = downloader.stat(key)
        if first.etag is None:
            pytest.skip("the backend shows no etag")
        assert downloader.stat(key).etag == first.etag, "the etag changes though the object does not"
        store.put("one.bin", b"another one, longer")
        assert downloader.stat(key).etag != first.etag, "the etag stays though the object changed"
