"""The collector finds what was forgotten at any moment, in any thread: it waits for nobody, and all of it is closed."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from pathlib import Path

import pytest
from servers.datasets import expected_items, put_dataset

import forebay
from forebay import _collector
from forebay.testing import FaultServer

#: Runs the collector once, at each place in turn where code of the given files calls something or returns.
_SWEEP = """
import gc, sys
import forebay
from forebay import _collector

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
    assert _collector.finish(30)
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
assert _collector.finish(30)
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
assert _collector.finish(30)
with forebay.ChunkCache(cache) as seen:
    assert seen.info().leases == 0
print(sweep.at)
"""

#: What is forgotten in three ways, each with a lease; and the collector while other threads go no further.
_FORGET = """
import gc, os, queue, signal, sys, threading
import forebay
from forebay import _collector
from forebay._prefetch import _runtime, io_thread

url, cache, kind = sys.argv[1], sys.argv[2], sys.argv[4]
options = {"cache_dir": cache, "shuffle": True, "shuffle_window": 2, "prefetch": 0}
gc.disable()

class File:
    def __init__(self):
        self.path, self.me = forebay.fetch(url + "/index.json", cache_dir=cache), self

    def __del__(self):
        forebay.release(self.path)

def forget(ds):
    if kind == "file":
        File()
        return
    knot = [ds if kind == "iterator" else forebay.open_dataset(url, **options)]
    knot.append(iter(knot[0]))
    next(knot[1])
    if kind == "iterator":
        del knot[0]
    knot.append(knot)

def leases():
    with forebay.ChunkCache(cache) as seen:
        return seen.info().leases

def hold(lock, start):
    held, go, told = threading.Event(), threading.Event(), queue.SimpleQueue()

    def stay():
        with lock:
            held.set()
            told.put(go.wait(30))

    def let_go():
        go.set()
        return told.get(timeout=30)

    start(stay)
    assert held.wait(30)
    return let_go

def in_thread(work):
    threading.Thread(target=work).start()
"""

_WHILE_HELD = """
def collect():
    called = set()
    sys.setprofile(lambda frame, event, _: called.add(frame.f_code))
    assert gc.collect() > 0
    sys.setprofile(None)
    assert _collector.call_outside.__code__ in called
    assert threading.Thread.start.__code__ not in called

with forebay.open_dataset(url, **options) as ds:
    (engine,) = _runtime._engines.values()
    for lock in (engine.cache.member.ledger.mutex, _runtime._lock):
        forget(ds)
        assert leases() > 0
        let_go = hold(lock, in_thread)
        collect()
        assert let_go(), "the collector waited for a thread"
        assert _collector.finish(30)
        assert leases() == 0
    # As `wait_for` does, which holds the lock of a future that the I/O thread is about to settle.
    forget(ds)
    let_go = hold(threading.Lock(), io_thread().call_soon)
    collect()
    assert let_go(), "the collector waited for the I/O thread"
    assert _collector.finish(30)
    assert leases() == 0
print("done")
"""

_AT_EXIT = """
import atexit

begun, ends = threading.Event(), threading.Event()
atexit.register(ends.set)

class Told(forebay.Downloader):
    def download_fileobj(self, key, fileobj):
        with open(os.path.join(self.root.split("://", 1)[1], key), "rb") as file:
            fileobj.write(file.read())

    def close(self):
        begun.set()
        assert ends.wait(30)
        threading.Event().wait(0.3)  # it takes its time
        print("closed", flush=True)

forebay.register_downloader("told", Told)
url = "told://" + url
forget(None)
assert gc.collect() > 0
assert begun.wait(30)
"""

_IN_A_CHILD = """
_collector.wake_with(lambda serve: None)
with forebay.open_dataset(url, **options) as ds:
    forget(ds)
    assert gc.collect() > 0
    before = leases()
    pid = os.fork()
    if not pid:
        signal.alarm(30)
        assert _collector.finish(0.0)
        os._exit(0 if len(list(ds)) == int(sys.argv[3]) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert leases() == before > 0
    assert _collector.finish(30)
    assert leases() == 0
print("done")
"""

_REFUSED = """
options["max_cache_bytes"] = 6000  # two chunks of 2 kB: one window
_collector.wake_with(lambda serve: None)
with forebay.open_dataset(url, **options) as ds:
    forget(ds)
    assert gc.collect() > 0
    assert _collector._forgotten
    assert len(list(ds)) == int(sys.argv[3])
print("done")
"""

_FORK = """
import os, signal, sys, threading, time
import forebay
from forebay import _collector

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


KINDS = ["dataset", "iterator", "file"]


def run(code: str, url: str, cache: Path, *others: str) -> str:
    command = [sys.executable, "-c", code, url, str(cache), str(ITEMS), *others]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not re.search("Traceback|did not|failed|put right", done.stderr), done.stderr
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


@pytest.mark.parametrize("kind", KINDS)
def test_the_collector_waits_for_no_thread(server: FaultServer, tmp_path: Path, kind: str) -> None:
    """It ran while its thread held a future's lock, and closing a dataset waited for the thread that waited for that.

    Each thing forgotten cost the reader 1 to 2 s, and after 30 s it was told that its backend blocks.
    """
    put_dataset(server, tmp_path, count=ITEMS, per_chunk=2)
    assert run(_FORGET + _WHILE_HELD, server.url(), tmp_path / "cache", kind) == "done\n"


def test_what_is_forgotten_at_the_end_is_closed_before_it(tmp_path: Path) -> None:
    """The interpreter ended beneath the thread that closed it: a driver was not asked to finish."""
    forebay.pack(expected_items(ITEMS), tmp_path / "data", chunk_bytes=2500)
    assert run(_FORGET + _AT_EXIT, str(tmp_path / "data"), tmp_path / "cache", "dataset") == "closed\n"
    with forebay.ChunkCache(tmp_path / "cache") as seen:
        assert (seen.info().leases, seen.info().holders) == (0, 0)


@pytest.mark.timeout(60)
def test_a_driver_that_ends_the_closing_thread_keeps_nobody() -> None:
    """Risk C10: the thread ended without a word of it, and the end of the interpreter waited for it for ever."""

    class Forgotten:
        def __del__(self) -> None:
            _collector.call_outside(self.close)

        def close(self) -> None:
            raise SystemExit("out of a driver")

    knot: list[object] = [Forgotten()]
    knot.append(knot)
    del knot
    gc.collect()
    assert _collector.finish(30)


def test_what_is_forgotten_is_not_for_a_forked_child(server: FaultServer, tmp_path: Path) -> None:
    """Risk J1: it closed what its parent still had to close, on connections that are the parent's."""
    put_dataset(server, tmp_path, count=ITEMS, per_chunk=2)
    assert run(_FORGET + _IN_A_CHILD, server.url(), tmp_path / "cache", "iterator") == "done\n"


def test_a_forgotten_iterator_keeps_no_other_from_its_window(server: FaultServer, tmp_path: Path) -> None:
    """It gives its room back a moment after the collector found it; who comes just then was refused."""
    put_dataset(server, tmp_path, count=ITEMS, per_chunk=2)
    assert run(_FORGET + _REFUSED, server.url(), tmp_path / "cache", "iterator") == "done\n"


def test_a_break_lets_go_at_once_without_the_collector(server: FaultServer, tmp_path: Path) -> None:
    """What needs no collector is not left to another thread: the next line may need the room."""
    put_dataset(server, tmp_path, count=ITEMS, per_chunk=2)
    gc.disable()
    try:
        with (
            forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds,
            forebay.ChunkCache(tmp_path / "cache") as seen,
        ):
            for _ in ds:
                assert seen.info().leases > 0
                break
            assert seen.info().leases == 0
    finally:
        gc.enable()


def test_a_child_forked_while_an_iteration_begins_can_begin_its_own(server: FaultServer, tmp_path: Path) -> None:
    """Risk J1: a lock that another thread held at the fork is held for ever in the child."""
    put_dataset(server, tmp_path, count=ITEMS, per_chunk=2)
    assert run(_FORK, server.url(), tmp_path / "cache") == "done\n"


def test_the_collector_calls_no_code_of_ours_in_which_an_interrupt_would_be_lost() -> None:
    """What a signal handler raises in a callback of the collector is printed and ignored: Ctrl-C did nothing then."""
    of_ours = [one for one in gc.callbacks if str(getattr(one, "__module__", "")).startswith("forebay")]
    assert of_ours == []
    inside: list[bool] = []

    class Knot:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            inside.append(_collector._is_collecting())

    Knot()
    gc.collect()
    assert inside == [True], "and yet it is known where the collector runs"
    assert not _collector._is_collecting()
