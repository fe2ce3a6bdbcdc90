"""The I/O thread: errors go to whoever waits, nothing runs on after close, and a dead thread is no hang."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import TimeoutError as FutureTimeoutError

import pytest

from forebay import _config
from forebay._prefetch._io import IOFuture, IOThread, io_thread, wait_for
from forebay.exceptions import PrefetchClosedError, WorkerCrashedError


def test_one_failed_task_takes_no_other_down() -> None:
    """Risk A2, A13: an error in one download is forwarded once, and the engine stays usable."""
    thread = IOThread()
    gate = asyncio.Event()

    async def fails() -> int:
        raise ValueError("the fourth key")

    async def works() -> int:
        await gate.wait()
        return 7

    slow = thread.submit(works)
    with pytest.raises(ValueError, match="the fourth key"):
        wait_for(thread.submit(fails), thread)
    thread.call_soon(gate.set)
    assert wait_for(slow, thread) == 7
    thread.close()


def test_a_tasks_own_timeout_error_is_not_taken_for_the_callers() -> None:
    thread = IOThread()

    async def times_out() -> None:
        raise TimeoutError("of the store")

    with pytest.raises(TimeoutError, match="of the store"):
        wait_for(thread.submit(times_out), thread, 5.0)
    thread.close()


def test_close_cancels_what_runs_and_tells_whoever_waits() -> None:
    thread = IOThread()
    started = threading.Event()
    cleaned = threading.Event()

    async def endless() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    future = thread.submit(endless)
    assert started.wait(60)
    thread.close()
    assert cleaned.wait(60)
    assert not thread.alive
    with pytest.raises(PrefetchClosedError):
        wait_for(future, thread)
    with pytest.raises(PrefetchClosedError):
        thread.submit(endless)


def test_a_wait_has_the_callers_deadline_and_stop_ends_the_task() -> None:
    thread = IOThread()
    cancelled = threading.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    future = thread.submit(endless)
    with pytest.raises(FutureTimeoutError):
        wait_for(future, thread, 0.05)
    future.stop()
    assert cancelled.wait(60)
    thread.close()


def test_stop_before_the_task_started_is_not_lost() -> None:
    thread = IOThread()
    blocker = threading.Event()
    ran = threading.Event()

    async def work() -> None:
        ran.set()
        await asyncio.sleep(3600)

    thread.call_soon(blocker.wait, 60)  # the loop is busy while the task is submitted and stopped
    future = thread.submit(work)
    future.stop()
    blocker.set()
    with pytest.raises(PrefetchClosedError):
        wait_for(future, thread, 60)
    thread.close()


class StoppedAsItStarts(IOFuture[None]):
    """Whoever waits gives up in the moment in which the loop takes the task up."""

    def set_running_or_notify_cancel(self) -> bool:
        started = super().set_running_or_notify_cancel()
        self.stop()
        return started


def test_stop_while_the_task_starts_is_not_lost() -> None:
    """Risk C10: a task that is cancelled before its first step runs nothing that could tell whoever waits for it."""
    thread = IOThread()
    future = StoppedAsItStarts()
    ran = threading.Event()

    async def work() -> None:
        ran.set()

    thread.call_soon(thread._start, work, future)
    with pytest.raises(PrefetchClosedError, match="closed"):
        wait_for(future, thread, 10)
    assert not ran.is_set()
    thread.close()


def test_a_blocking_call_on_the_thread_itself_is_refused() -> None:
    thread = IOThread()

    async def inner() -> None:
        wait_for(thread.submit(asyncio.Event().wait), thread)

    with pytest.raises(WorkerCrashedError, match="own I/O thread"):
        wait_for(thread.submit(inner), thread)
    thread.close()


def test_it_serves_a_caller_inside_a_running_loop() -> None:
    """Risk J10: the sync API works in a notebook, whose loop runs already."""

    async def answer() -> int:
        return 42

    async def main() -> int:
        thread = io_thread()
        return wait_for(thread.submit(answer), thread)

    assert asyncio.run(main()) == 42


def test_a_forked_child_makes_a_thread_of_its_own() -> None:
    """Risk J1: a loop made in the parent is not used in the child."""
    code = """
import os
from forebay._prefetch._io import io_thread, wait_for
async def answer(): return os.getpid()
parent = io_thread()
assert wait_for(parent.submit(answer), parent) == os.getpid()
pid = os.fork()
if pid == 0:
    child = io_thread()
    os._exit(0 if wait_for(child.submit(answer), child, 60) == os.getpid() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=90)


def test_the_interpreter_exits_with_work_under_way() -> None:
    """Risk A11: helper threads that are joined without being told to stop keep the process alive."""
    code = """
import asyncio
from forebay._prefetch._io import io_thread
async def endless(): await asyncio.Event().wait()
for _ in range(10): io_thread().submit(endless)
"""
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=90, capture_output=True, env=os.environ)
    assert time.monotonic() - begin < 50
    assert done.stderr == b""


def test_a_process_that_was_stopped_is_not_taken_for_one_that_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Risk C10: a job that was stopped (Ctrl-Z, a frozen machine) while the loop was busy ended with an error."""
    thread = IOThread()
    busy, go = threading.Event(), threading.Event()

    def hold() -> None:
        busy.set()
        go.wait(60)

    thread.call_soon(hold)
    assert busy.wait(10)
    thread.check()
    clock, passed = _config.monotonic, 60.0
    monkeypatch.setattr(_config, "monotonic", lambda: clock() + passed)
    for _ in range(29):
        thread.check()
        passed += 1.0
    passed += 2.0
    with pytest.raises(WorkerCrashedError, match="has not turned for"):
        thread.check()
    go.set()
    thread.close()
