"""A worker that is killed or fails: the loop hears of it at once, as what it is, and the loader goes on afterwards."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from servers.datasets import put_dataset
from servers.loaders import (
    Broken,
    BrokenDownloader,
    all_gone,
    as_pairs,
    die_at_start,
    die_with,
    indices,
    raise_stranger,
)
from servers.process import wait_until

import forebay
from forebay import exceptions
from forebay.testing import Fault, FaultServer, Gate
from forebay.torch import StreamingDataLoader, StreamingDataset, _workers

METHODS = ["fork", "forkserver", "spawn"]
#: Within so many seconds the loop hears of a dead worker.
DEADLINE = 5.0

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]


@pytest.fixture
def dataset(server: FaultServer, tmp_path: Path) -> Iterator[StreamingDataset]:
    """40 items in 8 chunks, and the cache directory ``cache`` beside."""
    put_dataset(server, tmp_path)
    with StreamingDataset(server.url(), cache_dir=tmp_path / "cache") as opened:
        yield opened


def assert_clean(cache: Path) -> None:
    """No dead one's lease, reservation or temporary file is left once somebody looks after it."""
    gc.collect()  # persistent workers live as long as their loader, which an error may hold
    with forebay.ChunkCache(cache) as observer:

        def nothing_is_held() -> bool:
            observer.gc()
            return observer.info().leases == 0

        # The last threads of a killed process may close its files a moment after it counts as ended.
        wait_until(nothing_is_held, deadline=5, what="the end of every lease")
        assert observer.verify() == []
    assert not list((cache / "chunks").rglob("*.tmp"))


def read(loader: StreamingDataLoader) -> list[int]:
    return sorted(index for batch in loader for index, _ in batch)


@pytest.mark.parametrize("method", METHODS)
def test_killed_worker(dataset: StreamingDataset, tmp_path: Path, method: str) -> None:
    """The loader raises within five seconds, nothing is left running, the cache is clean, the loader works again."""
    loader = StreamingDataLoader(
        dataset, batch_size=2, num_workers=2, collate_fn=as_pairs, multiprocessing_context=method
    )
    pids: set[int] = set()
    begin = 0.0
    said = r"worker \d \(pid \d+\) was killed by SIGKILL.*memory"
    with pytest.raises(exceptions.WorkerCrashedError, match=said) as caught:  # noqa: PT012
        for batch in loader:
            pids |= {pid for _, pid in batch}
            if len(pids) == 2 and not begin:
                os.kill(batch[0][1], signal.SIGKILL)
                begin = time.monotonic()
    assert time.monotonic() - begin < DEADLINE
    all_gone(pids, DEADLINE)  # also while the error, and with it the loop's frame, is kept
    assert caught.value.__suppress_context__, "one error, not a chain of torch's"
    if method != "spawn":  # each takes seconds to start
        assert read(loader) == list(range(40))
    assert_clean(tmp_path / "cache")


@pytest.mark.parametrize("what", ["nothing", "result queue", "half a message", "done event"])
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_killed_worker_leaves_something_that_others_wait_for(
    dataset: StreamingDataset, tmp_path: Path, method: str, what: str
) -> None:
    """A killed process frees no lock of multiprocessing's, and ends no message that it began."""
    collate = die_with(what, tmp_path / "once")
    loader = StreamingDataLoader(
        dataset, batch_size=4, num_workers=2, collate_fn=collate, multiprocessing_context=method, timeout=60
    )
    pids: set[int] = set()
    begin = time.monotonic()
    with pytest.raises(exceptions.WorkerCrashedError, match="SIGKILL"):  # noqa: PT012
        for batch in loader:
            pids |= {pid for _, pid in batch}
            begin = time.monotonic()
    assert time.monotonic() - begin < DEADLINE
    all_gone(pids, DEADLINE)
    assert read(loader) == list(range(40))
    assert_clean(tmp_path / "cache")


@pytest.mark.timeout(90)
def test_worker_that_is_ended_while_it_looks_whether_it_should_end(
    dataset: StreamingDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Risk C10: it held the lock of the event, which torch takes once more; the loop that was left never went on."""
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context="fork")
    delivered = iter(loader)
    next(delivered)
    (inner,) = (one for one in gc.get_objects() if type(one) is _workers.WatchfulIter)
    end_now = _workers._end_now
    done: Any = inner._workers_done_event

    def ended(workers: Sequence[BaseProcess]) -> None:
        end_now(workers)
        holder = threading.Thread(target=done._cond.acquire)  # nobody will ever release it
        holder.start()
        holder.join(30)

    monkeypatch.setattr(_workers, "_end_now", ended)
    _workers.end(inner)
    assert inner.ended


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_worker_killed_between_two_batches_does_not_interrupt_the_loop(dataset: StreamingDataset, method: str) -> None:
    """torch raises from a signal handler, at whatever line the training loop is; here the next batch does."""
    loader = StreamingDataLoader(
        dataset, batch_size=4, num_workers=1, collate_fn=as_pairs, multiprocessing_context=method
    )
    batches = iter(loader)
    pid = next(batches)[0][1]
    os.kill(pid, signal.SIGKILL)
    if method == "fork":
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # then SIGCHLD was sent
    all_gone({pid})
    with pytest.raises(exceptions.WorkerCrashedError):
        list(batches)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_killed_persistent_worker(dataset: StreamingDataset, tmp_path: Path, method: str) -> None:
    """A loader whose persistent workers are gone starts others; killed in an epoch, or between two."""
    loader = StreamingDataLoader(
        dataset,
        batch_size=4,
        num_workers=2,
        collate_fn=die_with("nothing", tmp_path / "once"),
        multiprocessing_context=method,
        persistent_workers=True,
    )
    with pytest.raises(exceptions.WorkerCrashedError):
        read(loader)
    assert read(loader) == list(range(40))
    pids = {pid for batch in loader for _, pid in batch}
    os.kill(min(pids), signal.SIGKILL)
    all_gone({min(pids)})
    with pytest.raises(exceptions.WorkerCrashedError):
        read(loader)
    all_gone(pids, DEADLINE)
    assert read(loader) == list(range(40))
    del loader
    assert_clean(tmp_path / "cache")


def test_worker_killed_at_its_start(dataset: StreamingDataset) -> None:
    loader = StreamingDataLoader(dataset, num_workers=2, worker_init_fn=die_at_start)
    with pytest.raises(exceptions.WorkerCrashedError, match="worker 1 "):
        list(loader)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (Fault(status=404), exceptions.ObjectNotFoundError, "chunk-0-3.bin"),
        (Fault(status=403), exceptions.AccessDeniedError, "chunk-0-3.bin"),
        (Fault(corrupt_at=60), exceptions.IntegrityError, "chunk-0-3.bin"),
    ],
    ids=["missing", "denied", "corrupt"],
)
def test_errors_of_a_store_reach_the_loop_as_what_they_are(
    server: FaultServer,
    tmp_path: Path,
    workers: int,
    fault: Fault,
    error: type[Exception],
    words: str,
) -> None:
    """A1, A2: class, key and backend; then the loader is usable, and what was missing is read."""
    put_dataset(server, tmp_path, compression="zstd" if fault.corrupt_at else None)
    names = sorted(path.name for path in (tmp_path / "dataset").iterdir())
    broken = names[3]
    server.script(broken, fault, times=None)
    with StreamingDataset(server.url(), cache_dir=tmp_path / "cache") as dataset:
        loader = StreamingDataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=indices)
        got: list[int] = []
        begin = time.monotonic()
        with pytest.raises(error) as caught:
            got.extend(index for batch in loader for index in batch)
        assert time.monotonic() - begin < 30
        assert broken in str(caught.value)
        assert "http" in str(caught.value)
        assert got == list(range(len(got)))
        assert_clean(tmp_path / "cache")  # also while the error, and with it the loop's frame, is kept
        server.unscript()
        assert sorted(index for batch in loader for index in batch) == list(range(40))
    assert_clean(tmp_path / "cache")


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_errors_of_strangers_keep_their_class(
    server: FaultServer, tmp_path: Path, workers: int, persistent: bool
) -> None:
    """A2: raised by a backend of somebody else, and by collate_fn; the loader can be iterated again."""
    put_dataset(server, tmp_path)
    forebay.register_downloader("broken-lake", BrokenDownloader)
    try:
        with StreamingDataset(f"broken-lake:/{tmp_path / 'dataset'}", cache_dir=tmp_path / "lake") as dataset:
            loader = StreamingDataLoader(dataset, batch_size=4, num_workers=workers, persistent_workers=persistent)
            for _ in range(2):
                with pytest.raises(Broken, match=r"chunk-0-0\.bin today"):
                    list(loader)
    finally:
        forebay.unregister_downloader("broken-lake")
    with StreamingDataset(server.url(), cache_dir=tmp_path / "cache") as dataset:
        loader = StreamingDataLoader(
            dataset, batch_size=4, num_workers=workers, collate_fn=raise_stranger, persistent_workers=persistent
        )
        for _ in range(2):
            got: list[list[int]] = []
            with pytest.raises(Broken, match="item 20") as caught:
                got.extend(loader)
            if not persistent:
                assert_clean(tmp_path / "cache")  # also while the error is kept
            del caught
            assert got == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]
        del loader
    assert_clean(tmp_path / "cache")


@pytest.mark.parametrize("workers", [0, 2])
def test_skipped_chunks_make_batches_smaller_and_move_nothing(
    server: FaultServer, tmp_path: Path, workers: int
) -> None:
    names = put_dataset(server, tmp_path)
    server.delete(names[3])  # items 15 to 19
    with StreamingDataset(server.url(), cache_dir=tmp_path / "cache", on_error="skip") as dataset:
        loader = StreamingDataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=indices)
        batches, states = [], []
        for batch in loader:
            batches.append(batch)
            states.append(loader.state_dict())
        assert batches == [
            [0, 1, 2, 3],
            [4, 5, 6, 7],
            [8, 9, 10, 11],
            [12, 13, 14],
            *[list(range(first, first + 4)) for first in range(20, 40, 4)],
        ]
        # Each worker counts what it could not have; both need this chunk.
        assert loader.stats().skipped_chunks == max(workers, 1)
        loader.load_state_dict(states[3])
        assert list(loader) == batches[4:]
        assert len(list(loader)) == 9


def test_workers_that_wait_for_the_store_do_not_hold_up_who_leaves(server: FaultServer, tmp_path: Path) -> None:
    """J14: leaving the loop while a chunk does not come."""
    names = put_dataset(server, tmp_path)
    gate = Gate()
    for name in names[2:]:
        server.script(name, Fault(gate=gate), times=None)
    with StreamingDataset(server.url(), cache_dir=tmp_path / "cache") as dataset:
        loader = StreamingDataLoader(dataset, batch_size=2, num_workers=2, collate_fn=as_pairs)
        for batch in loader:
            pids = {batch[0][1]}
            break
        begin = time.monotonic()
        del batch
        all_gone(pids)
        assert time.monotonic() - begin < DEADLINE
        gate.open()
        assert read(loader) == list(range(40))
    assert_clean(tmp_path / "cache")


SCRIPT = """
import sys, time
from servers.process import wait_until
from servers.loaders import as_pairs
from torch.utils.data import DataLoader
from forebay.torch import StreamingDataLoader, StreamingDataset, _workers

def large(items):
    return [(index, pid, b"x" * 1_000_000) for index, pid in as_pairs(items)]

if __name__ == "__main__":
    url, cache, method, kind = sys.argv[1:]
    dataset = StreamingDataset(url, cache_dir=cache, batch_size=1)
    loader = (StreamingDataLoader if kind == "ours" else DataLoader)(
        dataset, batch_size=1, num_workers=2, collate_fn=large, multiprocessing_context=method, prefetch_factor=8
    )
    for number, batch in enumerate(loader):
        print(batch[0][1], flush=True)
        if number == 1:
            sys.stdin.read()
"""


@pytest.mark.parametrize(("method", "kind"), [("fork", "ours"), ("forkserver", "ours"), ("forkserver", "torch's")])
def test_workers_end_with_a_trainer_that_was_killed(
    server: FaultServer, tmp_path: Path, method: str, kind: str
) -> None:
    """J11: also workers that are writing a batch that nobody will read, each holding the pipe open for the other."""
    put_dataset(server, tmp_path)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, script, server.url(), tmp_path / "cache", method, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    ) as trainer:
        assert trainer.stdout is not None
        pids = {int(trainer.stdout.readline()) for _ in range(2)}
        assert len(pids) == 2
        trainer.kill()
        trainer.wait(10)
        all_gone(pids, 10)
    assert_clean(tmp_path / "cache")
