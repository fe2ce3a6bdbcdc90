"""The two built-in backends: local files and memory."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest

import forebay
from forebay._backends.memory import STORE
from forebay.downloader import Downloader
from forebay.exceptions import (
    AccessDeniedError,
    InvalidRangeError,
    ObjectChangedError,
    ObjectNotFoundError,
    UnsupportedOperationError,
)
from forebay.testing import run_async


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.bin").write_bytes(b"0123456789")
    (folder / "empty").write_bytes(b"")
    (folder / "sub" / "b.bin").write_bytes(b"b")
    return folder


@pytest.fixture
def files(root: Path) -> Downloader:
    return forebay.open_downloader(root)  # a path object works as well


def test_bare_path_and_file_url_are_one_root(tmp_path: Path) -> None:
    odd = tmp_path / "odd %20#?"
    odd.mkdir()
    (odd / "x%20y#1").write_bytes(b"data")
    for root in (str(odd), odd.as_uri(), str(odd) + "/"):
        assert forebay.open_downloader(root).download_bytes("x%20y#1") == b"data"


def test_root_of_the_file_system_is_a_root(root: Path) -> None:
    key = str(root / "a.bin").lstrip("/")
    for text in ("/", "file:///"):
        assert forebay.open_downloader(text).download_bytes(key, 2, 3) == b"234"


def test_relative_root_stays_where_it_was(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    opened = forebay.open_downloader("root")
    monkeypatch.chdir("/")
    assert opened.download_bytes("a.bin") == b"0123456789"


def test_file_ranges(files: Downloader) -> None:
    assert files.download_bytes("a.bin", 3, 4) == b"3456"
    assert files.download_bytes("a.bin", 8, 100) == b"89"
    assert files.download_bytes("a.bin", 4) == b"456789"
    assert files.download_bytes("a.bin", 4, 0) == b""
    assert files.download_bytes("empty") == files.download_bytes("empty", 0, 5) == b""
    for key, offset in (("a.bin", 10), ("a.bin", 11), ("empty", 1)):
        with pytest.raises(InvalidRangeError):
            files.download_bytes(key, offset, 1)


@pytest.mark.parametrize(
    "key", ["../root/a.bin", "/no/such/folder/a.bin", "sub/../a.bin", "./a.bin", "sub//b.bin", "sub/", "a\0b"]
)
def test_t4_o6_key_that_a_path_would_normalise_is_refused(files: Downloader, key: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"evil")
    for call in (files.download_bytes, files.stat, lambda key: files.upload_file(key, source)):
        with pytest.raises(UnsupportedOperationError, match="names no file") as caught:
            call(key)
        assert caught.value.key == key
    assert {info.key for info in files.list(key)} <= {"sub/b.bin"}


def test_missing_files_folders_and_strange_nodes(files: Downloader, root: Path) -> None:
    for key in ("absent", "absent/x", "a.bin/x", "sub"):
        with pytest.raises(ObjectNotFoundError, match=key):
            files.download_bytes(key)
    os.mkfifo(root / "pipe")
    with pytest.raises(UnsupportedOperationError, match="no regular file"):
        files.download_fileobj("pipe", io.BytesIO())
    with pytest.raises(ObjectNotFoundError, match="absent"):
        list(forebay.open_downloader(str(root / "absent")).list())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_access_denied(files: Downloader, root: Path) -> None:
    (root / "a.bin").chmod(0)
    with pytest.raises(AccessDeniedError, match=r"a\.bin"):
        files.download_bytes("a.bin")


def test_file_list_follows_links_without_going_round(files: Downloader, root: Path, tmp_path: Path) -> None:
    (root / "sub" / "loop").symlink_to(root)
    (root / "dangling").symlink_to(root / "nowhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "c.bin").write_bytes(b"cc")
    (root / "link").symlink_to(tmp_path / "elsewhere")
    assert {info.key: info.size for info in files.list()} == {"a.bin": 10, "empty": 0, "sub/b.bin": 1, "link/c.bin": 2}
    assert [info.key for info in files.list("su")] == ["sub/b.bin"]
    assert [info.key for info in files.list("sub/b")] == ["sub/b.bin"]
    assert list(files.list("a.bin/")) == list(files.list("absent/x")) == []


def test_b8_failed_upload_leaves_nothing_and_the_old_object(
    files: Downloader, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"new")

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            files.upload_file("a.bin", source)
    assert sorted(path.name for path in root.iterdir()) == ["a.bin", "empty", "sub"]
    assert (root / "a.bin").read_bytes() == b"0123456789"
    files.upload_file("a.bin", source)
    files.upload_file("new/deep/x", source)
    assert (root / "a.bin").read_bytes() == (root / "new/deep/x").read_bytes() == b"new"


def test_b1_reader_never_sees_half_an_upload(files: Downloader, root: Path, tmp_path: Path) -> None:
    bodies = {letter * (3 << 20) for letter in (b"x", b"y")}
    sources = [tmp_path / f"source{n}" for n in range(2)]
    for source, body in zip(sources, bodies, strict=True):
        source.write_bytes(body)
    files.upload_file("big", sources[0])
    done = threading.Event()
    seen: set[bytes] = set()

    def read() -> None:
        while not done.is_set():
            seen.add(files.download_bytes("big"))

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(12):
        files.upload_file("big", sources[n % 2])
    done.set()
    reader.join(30)
    assert seen <= bodies
    assert seen


def test_o10_file_and_folder_of_one_name_cannot_be(files: Downloader, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    for key in ("a.bin/x", "sub"):
        with pytest.raises(UnsupportedOperationError, match="one name"):
            files.upload_file(key, source)
    with pytest.raises(FileNotFoundError):
        files.upload_file("x", tmp_path / "absent")


def test_r5_file_etag_is_weak_and_moves(files: Downloader, root: Path, tmp_path: Path) -> None:
    before = files.stat("a.bin")
    source = tmp_path / "source"
    source.write_bytes(b"9876543210")
    files.upload_file("a.bin", source)
    after = files.stat("a.bin")
    assert before.etag is not None
    assert before.etag.startswith('W/"')
    assert after.size == before.size
    assert after.etag != before.etag


@pytest.mark.parametrize("key", ["a#1", "a#2", "a?b", "a%20b", "/a", "//a", "a/", "a/b", "A", "a", "ä", "a\u0308"])
def test_o1_to_o10_memory_takes_every_key_literally(key: str) -> None:
    root = "memory://literal"
    keys = ["a#1", "a#2", "a?b", "a%20b", "/a", "//a", "a/", "a/b", "A", "a", "ä", "a\u0308"]
    for each in keys:
        STORE.put(f"{root}/{each}", each.encode())
    opened = forebay.open_downloader(root)
    assert opened.download_bytes(key) == key.encode()
    assert {info.key for info in opened.list()} == set(keys)
    assert {info.key for info in opened.list(key)} == {each for each in keys if each.startswith(key)}
    STORE.clear(root)


def test_memory_ranges_etags_and_upload(tmp_path: Path) -> None:
    opened = forebay.open_downloader("memory://ranges/p/")
    (tmp_path / "x").write_bytes(b"0123456789")
    run_async(opened.aupload_file("k", tmp_path / "x"))
    info = opened.stat("k")
    assert info.size == 10
    assert STORE.get("memory://ranges/p/k") is not None
    part = run_async(opened.aread_range("k", 8, 5, if_match=info.etag))  # type: ignore[attr-defined]
    assert (bytes(part.data), part.info) == (b"89", info)
    STORE.put("memory://ranges/p/k", b"9876543210")  # R5: the same size
    with pytest.raises(ObjectChangedError):
        run_async(opened.aread_range("k", 0, 5, if_match=info.etag))  # type: ignore[attr-defined]
    with pytest.raises(InvalidRangeError):
        opened.download_bytes("k", 10, 1)
    STORE.delete("memory://ranges/p/k")
    for call in (opened.download_bytes, opened.stat, lambda key: STORE.delete(f"memory://ranges/p/{key}")):
        with pytest.raises(ObjectNotFoundError, match="memory"):
            call("k")


def test_built_in_capabilities(files: Downloader) -> None:
    local, memory = forebay.probe(files), forebay.probe(forebay.open_downloader("memory://x"))
    assert (local.native_async, local.ranges, local.stat, local.list, local.driver) == (False, True, True, True, "os")
    assert (memory.native_async, memory.ranges, memory.stat, memory.list) == (True, True, True, True)
