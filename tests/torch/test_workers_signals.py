"""Ctrl-C, SIGTERM and leaving early: the process ends at once, quietly, and leaves nothing (J11, J12, A11)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from servers.datasets import put_dataset
from servers.loaders import all_gone
from servers.process import wait_until

import forebay
from forebay.testing import Fault, FaultServer, Gate

pytestmark = pytest.mark.slow

#: Within so many seconds everything has ended; five on a machine that does nothing else.
DEADLINE = 10.0

SCRIPT = """
import os, signal, sys
from servers.loaders import as_pairs
from forebay.torch import StreamingDataLoader, StreamingDataset

if __name__ == "__main__":
    url, cache, method, what = sys.argv[1:]
    dataset = StreamingDataset(url, cache_dir=cache)
    loader = StreamingDataLoader(
        dataset, batch_size=2, num_workers=2, collate_fn=as_pairs, multiprocessing_context=method
    )
    if what == "graceful":
        signal.signal(signal.SIGINT, lambda *_: os.write(1, b"saved\\n"))  # it may come in the midst of a print
    print(flush=True)
    try:
        held = iter(loader) if what == "hold" else loader
        for number, batch in enumerate(held):
            if number == 3 and what in ("stop", "hold"):
                os.kill(batch[0][1], signal.SIGSTOP)
            print(batch[0][1], flush=True)
            if number == 3 and what in ("break", "exit", "stop", "hold"):
                if what in ("exit", "hold"):
                    sys.exit(3)
                break
    except KeyboardInterrupt:
        if what != "wait":
            raise
        print("interrupted", flush=True)
        sys.exit(4)
"""


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def server(tmp_path: Path, gate: Gate) -> Iterator[FaultServer]:
    """After the first five batches the store stalls, until the gate opens."""
    with FaultServer() as running:
        for name in put_dataset(running, tmp_path)[2:]:
            running.script(name, Fault(gate=gate), times=None)
        yield running
        gate.open()


class Program:
    """The script as the leader of a process group, as a terminal starts it."""

    def __init__(self, server: FaultServer, folder: Path, method: str, what: str) -> None:
        script = folder / "script.py"
        script.write_text(SCRIPT)
        self.cache = folder / "cache"
        self.process = subprocess.Popen(
            [sys.executable, script, server.url(), self.cache, method, what],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.finish()
        return line.strip()

    def family(self) -> set[int]:
        """The process and all that it started."""
        leader = psutil.Process(self.process.pid)
        return {leader.pid, *(child.pid for child in leader.children(recursive=True))}

    def finish(self) -> tuple[int, str, str]:
        """Wait until it ends by itself; return its code and what it said."""
        try:
            out, err = self.process.communicate(timeout=60)
        finally:
            self.process.kill()
        return self.process.returncode, out, err


def assert_clean(cache: Path) -> None:
    with forebay.ChunkCache(cache) as observer:

        def nothing_is_held() -> bool:
            observer.gc()
            return observer.info().leases == 0

        wait_until(nothing_is_held, deadline=5, what="the end of every lease")
        assert observer.verify() == []
    assert not list((cache / "chunks").rglob("*.tmp"))


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize(
    ("number", "to_group"), [(signal.SIGINT, True), (signal.SIGTERM, False)], ids=["ctrl-c", "term"]
)
def test_signal_while_workers_wait(
    server: FaultServer, tmp_path: Path, method: str, number: signal.Signals, to_group: bool
) -> None:
    """J11: Ctrl-C goes to every process of the terminal, SIGTERM to the trainer alone."""
    program = Program(server, tmp_path, method, "wait")
    program.line()
    pids = {int(program.line()) for _ in range(4)}
    family = program.family()
    assert len(pids) == 2
    assert pids <= family
    begin = time.monotonic()
    (os.killpg if to_group else os.kill)(program.process.pid, number)
    code, out, err = program.finish()
    all_gone(family)
    assert time.monotonic() - begin < DEADLINE
    # What forked workers say of their other driver is no matter here; a traceback is.
    assert "Traceback" not in err
    assert "Exception" not in err
    if to_group:
        assert (code, out.split()[-1]) == (4, "interrupted")
    else:
        assert code == -signal.SIGTERM
    assert_clean(tmp_path / "cache")


def test_trainer_that_goes_on_after_ctrl_c_has_its_workers(server: FaultServer, tmp_path: Path, gate: Gate) -> None:
    """J11: a trainer that saves its state, or ends the epoch, at Ctrl-C; the terminal tells the workers too."""
    program = Program(server, tmp_path, "forkserver", "graceful")
    program.line()
    for _ in range(4):
        program.line()
    os.killpg(program.process.pid, signal.SIGINT)
    said = 0  # batches that were under way
    while program.line() != "saved":
        said += 1
    gate.open()
    code, out, err = program.finish()
    assert (code, said + len(out.split()), err) == (0, 16, "")


def test_ctrl_c_while_workers_start(server: FaultServer, tmp_path: Path) -> None:
    """J11: a spawned interpreter that is just starting would say so with a traceback.

    Python's fork server, interrupted in its own first second, does; its signals are not ours to change.
    """
    program = Program(server, tmp_path, "spawn", "wait")
    program.line()
    leader = psutil.Process(program.process.pid)
    wait_until(lambda: len(leader.children(recursive=True)) >= 2, deadline=30, what="the first child")
    family = program.family()
    begin = time.monotonic()
    os.killpg(program.process.pid, signal.SIGINT)
    code, out, err = program.finish()
    all_gone(family)
    assert time.monotonic() - begin < DEADLINE
    assert (code, out.strip()) == (4, "interrupted")
    assert "Traceback" not in err, err


@pytest.mark.parametrize("what", ["break", "exit"])
@pytest.mark.parametrize("method", ["forkserver"])
def test_leaving_early_is_quiet(server: FaultServer, tmp_path: Path, method: str, what: str) -> None:
    """J12, A11: while workers wait for chunks that do not come."""
    program = Program(server, tmp_path, method, what)
    program.line()
    for _ in range(4):
        program.line()
    begin = time.monotonic()
    code, _, err = program.finish()
    assert time.monotonic() - begin < 8  # torch gives each worker five seconds, one after the other
    assert (code, err) == (3 if what == "exit" else 0, "")
    assert_clean(tmp_path / "cache")


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("what", ["stop", "hold", "wait"], ids=["break", "exit", "ctrl-c"])
def test_leaving_while_a_worker_is_stopped(server: FaultServer, tmp_path: Path, method: str, what: str) -> None:
    """J11, J12: SIGTERM does not reach a stopped process, and multiprocessing waits for it without a deadline."""
    program = Program(server, tmp_path, method, what)
    program.line()
    pids = [int(program.line()) for _ in range(4)]
    family = program.family()
    begin = time.monotonic()
    try:
        if what == "wait":
            os.kill(pids[-1], signal.SIGSTOP)
            os.killpg(program.process.pid, signal.SIGINT)
        code, _, err = program.finish()
        assert time.monotonic() - begin < 8  # two seconds to end by itself, one to follow SIGTERM; the rest is Python's
        all_gone(family)
    finally:
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert code == {"stop": 0, "hold": 3, "wait": 4}[what]
    assert "Traceback" not in err
    assert_clean(tmp_path / "cache")


HOLD_LEDGER = """
import os, signal, sqlite3, sys, threading
from forebay.torch import StreamingDataLoader, StreamingDataset

def hold(items):
    connection = sqlite3.connect(os.environ["LEDGER"], isolation_level=None, timeout=30)
    connection.execute("BEGIN IMMEDIATE")
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

if __name__ == "__main__":
    url, cache = sys.argv[1:]
    dataset = StreamingDataset(url, cache_dir=cache)
    next(iter(dataset))  # this process is a user of the cache, too
    os.environ["LEDGER"] = os.path.join(cache, "ledger.sqlite")
    batches = iter(StreamingDataLoader(dataset, batch_size=2, num_workers=1, collate_fn=hold))
    sys.stdin.read(1)
    sys.exit(3)
"""


def test_a_worker_that_is_stopped_with_the_ledger_locked_does_not_hold_up_the_exit(
    server: FaultServer, tmp_path: Path, gate: Gate
) -> None:
    """Risk J11: datasets were closed before workers were ended, and what they give back waited for the lock."""
    gate.open()
    script = tmp_path / "script.py"
    script.write_text(HOLD_LEDGER)
    with subprocess.Popen(
        [sys.executable, script, server.url(), tmp_path / "cache"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    ) as trainer:
        assert trainer.stdout is not None
        worker = psutil.Process(int(trainer.stdout.readline()))
        wait_until(lambda: worker.status() == psutil.STATUS_STOPPED, deadline=30, what="the worker's stop")
        begin = time.monotonic()
        _, err = trainer.communicate("x", timeout=60)
        assert time.monotonic() - begin < DEADLINE
        assert (trainer.returncode, err) == (3, "")
    all_gone({worker.pid})
    assert_clean(tmp_path / "cache")
