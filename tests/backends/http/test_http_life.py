"""What a downloader leaves behind: nothing (A11, J7, J10, J14, K4, K5), and how the plugin is found."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forebay.testing import Fault, FaultServer, run_async
from forebay_http import HttpDownloader

Open = Callable[..., HttpDownloader]
DATA = bytes(range(256)) * 256

EXIT_AT_ONCE = """
import asyncio, sys
from forebay_http import HttpDownloader
one = HttpDownloader(sys.argv[1])
async def main():
    async with asyncio.TaskGroup() as group:
        for n in range(64):
            group.create_task(one.aread_range("key.bin", n, 60000))
asyncio.run(main())
"""


def test_interpreter_that_exits_right_after_many_reads_does_not_abort(faults: FaultServer) -> None:
    """Without the drain one run in eight ended with SIGABRT (obstore 0.12.1)."""
    faults.put("key.bin", DATA)
    for _ in range(8):
        done = subprocess.run(
            [sys.executable, "-c", EXIT_AT_ONCE, faults.url()], capture_output=True, timeout=90, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")


def test_loading_the_plugin_imports_no_sdk() -> None:
    code = (
        "import sys, forebay_http.plugin as p; specs = p.forebay_register_backends(); "
        "assert [s.schemes for s in specs] == [('http', 'https')]; "
        "print(sorted({'aiohttp', 'obstore', 'fsspec', 'yarl', 'asyncio'} & set(sys.modules))); "
        "c = specs[0].load(); c('http://127.0.0.1:1'); "
        "print(c.__name__, sorted({'aiohttp', 'obstore'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90, check=True).stdout
    assert out.splitlines() == ["[]", "HttpDownloader []"]


def test_no_thread_and_no_descriptor_is_left_after_close(faults: FaultServer, opened: Open) -> None:
    faults.put("key.bin", DATA)
    warm = opened(faults.url())
    warm.download_bytes("key.bin")  # obstore's own threads live as long as the process
    warm.close()

    def once() -> None:
        downloader = opened(faults.url(), driver="fsspec")
        downloader.download_bytes("key.bin")

        async def main() -> None:
            await downloader.adownload_bytes("key.bin")
            await downloader.aclose()

        run_async(main())
        downloader.close()

    once()
    threads = {one.name for one in threading.enumerate()}
    descriptors = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for _ in range(10):
        once()
    assert {one.name for one in threading.enumerate()} == threads
    assert "forebay-http" not in threads
    if descriptors:
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 3


def test_one_connection_serves_many_requests(faults: FaultServer, opened: Open) -> None:
    """K4: one client a process, not one a request."""
    faults.put("key.bin", DATA)
    downloader = opened(faults.url())
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda n: downloader.download_bytes("key.bin", n, 10), range(200)))
    assert sum(1 for one in threading.enumerate() if one.name == "forebay-http") <= 1


def test_sync_methods_work_inside_a_running_loop(faults: FaultServer, opened: Open) -> None:
    """J10."""
    faults.put("key.bin", DATA)

    async def main() -> bytes:
        return opened(faults.url()).download_bytes("key.bin", 1, 3)

    assert run_async(main()) == DATA[1:4]


@pytest.mark.parametrize("after", [None, 100], ids=["before the answer", "in the body"])
def test_cancelled_read_ends_at_once_and_is_a_cancellation(
    faults: FaultServer, opened: Open, after: int | None
) -> None:
    """J13, J14: a stalled server does not hold a cancelled task, and the downloader stays usable."""
    faults.put("key.bin", DATA)
    faults.script("key.bin", Fault(hang=True, after=after))
    downloader = opened(faults.url())

    async def main() -> None:
        task = asyncio.ensure_future(downloader.adownload_bytes("key.bin"))
        await asyncio.to_thread(faults.wait_for_requests, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(task), 1)
        assert await downloader.adownload_bytes("key.bin") == DATA
        await downloader.aclose()

    run_async(main())


def test_pickled_downloader_takes_no_client_with_it(faults: FaultServer, opened: Open) -> None:
    """J9."""
    faults.put("key.bin", DATA)
    downloader = opened(faults.url())
    downloader.download_bytes("key.bin")
    again = pickle.loads(pickle.dumps(downloader))
    assert again.download_bytes("key.bin") == DATA
    again.close()


def test_error_of_the_file_object_is_not_the_store_s(faults: FaultServer, opened: Open) -> None:
    faults.put("key.bin", DATA)

    class Full:
        def write(self, data: bytes | bytearray | memoryview, /) -> int:
            raise FileNotFoundError(28, "no room")

    with pytest.raises(FileNotFoundError, match="no room") as error:
        opened(faults.url()).download_fileobj("key.bin", Full())
    assert type(error.value) is FileNotFoundError


@pytest.mark.parametrize("key", ["/a", "a/", "a//b", "../a", "a/../b", ".", "a/./b", "/", "a\ud800"], ids=ascii)
def test_key_that_would_become_another_one_is_refused_without_a_request(
    faults: FaultServer, opened: Open, key: str
) -> None:
    """O6: web servers over a file system read ``a//b`` as ``a/b``, and obstore drops outer slashes."""
    downloader = opened(faults.url())
    for read in (downloader.download_bytes, downloader.stat):
        with pytest.raises(ValueError, match="key"):
            read(key)
    assert faults.requests == []


@pytest.mark.parametrize(
    "root", ["http://", "http://host:99999", "ftp://host/x", "http://h/a#b", "http://h/../x", "http://h/%2e%2e/x"]
)
def test_root_that_cannot_be_requested_is_refused(root: str) -> None:
    with pytest.raises(ValueError, match="://"):
        HttpDownloader(root)
