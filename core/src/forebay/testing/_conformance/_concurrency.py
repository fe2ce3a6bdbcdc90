"""Several callers at once: threads, and sync calls under a running event loop."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from forebay.downloader import Downloader
from forebay.testing._async import run_async
from forebay.testing._conformance._store import Store, SuiteBase, sync_ways

__all__ = ["ConcurrencyTests"]


class ConcurrencyTests(SuiteBase):
    """Methods may be called from several threads at once."""

    def test_threads_do_not_mix(self, store: Store, downloader: Downloader, tmp_path: Path) -> None:
        objects = {store.put(f"{n}.bin", (data := random.Random(n).randbytes(5000 + n))): data for n in range(8)}
        start = threading.Barrier(8)

        def work(shift: int) -> list[str]:
            keys = list(objects)
            wrong = []
            start.wait(10)
            for turn in range(len(keys)):
                key = keys[(turn + shift) % len(keys)]
                for name, read in sync_ways(downloader, tmp_path).items():
                    if read(key) != objects[key]:
                        wrong.append(f"{name} of {key}")
                if downloader.download_bytes(key, 100, 50) != objects[key][100:150]:
                    wrong.append(f"range of {key}")
            return wrong

        with ThreadPoolExecutor(8) as pool:
            assert [wrong for wrongs in pool.map(work, range(8), timeout=60) for wrong in wrongs] == []

    def test_sync_hooks_work_inside_a_running_loop(self, store: Store, downloader: Downloader, tmp_path: Path) -> None:
        key = store.put("one.bin", b"0123456789")

        async def main() -> None:
            for name, read in sync_ways(downloader, tmp_path).items():
                assert read(key) == b"0123456789", name
            assert downloader.stat(key).size in (10, None)

        run_async(main())
