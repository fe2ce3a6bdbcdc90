"""The collector closes what was forgotten at any moment, in any thread: nothing waits for itself then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from servers.datasets import put_dataset

from forebay.testing import FaultServer

#: Runs the collector once, at each place in turn where code of the given files calls something or returns.
_SWEEP = """
import gc, sys
import forebay

class Sweep:
    def __init__(self, *files):
        self.files, self.at, self.seen = files, 0, 0
        gc.disable()

    def __iter__(self):
        while self.seen >= self.at:
            self.at, self.seen = self.at + 1, 0
            yield
            sys.setprofile(None)

    def start(self):
        sys.setprofile(self.look)

    def look(self, frame, event, _):
        if frame.f_code.co_filename.endswith(self.files):
            self.seen += 1
            if self.seen == self.at:
                sys.setprofile(None)
                assert gc.collect() > 0

url, cache, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
"""

_ITERATORS = """
def forget(ds):
    iterator = iter(ds)
    next(iterator)
    knot = [iterator]
    knot.append(knot)

with forebay.open_dataset(url, cache_dir=cache, shuffle=True, shuffle_window=2) as ds:
    sweep = Sweep("_claims.py", "_cached_source.py", "_holdings.py", "_windows.py")
    for _ in sweep:
        forget(ds)
        sweep.start()
        assert sum(1 for _ in ds) == count
    gc.collect()
    with forebay.ChunkCache(cache) as seen:
        assert seen.info().leases == 0
print(sweep.at)
"""

_DATASETS = """
def forget():
    knot = [forebay.open_dataset(url, cache_dir=cache, max_cache_bytes="1MiB")]
    knot.append(knot)

sweep = Sweep("_io.py", "_runtime.py", "_opening.py")
for _ in sweep:
    forget()
    sweep.start()
    ds = forebay.open_dataset(url, cache_dir=cache, max_cache_bytes="1MiB")
    sys.setprofile(None)
    with ds:
        assert ds[count - 1]["index"] == count - 1
gc.collect()
with forebay.ChunkCache(cache) as seen:
    assert seen.info().leases == 0
print(sweep.at)
"""

_FILES = """
class Forgotten:
    def __init__(self, path):
        self.path, self.me = path, self

    def __del__(self):
        forebay.release(self.path)

sweep = Sweep("_fetch.py", "_holdings.py")
for _ in sweep:
    Forgotten(forebay.fetch(url, cache_dir=cache))
    sweep.start()
    forebay.release(forebay.fetch(url, cache_dir=cache))
gc.collect()
with forebay.ChunkCache(cache) as seen:
    assert seen.info().leases == 0
print(sweep.at)
"""

_FORK = """
import os, signal, sys, threading, time
import forebay

url, cache, count = sys.argv[1], sys.argv[2], int(sys.argv[3])

def begins(thread):
    frame = sys._current_frames().get(thread.ident)
    while frame is not None and frame.f_code.co_name != "claim_window":
        frame = frame.f_back
    return frame is not None

with forebay.open_dataset(url, cache_dir=cache, shuffle=True, shuffle_window=2) as ds:
    assert sum(1 for _ in ds) == count
    mutex = ds._source._engine.cache.member.ledger.mutex
    reader = threading.Thread(target=lambda: list(ds))
    with mutex:  # an iteration that begins waits here for its window
        reader.start()
        deadline = time.monotonic() + 30
        while not begins(reader):
            assert time.monotonic() < deadline
        pid = os.fork()
        if not pid:
            signal.alarm(30)
            os._exit(0 if sum(1 for _ in ds) == count else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    reader.join()
print("done")
"""


ITEMS = 6


def run(code: str, url: str, cache: Path) -> str:
    command = [sys.executable, "-c", code, url, str(cache), str(ITEMS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_forgotten_iterator_stops_no_other(server: FaultServer, tmp_path: Path) -> None:
    """One that began held the lock of all windows; the one that the collector closed meanwhile waited for it."""
    put_dataset(server, tmp_path, count=ITEMS, per_chunk=2)
    assert int(run(_SWEEP + _ITERATORS, server.url(), tmp_path / "cache")) > 20


@pytest.mark.slow
def test_a_forgotten_dataset_takes_nothing_from_the_one_that_is_opened(server: FaultServer, tmp_path: Path) -> None:
    """It got the engine, and the cache, that the collector closed with the other at that moment."""
    put_dataset(server, tmp_path, count=ITEMS, per_chunk=2)
    assert int(run(_SWEEP + _DATASETS, server.url(), tmp_path / "cache")) > 20


def test_a_forgotten_file_stops_no_fetch(server: FaultServer, tmp_path: Path) -> None:
    """pyarrow leaves its files to the collector: one that was closed inside `fetch` waited for that for ever."""
    server.put("object", b"x" * 1000)
    assert int(run(_SWEEP + _FILES, server.url("object"), tmp_path / "cache")) > 20


def test_a_child_forked_while_an_iteration_begins_can_begin_its_own(server: FaultServer, tmp_path: Path) -> None:
    """Risk J1: a lock that another thread held at the fork is held for ever in the child."""
    put_dataset(server, tmp_path, count=ITEMS, per_chunk=2)
    assert run(_FORK, server.url(), tmp_path / "cache") == "done\n"
