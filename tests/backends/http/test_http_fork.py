"""Forked children never hang, whoever used obstore before the fork (J1, J2, J3, J9, A3, A4)."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest
from servers.datasets import put_dataset

from forebay.testing import FaultServer

pytestmark = pytest.mark.slow

PRELUDE = """
import asyncio, functools, os, sys, time
url = sys.argv[1]

def aread(one, key="key.bin"):
    async def main():
        data = bytes((await one.aread_range(key, 2, 4)).data)
        await one.aclose()
        return data
    return asyncio.run(main())

def fork(child):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        start = time.monotonic()
        try:
            child()
            print(f"seconds={time.monotonic() - start:.2f}")
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(pid, 0)
"""


def run(body: str, faults: FaultServer, arguments: Sequence[str] = ()) -> str:
    code = PRELUDE + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-c", code, faults.url(), *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(autouse=True)
def key(faults: FaultServer) -> None:
    faults.put("key.bin", b"0123456789")


@pytest.mark.parametrize("use", ["aread(one)", "one.download_bytes('key.bin')"], ids=["async", "sync"])
@pytest.mark.parametrize("first", ["obstore", "fsspec"])
def test_child_of_a_parent_that_used_it_reads_through_aiohttp(faults: FaultServer, use: str, first: str) -> None:
    """J1, J2: the same downloader, used before and after the fork, in both processes."""
    out = run(
        f"""
        import logging
        logging.basicConfig(level="WARNING", stream=sys.stdout)
        from forebay.downloader import probe
        from forebay_http import HttpDownloader
        one = HttpDownloader(url, {{"driver": {first!r}}})
        {use}
        def child():
            print("child", aread(one), one.download_bytes("key.bin", 2, 4), probe(one).driver, probe(one).reason)
        fork(child)
        fork(child)
        print("parent", aread(one), probe(one).driver)
        one.close()
        """,
        faults,
    )
    assert out.count("child b'2345' b'2345' fsspec") == 2
    assert f"parent b'2345' {first}" in out
    if first == "obstore":
        assert "forkserver" in out, "the reason names the remedy"
        assert "WARNING:forebay.http" in out


def test_child_of_a_parent_that_only_made_one_uses_obstore(faults: FaultServer) -> None:
    """Importing and making is safe, a request is not: a child that inherits no runtime has the fast driver."""
    out = run(
        """
        import obstore
        from forebay.downloader import probe
        from forebay_http import HttpDownloader
        one = HttpDownloader(url)
        fork(lambda: print("child", aread(one), probe(one).driver))
        """,
        faults,
    )
    assert "child b'2345' obstore" in out


def test_runtime_that_the_user_started_is_seen_before_the_fork(faults: FaultServer) -> None:
    out = run(
        """
        import obstore
        from forebay.downloader import probe
        from forebay_http import HttpDownloader
        one = HttpDownloader(url)
        store = obstore.store.HTTPStore(url, client_options={"allow_http": True})
        obstore.get(store, "key.bin").bytes()
        whole = functools.partial(one.download_bytes, "key.bin", 2, 4)
        fork(lambda: print("child", aread(one), whole(), probe(one).driver, probe(one).reason))
        """,
        faults,
    )
    assert "child b'2345' b'2345' fsspec" in out
    if sys.platform == "linux":
        assert "before this process was forked" in out, "seen at the fork, not found out by waiting"


@pytest.mark.parametrize("use", ["aread(one)", "one.download_bytes('key.bin', 2, 4)"], ids=["async", "sync"])
def test_runtime_that_nobody_could_see_has_two_seconds_to_answer(faults: FaultServer, use: str) -> None:
    """The watchdog: the backend is first imported in the child of a parent that used obstore itself."""
    out = run(
        f"""
        import obstore
        store = obstore.store.HTTPStore(url, client_options={{"allow_http": True}})
        obstore.get(store, "key.bin").bytes()
        def child():
            from forebay.downloader import probe
            from forebay_http import HttpDownloader
            one = HttpDownloader(url)
            print("child", {use}, probe(one).driver, probe(one).reason)
            print("again", {use})
            one.close()
        fork(child)
        """,
        faults,
    )
    assert "child b'2345' fsspec" in out
    assert "again b'2345'" in out
    assert float(out.partition("seconds=")[2].split()[0]) < 30


def test_runtime_that_the_user_started_in_this_process_is_used(faults: FaultServer) -> None:
    out = run(
        """
        import obstore
        store = obstore.store.HTTPStore(url, client_options={"allow_http": True})
        obstore.get(store, "key.bin").bytes()
        from forebay.downloader import probe
        from forebay_http import HttpDownloader
        one = HttpDownloader(url)
        print("here", one.download_bytes("key.bin", 2, 4), aread(one), probe(one).driver)
        """,
        faults,
    )
    assert "here b'2345' b'2345' obstore" in out


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_every_start_method_reads_with_a_used_downloader(faults: FaultServer, method: str) -> None:
    """J5, J9: the downloader travels by pickle or by fork, after it was used."""
    faults.put("key.bin", b"0123456789")
    out = run(
        """
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        from forebay_http import HttpDownloader
        one = HttpDownloader(url)
        one.download_bytes("key.bin")
        context = multiprocessing.get_context(sys.argv[2])
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            futures = [pool.submit(one.download_bytes, "key.bin", n, 3) for n in range(6)]
            print("children", [future.result(90) for future in futures])
        one.close()
        """,
        faults,
        [method],
    )
    assert "children [b'012', b'123', b'234', b'345', b'456', b'567']" in out


OPENED = """
import glob, logging, multiprocessing
logging.basicConfig(level="WARNING", stream=sys.stdout)
import forebay
from forebay.downloader import probe

def runtime_threads():
    return [name for path in glob.glob("/proc/self/task/*/comm") if (name := open(path).read()).startswith("tokio-")]

def read(dataset):
    print("child", dataset[39]["index"], probe(dataset._source._downloader).driver, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are seen in /proc")
@pytest.mark.parametrize("times", [1, 2], ids=["fetched", "revalidated"])
def test_opening_a_dataset_leaves_nothing_that_a_fork_would_break(
    faults: FaultServer, tmp_path: Path, times: int
) -> None:
    """J1, J2: the parent reads the index, kept or not, and its forked workers still have the fast driver."""
    put_dataset(faults, tmp_path)
    out = run(
        f"""
        {textwrap.indent(OPENED, " " * 8).strip()}
        for time in range({times}):
            dataset = forebay.open_dataset(url, cache_dir=sys.argv[2])
        print("parent", runtime_threads())
        child = multiprocessing.get_context("fork").Process(target=read, args=[dataset])
        child.start()
        child.join(60)
        print("here", dataset[0]["index"], len(runtime_threads()) > 0)
        """,
        faults,
        [str(tmp_path / "cache")],
    )
    assert "parent []" in out
    assert "child 39 obstore" in out
    assert "here 0 True" in out, "the parent itself goes on with it"
    assert "WARNING" not in out


def test_the_index_is_read_with_the_access_that_was_given(faults: FaultServer) -> None:
    """Only the driver differs; one that was asked for is kept, and one that runs already is not avoided."""
    out = run(
        """
        from forebay_http import HttpDownloader
        given = {"bearer_token": "secret", "ca_file": "/x.pem", "timeout": 3.0}
        print("fresh", HttpDownloader.index_options(given) == {**given, "driver": "fsspec"})
        print("asked", HttpDownloader.index_options({"driver": "obstore"}))
        HttpDownloader(url).download_bytes("key.bin")
        print("started", HttpDownloader.index_options(given) == given)
        """,
        faults,
    )
    assert "fresh True" in out
    assert "asked {'driver': 'obstore'}" in out
    assert "started True" in out
