"""The bridge in workers: forked, spawned, threaded, used before or not; it finishes (A3, J1, J5-J9)."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.datasets import put_dataset
from servers.ftp import Ftp

from forebay.testing import FaultServer

pytestmark = pytest.mark.slow

PRELUDE = """
import multiprocessing, os, sys, threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
import fsspec
import forebay

url, cache, method = sys.argv[1:4]
OPTIONS = {"encoding": "utf-8"} if "ftp" in url else {}

def indices(shard):
    with forebay.open_dataset(url, cache_dir=cache, options=OPTIONS) as ds:
        return [ds[i]["index"] for i in range(shard, len(ds), 2)]

def inherited(ds, shard):
    return [ds[i]["index"] for i in range(shard, len(ds), 2)]

def read(path):
    with fsspec.open(path, cache_dir=cache) as file:
        return file.read()

def shares(function, *arguments):
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        futures = [pool.submit(function, *arguments, shard) for shard in (0, 1)]
        return sorted(i for future in futures for i in future.result(40))
"""


def run(body: str, *arguments: Path | str) -> str:
    indented = textwrap.indent(textwrap.dedent(body), "    ")
    code = f"{PRELUDE}\nif __name__ == '__main__':\n{indented}"
    script = Path(str(arguments[1])).parent / "script.py"  # spawn imports it by name
    script.write_text(code)
    command = [sys.executable, str(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr, done.stderr
    return done.stdout


@pytest.fixture
def dataset(ftp: Ftp, tmp_path: Path) -> str:
    put_dataset(ftp, tmp_path / "made")
    return f"fsspec+{ftp.url}"


@pytest.fixture
def web_dataset(tmp_path: Path) -> Iterator[str]:
    with FaultServer() as server:
        put_dataset(server, tmp_path / "made")
        yield f"fsspec+{server.url()}"


ALL = f"{list(range(40))}"


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("kind", ["dataset", "web_dataset"])
def test_every_start_method_reads_all(kind: str, method: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = request.getfixturevalue(kind)
    out = run("print(shares(indices))", url, tmp_path / "cache", method)
    assert ALL in out


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("kind", ["dataset", "web_dataset"])
def test_dataset_used_before_is_used_in_workers(
    kind: str, method: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A3, J1: connections and loops of the parent are not the child's."""
    url = request.getfixturevalue(kind)
    body = """
        with forebay.open_dataset(url, cache_dir=cache, options=OPTIONS) as ds:
            assert ds[0]["index"] == 0
            print(shares(inherited, ds))
            assert [item["index"] for item in ds] == list(range(40))
    """
    assert ALL in run(body, url, tmp_path / "cache", method)


def test_memory_of_the_parent_is_the_forked_childs(tmp_path: Path) -> None:
    """A3: memory:// through the bridge, two forked workers."""
    body = """
        import pathlib
        made = pathlib.Path(cache).parent / "made"
        forebay.pack(({"index": i} for i in range(40)), made, chunk_bytes=400)
        fs = fsspec.filesystem("memory")
        for path in made.iterdir():
            fs.pipe_file(f"/pond/{path.name}", path.read_bytes())
        assert indices(0)
        print(shares(indices))
    """
    assert ALL in run(body, "fsspec+memory://pond", tmp_path / "cache", "fork")


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_cache_file_system_works_in_workers(method: str, tmp_path: Path) -> None:
    """The other direction, with the file system used in the parent and a file of its open across the fork."""
    with FaultServer() as server:
        server.put("key.bin", b"0123456789")
        body = """
            path = "forebay://" + url
            assert read(path) == b"0123456789"
            with fsspec.open(path, cache_dir=cache) as file:
                context = multiprocessing.get_context(method)
                with ProcessPoolExecutor(2, mp_context=context) as pool:
                    assert list(pool.map(read, [path] * 6, timeout=40)) == [b"0123456789"] * 6
                assert file.read() == b"0123456789"
            observer = forebay.ChunkCache(cache)
            print("leases", observer.info().leases)
            observer.close()
        """
        assert "leases 0" in run(body, server.url("key.bin"), tmp_path / "cache", method)


def test_many_threads_make_their_own_connections(ftp: Ftp, tmp_path: Path) -> None:
    """J7: a connection that blocks serves one thread at a time, and is used again."""
    ftp.put("threads.bin", bytes(range(200)))
    body = """
        one = forebay.open_downloader(url, options=OPTIONS)
        start = threading.Barrier(12)
        def work(n):
            start.wait(20)
            return [one.download_bytes("threads.bin", i, 3) == bytes([i, i + 1, i + 2]) for i in range(n, n + 5)]
        with ThreadPoolExecutor(12) as pool:
            print(all(ok for oks in pool.map(work, range(12), timeout=40) for ok in oks))
        driver = one._drivers[os.getpid()]
        print("connections", 1 <= len(driver._idle) <= 12)
        one.close()
        print("left", len(driver._idle))
    """
    out = run(body, f"fsspec+{ftp.url}", tmp_path / "cache", "fork")
    assert out.split() == ["True", "connections", "True", "left", "0"]
