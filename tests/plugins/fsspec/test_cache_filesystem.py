"""fsspec's users read through the cache: ``forebay://URL``, and ``forebay::URL`` over a file system of fsspec's."""

from __future__ import annotations

import gc
import pickle
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from servers.moto import Moto

import forebay
from forebay.exceptions import (
    AccessDeniedError,
    ConfigError,
    ForebayError,
    ObjectNotFoundError,
    ThrottledError,
    UnknownSchemeError,
    UnsupportedOperationError,
)
from forebay.testing import Fault, FaultServer, run_async
from forebay_fsspec import ForebayFileSystem

pytestmark = pytest.mark.usefixtures("cache")

DATA = bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def fresh_instances() -> Iterator[None]:
    """fsspec keeps file systems for ever; a test's own end with it."""
    yield
    ForebayFileSystem.clear_instance_cache()


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        running.put("key.bin", DATA)
        yield running


@pytest.fixture
def memory() -> Iterator[Any]:
    fs = fsspec.filesystem("memory")
    fs.pipe({"/pond/a.bin": b"aaaa", "/pond/b.csv": b"x,y\n1,2\n", "/pond/deep/er/c.csv": b"x\n3\n"})
    yield fs
    fs.rm("/pond", recursive=True)


def leases(cache: Path) -> int:
    if not cache.exists():
        return 0
    observer = forebay.ChunkCache(cache)
    try:
        return observer.info().leases
    finally:
        observer.close()


def test_object_is_fetched_once_and_read_from_the_cache(server: FaultServer, cache: Path) -> None:
    for _ in range(3):
        with fsspec.open(f"forebay://{server.url('key.bin')}") as file:
            assert file.read() == DATA
            assert file.size == len(DATA)
    assert len(server.requests_for("key.bin", "GET")) == 1
    assert leases(cache) == 0


def test_file_seeks_and_reads_ranges(server: FaultServer) -> None:
    with fsspec.open(f"forebay://{server.url('key.bin')}") as file:
        assert file.seekable()
        assert file.readable()
        assert not file.writable()
        assert file.seek(-3, 2) == len(DATA) - 3
        assert file.read() == DATA[-3:]
        assert file.seek(1000) == 1000
        assert file.tell() == 1000
        assert file.read(7) == DATA[1000:1007]
        assert file.read(0) == b""
        target = bytearray(5)
        assert file.readinto(target) == 5
        assert bytes(target) == DATA[1007:1012]
    fs, path = fsspec.url_to_fs(f"forebay://{server.url('key.bin')}")
    assert fs.cat_file(path, 10, 20) == DATA[10:20]
    assert fs.cat_file(path, -5) == DATA[-5:]
    assert fs.cat_ranges([path, path], [0, 5], [2, 9]) == [DATA[:2], DATA[5:9]]
    assert fs.head(path, 4) == DATA[:4]


def test_lease_is_held_while_the_file_is_open_and_no_longer(server: FaultServer, cache: Path) -> None:
    url = f"forebay://{server.url('key.bin')}"
    fs, path = fsspec.url_to_fs(url)
    first, second = fs.open(path), fs.open(path)
    assert leases(cache) == 2
    first.close()
    first.close()
    assert leases(cache) == 1, "closing twice lets go once"
    assert second.read() == DATA, "the other one still holds it"
    second.close()
    assert leases(cache) == 0
    forgotten = fs.open(path)
    assert forgotten.read(1) == DATA[:1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Python's own word for it
        del forgotten
        gc.collect()
    assert leases(cache) == 0


def test_text_and_compression_are_fsspecs_own(memory: Any) -> None:
    import gzip

    memory.pipe_file("/pond/t.txt.gz", gzip.compress("z\u00e4hlt\n".encode()))
    url = "forebay://fsspec+memory://pond/t.txt.gz"
    with fsspec.open(url, "rt", compression="infer", encoding="utf-8") as file:
        assert file.read() == "z\u00e4hlt\n"
    with fsspec.open(url, "rb") as file:
        assert file.read(2) == b"\x1f\x8b", "the bytes are as they are stored"


@pytest.mark.parametrize(
    ("url", "base"),
    [("forebay://fsspec+memory://pond", "fsspec+memory://pond"), ("forebay::memory://pond", "/pond")],
    ids=["direct", "chained"],
)
def test_names_and_folders(memory: Any, url: str, base: str) -> None:
    fs, path = fsspec.url_to_fs(url)
    assert isinstance(fs, ForebayFileSystem)
    assert path == base
    assert fs.ls(path, detail=False) == [f"{base}/a.bin", f"{base}/b.csv", f"{base}/deep"]
    assert [entry["type"] for entry in fs.ls(path)] == ["file", "file", "directory"]
    assert fs.find(path) == [f"{base}/a.bin", f"{base}/b.csv", f"{base}/deep/er/c.csv"]
    assert fs.glob(f"{base}/*.csv") == [f"{base}/b.csv"]
    assert fs.glob(f"{base}/**/*.csv") == [f"{base}/b.csv", f"{base}/deep/er/c.csv"]
    assert fs.info(f"{base}/a.bin")["size"] == 4
    assert fs.info(f"{base}/a.bin")["type"] == "file"
    assert fs.info(f"{base}/deep")["type"] == "directory"
    assert (fs.isfile(f"{base}/a.bin"), fs.isdir(f"{base}/a.bin")) == (True, False)
    assert (fs.isfile(f"{base}/deep"), fs.isdir(f"{base}/deep")) == (False, True)
    assert fs.exists(f"{base}/a.bin")
    assert not fs.exists(f"{base}/absent")
    assert not fs.exists(f"{base}/a.bi")
    assert fs.size(f"{base}/b.csv") == 8
    assert fs.modified(f"{base}/a.bin").tzinfo is not None
    assert fs.cat(fs.glob(f"{base}/*.csv")) == {f"{base}/b.csv": b"x,y\n1,2\n"}
    assert fs.du(path) == 16
    with pytest.raises(FileNotFoundError):
        fs.ls(f"{base}/absent")


def test_several_files_open_together(memory: Any) -> None:
    """What pandas and dask do with a pattern."""
    files = fsspec.open_files("forebay://fsspec+memory://pond/**/*.csv", mode="rt")
    with files as opened:
        assert [file.read() for file in opened] == ["x,y\n1,2\n", "x\n3\n"]


def test_local_files_are_read_where_they_lie(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a%20b.bin").write_bytes(b"as it is")
    for url in (f"forebay://{tmp_path}/data/a%20b.bin", f"forebay::file://{tmp_path}/data/a%20b.bin"):
        with fsspec.open(url) as file:
            assert file.read() == b"as it is"
    fs, path = fsspec.url_to_fs(f"forebay://{tmp_path}/data")
    assert fs.ls(path, detail=False) == [f"{tmp_path}/data/a%20b.bin"]
    assert not cache.exists(), "there is nothing to copy"


def test_chained_options_are_ours_where_we_have_a_word_for_them(moto: Moto) -> None:
    moto.put("chained/key.bin", DATA)
    s3 = {
        "key": moto.key,
        "secret": moto.secret,
        "endpoint_url": moto.endpoint,
        "client_kwargs": {"region_name": moto.REGION},
    }
    with fsspec.open(f"forebay::{moto.url}/chained/key.bin", s3=s3) as file:
        assert file.read() == DATA
    fs, path = fsspec.url_to_fs(f"forebay://{moto.url}/chained", options=moto.options)
    assert fs.ls(path, detail=False) == [f"{moto.url}/chained/key.bin"]
    assert fs.isdir(moto.url)
    with fs.open(f"{moto.url}/chained/key.bin") as file:
        assert file.read() == DATA
    with pytest.raises(ConfigError, match="no_such"):
        fsspec.open(f"forebay::{moto.url}/chained/key.bin", s3={"no_such": 1})


def test_what_users_of_s3fs_write_is_understood(moto: Moto) -> None:
    """Issue 3, item 7: recipes for MinIO have the endpoint in ``client_kwargs``; nothing is dropped in silence."""
    moto.put("written/key.bin", DATA)
    url = f"{moto.url}/written/key.bin"
    client = {"endpoint_url": moto.endpoint, "region_name": moto.REGION}
    ways: list[dict[str, Any]] = [
        {"key": moto.key, "secret": moto.secret, "client_kwargs": client},
        {"client_kwargs": {**client, "aws_access_key_id": moto.key, "aws_secret_access_key": moto.secret}},
        {
            "key": moto.key,
            "secret": moto.secret,
            "client_kwargs": {**client, "verify": False},
            "config_kwargs": {"s3": {"addressing_style": "path"}},
        },
    ]
    for given in ways:
        with fsspec.open(f"forebay://{url}", target_protocol="s3", target_options=given) as file:
            assert file.read() == DATA
        with fsspec.open(f"forebay::{url}", s3=given) as file:
            assert file.read() == DATA
    with pytest.raises(ConfigError, match=r"client_kwargs\['use_ssl'\]"):
        fsspec.open(f"forebay::{url}", s3={"client_kwargs": {**client, "use_ssl": False}})
    with pytest.raises(ConfigError, match="endpoint_url"):
        fsspec.open(f"forebay::{url}", s3={"endpoint_url": "http://127.0.0.1:1", "client_kwargs": client})
    with pytest.raises(ConfigError, match="target_options"):
        fsspec.open(f"forebay://{url}", client_kwargs=client)


def test_archive_in_a_chain(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("inner/one", DATA)
    with fsspec.open(f"forebay::zip://inner/one::file://{tmp_path}/a.zip") as file:
        assert file.read() == DATA


def test_errors_are_ours_and_the_builtin_ones(server: FaultServer, memory: Any) -> None:
    fs = fsspec.filesystem("forebay")
    with pytest.raises(ObjectNotFoundError) as caught:
        fs.open("fsspec+memory://pond/absent")
    assert isinstance(caught.value, FileNotFoundError)
    server.script("key.bin", Fault(status=403), times=50)
    with pytest.raises(AccessDeniedError) as denied:
        fs.open(server.url("key.bin"))
    assert isinstance(denied.value, PermissionError)
    with pytest.raises(PermissionError):
        fs.exists(server.url("key.bin"))  # not "no": nobody knows
    with pytest.raises(UnknownSchemeError):
        fs.open("no-such-scheme://x/y")
    with pytest.raises(UnsupportedOperationError):
        fs.open("fsspec+memory://pond/new", "wb")
    with pytest.raises(UnsupportedOperationError):
        fs.ls(server.url())
    assert issubclass(UnsupportedOperationError, ForebayError)


def test_changed_object_is_fetched_anew_by_the_next_process(server: FaultServer, cache: Path) -> None:
    """The same rule as `forebay.fetch`; ``revalidate=False`` asks nobody."""
    url = server.url("key.bin")
    with fsspec.open(f"forebay://{url}", revalidate=False) as file:
        assert file.read() == DATA
    server.put("key.bin", DATA[::-1])
    with fsspec.open(f"forebay://{url}", revalidate=False) as file:
        assert file.read() == DATA
    assert fsspec.filesystem("forebay").info(url)["ETag"] == server.etag("key.bin")


def test_threads_share_one_fetch(server: FaultServer, cache: Path) -> None:
    """J7."""
    url = f"forebay://{server.url('key.bin')}"

    def read(_: int) -> bytes:
        with fsspec.open(url) as file:
            return bytes(file.read())

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(read, range(64), timeout=60)) == {DATA}
    assert len(server.requests_for("key.bin", "GET")) == 1
    assert leases(cache) == 0


def test_file_system_travels_by_pickle(server: FaultServer, tmp_path: Path) -> None:
    """J9: dask sends file systems and unopened files to its workers."""
    opened = fsspec.open(f"forebay://{server.url('key.bin')}", cache_dir=str(tmp_path / "other"))
    copy = pickle.loads(pickle.dumps(opened))
    with copy as file:
        assert file.read() == DATA
    assert (tmp_path / "other").is_dir()
    assert pickle.loads(pickle.dumps(opened.fs)) == opened.fs


def test_chain_over_http_keeps_whole_urls(server: FaultServer) -> None:
    fs, path = fsspec.url_to_fs(f"forebay::{server.url('key.bin')}")
    assert path == server.url("key.bin")
    with fs.open(path) as file:
        assert file.read() == DATA
    assert fs.info(path)["size"] == len(DATA)
    assert not fs.exists(server.url("absent.bin"))


def test_call_inside_a_running_loop(server: FaultServer) -> None:
    """J10: fsspec's users live in notebooks."""

    async def main() -> bytes:
        with fsspec.open(f"forebay://{server.url('key.bin')}") as file:
            return bytes(file.read())

    assert run_async(main()) == DATA


def test_questions_are_repeated_like_transfers(server: FaultServer) -> None:
    """N1: a busy store is no missing object."""
    fs = fsspec.filesystem("forebay", options={"max_attempts": 3})
    server.script("key.bin", Fault(status=503), times=2)
    assert fs.info(server.url("key.bin"))["size"] == len(DATA)
    server.script("key.bin", Fault(status=503), times=None)
    with pytest.raises(ThrottledError) as caught:
        fs.exists(server.url("key.bin"))
    assert caught.value.attempts == 3
