"""fsspec's file systems as stores: options, archives, the cache, the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import pytest
from servers.datasets import ITEMS, expected_items, put_dataset
from servers.ftp import Ftp
from servers.moto import Moto
from servers.sftp import Sftp

import forebay
from forebay.downloader import probe
from forebay.exceptions import (
    InvalidURLError,
    ObjectNotFoundError,
    SizeMismatchError,
    UnknownSchemeError,
    UnsupportedOperationError,
)
from forebay.testing import FaultServer


def archive(path: Path, **objects: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, data in objects.items():
            file.writestr(f"inner/{name}", data)
    return path


def test_bare_protocol_is_told_how_it_is_read() -> None:
    """S4, S6: never taken for a local path, and the bridge is at hand."""
    with pytest.raises(UnknownSchemeError, match=r"fsspec\+sftp://"):
        forebay.open_downloader("sftp://host/folder")


def test_archive_is_a_store_through_its_options(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", one=b"0123456789", other=b"x")
    one = forebay.open_downloader("fsspec+zip://inner", options={"fo": str(path)})
    try:
        assert sorted(info.key for info in one.list()) == ["one", "other"]
        assert one.download_bytes("one", 3, 4) == b"3456"
        assert one.stat("one").size == 10
        with pytest.raises(ObjectNotFoundError):
            one.stat("absent")
    finally:
        one.close()


def test_archive_on_a_web_server_is_a_store(tmp_path: Path) -> None:
    """A chain of fsspec's: its own options say what lies under the archive."""
    path = archive(tmp_path / "a.zip", one=b"0123456789")
    with FaultServer() as server:
        server.put("a.zip", path.read_bytes())
        options = {"fo": server.url("a.zip"), "target_protocol": "http"}
        one = forebay.open_downloader("fsspec+zip://inner", options=options)
        try:
            assert one.download_bytes("one", 3, 4) == b"3456"
        finally:
            one.close()
            fsspec.filesystem("http").clear_instance_cache()


@pytest.mark.usefixtures("cache")
def test_same_url_with_other_options_is_another_object(tmp_path: Path) -> None:
    """O: two archives, or two hosts behind one URL, never share a cached file."""
    paths = [archive(tmp_path / f"{name}.zip", one=name.encode() * 10) for name in "ab"]
    for path in (*paths, *paths):
        local = forebay.fetch("fsspec+zip://inner/one", options={"fo": str(path)}, revalidate=False)
        assert local.read_bytes() == path.stem.encode() * 10
        forebay.release(local)


def test_options_of_the_engine_are_not_handed_on(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", one=b"0123456789")
    engine = {"timeout": 5, "part_size": "1MiB", "max_attempts": 2, "max_concurrency": 3, "connect_timeout": 1}
    for options in (
        {"fo": str(path)},
        {"storage_options": {"fo": str(path)}},
        {"storage_options": json.dumps({"fo": str(path)})},
    ):
        one = forebay.open_downloader("fsspec+zip://inner", options={**options, **engine})
        try:
            assert one.download_bytes("one") == b"0123456789"
            assert one.options["part_size"] == 1 << 20
        finally:
            one.close()


def test_probe_tells_async_file_systems_from_others() -> None:
    for url, native in (("fsspec+http://127.0.0.1:1", True), ("fsspec+memory://x", False), ("fsspec+dir://x", False)):
        one = forebay.open_downloader(url)
        said = probe(one)
        assert (said.driver, said.native_async) == ("fsspec", native), url
        assert said.reason
        one.close()


def test_web_server_cannot_list(tmp_path: Path) -> None:
    one = forebay.open_downloader("fsspec+http://127.0.0.1:1")
    with pytest.raises(UnsupportedOperationError):
        list(one.list())
    one.close()


def test_stores_own_file_system_through_the_bridge(moto: Moto) -> None:
    """Options in fsspec's words; size, etag and bytes come in one request a part."""
    moto.put("bridge/key.bin", bytes(range(256)) * 100)
    options = {
        "key": moto.key,
        "secret": moto.secret,
        "endpoint_url": moto.endpoint,
        "client_kwargs": {"region_name": moto.REGION},
    }
    one = forebay.open_downloader(f"fsspec+{moto.url}/bridge", options=options)
    try:
        assert one.download_bytes("key.bin", 256, 3) == b"\x00\x01\x02"
        assert [info.key for info in one.list()] == ["key.bin"]
        assert one.stat("key.bin").size == 25600
        with pytest.raises(ObjectNotFoundError):
            one.stat("absent")
    finally:
        one.close()


class Folder:
    """Objects in fsspec's memory, for `put_dataset`."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def put(self, key: str, data: bytes) -> None:
        fsspec.filesystem("memory").pipe_file(f"{self.folder}/{key}", data)


@pytest.mark.usefixtures("cache")
def test_dataset_is_read_through_the_bridge(ftp: Ftp, sftp: Sftp, tmp_path: Path) -> None:
    put_dataset(Folder("/bridge/dataset"), tmp_path / "one")
    with forebay.open_dataset("fsspec+memory://bridge/dataset") as ds:
        assert list(ds) == expected_items()
        assert ds[ITEMS - 1] == expected_items()[-1]
    put_dataset(ftp, tmp_path / "two")
    with forebay.open_dataset(f"fsspec+{ftp.url}", options={"encoding": "utf-8"}) as ds:
        assert list(ds) == expected_items()
    put_dataset(sftp, tmp_path / "three")
    with forebay.open_dataset(f"fsspec+{sftp.url}") as ds:
        assert list(ds) == expected_items()


@pytest.fixture
def run(tmp_path: Path) -> Any:
    keep = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "forebay", *arguments],
            cwd=tmp_path,
            env=keep | {"FOREBAY_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def served(ftp: Ftp) -> Ftp:
    ftp.put("cli/one.bin", b"0123456789")
    ftp.put("cli/two/three.bin", b"x" * 1000)
    return ftp


def test_command_line_lists_and_fetches(run: Any, served: Ftp) -> None:
    listed = run("ls", f"fsspec+{served.url}/cli", "-O", "encoding=utf-8", "--json")
    assert listed.returncode == 0, listed.stderr
    told = json.loads(listed.stdout)
    assert {entry["key"]: entry["size"] for entry in told["objects"]} == {"one.bin": 10, "two/three.bin": 1000}
    fetched = run("fetch", f"fsspec+{served.url}/cli/one.bin", "-o", "-")
    assert (fetched.returncode, fetched.stdout) == (0, "0123456789"), fetched.stderr
    absent = run("fetch", f"fsspec+{served.url}/cli/absent.bin")
    assert absent.returncode == 1
    assert "absent.bin" in absent.stderr
    for done in (listed, fetched, absent):
        assert served.PASSWORD not in done.stdout + done.stderr


def test_command_line_says_what_to_install(run: Any) -> None:
    done = run("ls", "fsspec+memry://x")
    assert done.returncode == 1
    assert "did you mean 'memory'" in done.stderr
    assert "fsspec+*" in run("plugins").stdout


def test_body_longer_than_the_file_said_is_no_object(tmp_path: Path) -> None:
    """B: a file that grows while it is read is refused, not cut."""
    target = tmp_path / "growing.bin"
    target.write_bytes(b"0123456789")
    one = forebay.open_downloader(f"fsspec+file://{tmp_path}")

    class Growing:
        def write(self, data: bytes | bytearray | memoryview, /) -> int:
            target.write_bytes(b"another, longer content")
            return len(data)

    with pytest.raises((SizeMismatchError, forebay.exceptions.ObjectChangedError)):
        one.download_fileobj("growing.bin", Growing())
    one.close()


def test_alias_names_the_protocol(ftp: Ftp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of the company's own for a server behind a protocol of fsspec's."""
    ftp.put("alias/key.bin", b"0123456789")
    config = tmp_path / "forebay.toml"
    settings = {"backend": "fsspec+ftp", "username": ftp.USER, "password": ftp.PASSWORD, "encoding": "utf-8"}
    config.write_text("[scheme.nas]\n" + "\n".join(f'{name} = "{value}"' for name, value in settings.items()))
    monkeypatch.setenv("FOREBAY_CONFIG", str(config))
    one = forebay.open_downloader(f"nas://127.0.0.1:{ftp.port}/alias")
    try:
        assert one.download_bytes("key.bin", 3, 2) == b"34"
        assert [info.key for info in one.list()] == ["key.bin"]
    finally:
        one.close()
    config.write_text('[scheme.nas]\nbackend = "fsspec"\n')
    with pytest.raises(InvalidURLError, match="many schemes"):
        forebay.open_downloader("nas://host/alias")
