"""Whatever way an iteration ends, nothing of it is left: no lease, no task, no process that does not exit."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from servers.datasets import expected_items, put_dataset
from servers.readers import send_indices

import forebay
from forebay import exceptions
from forebay.testing import Fault, FaultServer, Gate


def leases(cache: Path) -> int:
    observer = forebay.ChunkCache(cache)
    try:
        return observer.info().leases
    finally:
        observer.close()


def test_a_break_lets_go_of_every_lease(server: FaultServer, tmp_path: Path) -> None:
    put_dataset(server, tmp_path)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", prefetch=4) as ds:
        for _ in ds:
            assert leases(tmp_path / "cache") > 0
            break
        gc.collect()
        assert leases(tmp_path / "cache") == 0
        assert list(ds) == expected_items()
        assert leases(tmp_path / "cache") == 0


def test_a_break_stops_what_was_under_way(server: FaultServer, tmp_path: Path) -> None:
    names = put_dataset(server, tmp_path)
    gate = Gate()
    for name in names[1:]:
        server.script(name, Fault(gate=gate, after=10), times=None)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", prefetch=4) as ds:
        for _ in ds:
            break
        gc.collect()
        assert not list((tmp_path / "cache" / "chunks").rglob("*.tmp"))
        assert leases(tmp_path / "cache") == 0
        gate.open()


def test_close_during_an_iteration_ends_it_with_an_error(server: FaultServer, tmp_path: Path) -> None:
    names = put_dataset(server, tmp_path)
    gate = Gate()
    server.script(names[1], Fault(gate=gate), times=None)
    ds = forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache")
    outcome: list[BaseException] = []
    started = threading.Event()

    def read() -> None:
        try:
            for item in ds:
                if item["index"] == 4:
                    started.set()
        except exceptions.PrefetchClosedError as error:
            outcome.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert started.wait(60)
    ds.close()
    reader.join(60)
    gate.open()
    assert len(outcome) == 1
    with pytest.raises(exceptions.PrefetchClosedError):
        ds[0]
    with pytest.raises(exceptions.PrefetchClosedError):
        iter(ds)
    ds.close()


def test_a_dataset_that_nobody_closes_lets_go_when_it_is_collected(server: FaultServer, tmp_path: Path) -> None:
    put_dataset(server, tmp_path)
    ds = forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache")
    next(iter(ds))
    del ds
    gc.collect()
    assert leases(tmp_path / "cache") == 0


def test_items_outlive_their_chunk_and_their_dataset(server: FaultServer, tmp_path: Path) -> None:
    put_dataset(server, tmp_path)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", max_cache_bytes=6000) as ds:
        items = list(ds)
    assert items == expected_items()


def test_the_sync_api_works_inside_a_running_loop(server: FaultServer, tmp_path: Path) -> None:
    """Risk J10: in a notebook there is a loop already."""
    put_dataset(server, tmp_path)

    async def main() -> list[Any]:
        with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
            return list(ds)

    assert asyncio.run(main()) == expected_items()


SCRIPT = """
import sys
import forebay
ds = forebay.open_dataset(sys.argv[1], cache_dir=sys.argv[2], prefetch=8)
for item in ds:
    {body}
"""


@pytest.mark.parametrize(("body", "code"), [("break", 0), ("pass", 0), ("raise SystemExit(3)", 3), ("1 / 0", 1)])
def test_the_process_exits_promptly_and_quietly(server: FaultServer, tmp_path: Path, body: str, code: int) -> None:
    """Risk A11, J12: early break, exception and normal end; nothing on stderr but what the user raised."""
    names = put_dataset(server, tmp_path)
    for name in names[2:]:
        server.script(name, Fault(delay=0.05), times=None)
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(body=body), server.url(), tmp_path / "cache"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code
    assert time.monotonic() - begin < 50
    if code != 1:
        assert done.stderr == ""
    assert leases(tmp_path / "cache") == 0
    assert not list((tmp_path / "cache" / "chunks").rglob("*.tmp"))


@pytest.mark.parametrize("run", range(3))
def test_the_process_exits_quietly_while_requests_hang(server: FaultServer, tmp_path: Path, run: int) -> None:
    """Risk A11: an interpreter that ends under a driver's running request aborts or panics, unless it is drained."""
    names = put_dataset(server, tmp_path)
    for name in names[1:]:
        server.script(name, Fault(hang=True, after=10), times=None)
    script = SCRIPT.format(body="sys.exit(4) if item['index'] == 4 else None")
    done = subprocess.run(
        [sys.executable, "-c", script, server.url(), tmp_path / "cache"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (4, "")
    assert leases(tmp_path / "cache") == 0
    assert not list((tmp_path / "cache" / "chunks").rglob("*.tmp"))


def test_a_pickled_dataset_opens_again_without_a_second_index_request(server: FaultServer, tmp_path: Path) -> None:
    """Risk J9: a dataset pickles after use."""
    put_dataset(server, tmp_path)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", shuffle=True, seed=7) as ds:
        ds.set_epoch(3)
        order = [item["index"] for item in ds]
        data = pickle.dumps(ds)
    with pickle.loads(data) as again:
        assert [item["index"] for item in again] == order
    assert len(server.requests_for("index.json")) == 1


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("inherit", [True, False])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_children_of_every_start_method_read_after_the_parent_did(
    server: FaultServer, tmp_path: Path, method: str, inherit: bool
) -> None:
    """Risk J1, J2, J5, A12: items, never a hang, whatever native threads the parent runs by then (obstore's)."""
    put_dataset(server, tmp_path)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        assert ds[0] == expected_items()[0]
        list(ds)
        for victim in (tmp_path / "cache" / "chunks").rglob("*.bin"):
            victim.unlink()
        context = multiprocessing.get_context(method)
        here, there = context.Pipe()
        args = (there, ds if inherit else None, server.url(), str(tmp_path / "cache"))
        child = context.Process(target=send_indices, args=args)  # type: ignore[attr-defined]
        child.start()
        assert here.poll(60), "the child hangs"
        assert here.recv() == list(range(40))
        child.join(90)
        assert child.exitcode == 0
        assert list(ds) == expected_items()
    assert leases(tmp_path / "cache") == 0


def test_threads_share_one_dataset(server: FaultServer, tmp_path: Path) -> None:
    """Risk J7: many threads at once, one request a chunk."""
    names = put_dataset(server, tmp_path)
    errors: list[BaseException] = []
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        barrier = threading.Barrier(16)

        def read(start: int) -> None:
            try:
                barrier.wait(60)
                for number in range(start, start + 80, 7):
                    assert ds[number % 40] == expected_items()[number % 40]
            except BaseException as error:  # noqa: BLE001 - the main thread shows it
                errors.append(error)

        threads = [threading.Thread(target=read, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert errors == []
    assert [len(server.requests_for(name)) for name in names] == [1] * len(names)


def test_many_chunks_do_not_use_up_descriptors(server: FaultServer, tmp_path: Path) -> None:
    """Risk D10, K5: open maps are bounded."""
    put_dataset(server, tmp_path, count=300, size=50, per_chunk=1)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        kept = list(ds)
        before = len(os.listdir("/proc/self/fd"))
        kept += [ds[number] for number in range(0, 300, 3)]
        assert len(os.listdir("/proc/self/fd")) - before < 40
    assert len(kept) == 400


def test_indexing_follows_pythons_rules(server: FaultServer, tmp_path: Path) -> None:
    put_dataset(server, tmp_path)
    expected = expected_items()
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        assert len(ds) == 40
        assert ds[-1] == expected[-1]
        assert ds[2:9] == expected[2:9]
        assert ds[::-7] == expected[::-7]
        assert ds[38:100] == expected[38:100]
        assert ds.get_batch([5, -1, 5]) == [expected[5], expected[-1], expected[5]]
        assert ds.get_batch([]) == []
        for wrong in (40, -41):
            with pytest.raises(IndexError, match=str(wrong)):
                ds[wrong]
        with pytest.raises(TypeError):
            ds["0"]  # type: ignore[call-overload]


def test_each_completed_epoch_moves_on_and_set_epoch_holds_it(server: FaultServer, tmp_path: Path) -> None:
    put_dataset(server, tmp_path)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", shuffle=True, shuffle_window=3) as ds:

        def order() -> list[int]:
            return [item["index"] for item in ds]

        first, second = order(), order()
        assert first != second
        assert sorted(first) == sorted(second) == list(range(40))
        ds.set_epoch(0)
        assert order() == order() == first
        ds.set_epoch(1)
        assert order() == second


def test_an_empty_dataset_is_empty(server: FaultServer, tmp_path: Path) -> None:
    """Risk Q3, Q5: nothing packed, nothing read, no crash."""
    forebay.pack([], tmp_path / "empty")
    for file in (tmp_path / "empty").iterdir():
        server.put(file.name, file.read_bytes())
    for url in (server.url(), str(tmp_path / "empty")):
        with forebay.open_dataset(url, cache_dir=tmp_path / "cache") as ds:
            assert len(ds) == 0
            assert list(ds) == []


def test_a_local_dataset_is_read_in_place(tmp_path: Path, server: FaultServer) -> None:
    """Risk C6: originals are never copied, evicted or removed."""
    put_dataset(server, tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "dataset").iterdir()}
    with forebay.open_dataset(tmp_path / "dataset", cache_dir=tmp_path / "cache", max_cache_bytes=6000) as ds:
        assert list(ds) == expected_items()
        assert ds[-1] == expected_items()[-1]
    assert {path: path.read_bytes() for path in (tmp_path / "dataset").iterdir()} == before
    assert not (tmp_path / "cache").exists()


def test_a_local_compressed_dataset_is_decompressed_into_the_cache(tmp_path: Path, server: FaultServer) -> None:
    """Risk A9, G4: no sleep for a file that nobody makes; the original stays."""
    put_dataset(server, tmp_path, compression="zstd")
    before = sorted(path.name for path in (tmp_path / "dataset").iterdir())
    with forebay.open_dataset(tmp_path / "dataset", cache_dir=tmp_path / "cache", max_cache_bytes=6000) as ds:
        assert list(ds) == expected_items()
    assert sorted(path.name for path in (tmp_path / "dataset").iterdir()) == before


def test_no_thread_of_ours_outlives_the_last_dataset(server: FaultServer, tmp_path: Path) -> None:
    """Nothing of ours is left running after close."""
    put_dataset(server, tmp_path)
    code = (
        "import sys, threading, forebay\n"
        "for _ in range(3):\n"
        "    with forebay.open_dataset(sys.argv[1], cache_dir=sys.argv[2]) as ds:\n"
        "        assert len(list(ds)) == 40\n"
        "    for thread in threading.enumerate():\n"
        "        if thread is not threading.main_thread():\n"
        "            thread.join(5)\n"
        "    print([thread.name for thread in threading.enumerate()])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, server.url(), tmp_path / "cache"], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "['MainThread']\n" * 3, done.stderr


@pytest.mark.parametrize("reading", ["next(iter(ds))", "list(ds)", "pass"])
def test_the_process_exits_quietly_where_no_thread_starts_any_more(
    server: FaultServer, tmp_path: Path, reading: str
) -> None:
    """Risk J11: Python 3.12 starts no thread once the interpreter ends; what was left open is closed all the same."""
    put_dataset(server, tmp_path)
    code = f"""
import atexit, sys, threading
import forebay
def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")
ds = forebay.open_dataset(sys.argv[1], cache_dir=sys.argv[2])
{reading}
atexit.register(setattr, threading.Thread, "start", refuse)  # called first
"""
    for _ in range(2):  # the second one has the index
        done = subprocess.run(
            [sys.executable, "-c", code, server.url(), tmp_path / "cache"], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert leases(tmp_path / "cache") == 0


def test_close_in_the_middle_of_a_take_leaves_no_lease(
    server: FaultServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Risk C10: a reader that is handed a chunk while another thread closes the dataset; the counts must agree."""
    put_dataset(server, tmp_path)
    cache = tmp_path / "cache"
    previous = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with forebay.open_dataset(server.url(), cache_dir=cache) as kept:  # the process stays a holder
            list(kept)
            for round_ in range(60):
                ds = forebay.open_dataset(server.url(), cache_dir=cache, prefetch=4)
                unexpected: list[BaseException] = []

                def read(ds: Any = ds, unexpected: list[BaseException] = unexpected) -> None:
                    try:
                        for _ in range(50):
                            list(ds)
                    except exceptions.PrefetchClosedError:
                        return
                    except BaseException as error:  # noqa: BLE001 - the main thread shows it
                        unexpected.append(error)

                reader = threading.Thread(target=read)
                reader.start()
                reader.join(0.001 * (round_ % 12))
                ds.close()
                reader.join(60)
                assert not reader.is_alive()
                assert unexpected == []
            assert leases(cache) == 0
    finally:
        sys.setswitchinterval(previous)
    assert "more often than taken" not in caplog.text
