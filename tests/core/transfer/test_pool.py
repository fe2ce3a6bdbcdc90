"""Daemon threads for blocking calls: bounded, abandoned when they never end, gone after a fork."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time

import pytest
from servers.transfer_kit import with_pool

from forebay._transfer import DaemonPool
from forebay._transfer._pool import _WORKERS
from forebay.exceptions import PrefetchClosedError
from forebay.testing import run_async


def test_results_errors_and_reuse() -> None:
    def use(pool: DaemonPool) -> None:
        async def main() -> None:
            assert await asyncio.gather(*(pool.run(lambda n: n * n, n) for n in range(50))) == [
                n * n for n in range(50)
            ]
            for call in (pool.run, pool.work):
                with pytest.raises(KeyError, match="x"):
                    await call(dict[str, int]().__getitem__, "x")
                with pytest.raises(RuntimeError, match="StopIteration"):
                    await call(next, iter(()))

        run_async(main())

    with_pool(use)


def test_bound_holds_and_calls_overlap() -> None:
    running = most = 0
    lock, full = threading.Lock(), threading.Barrier(4)

    def call() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        full.wait(60)
        with lock:
            running -= 1

    async def main() -> None:
        pool = DaemonPool("test-bound", 4)
        await asyncio.gather(*(pool.run(call) for _ in range(12)))
        assert pool.close(60.0) == []

    run_async(main())
    assert most == 4


def test_abandoned_call_frees_its_place_and_is_named_at_close() -> None:
    started, release = threading.Event(), threading.Event()

    def stuck() -> None:
        started.set()
        release.wait(60)

    async def main() -> None:
        pool = DaemonPool("test-stuck", 1)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(pool.run(stuck))
            assert await asyncio.to_thread(started.wait, 30)
            task.cancel()
        assert await pool.run(lambda: 5) == 5
        begin = time.monotonic()
        names = pool.close(0.1)
        assert time.monotonic() - begin < 20.0
        assert names == ["test_abandoned_call_frees_its_place_and_is_named_at_close.<locals>.stuck"]
        with pytest.raises(PrefetchClosedError):
            await pool.run(lambda: 5)
        assert await pool.work(lambda: 6) == 6

    try:
        run_async(main())
    finally:
        release.set()


def test_close_drops_what_waits() -> None:
    started, release = threading.Event(), threading.Event()

    def stuck() -> bool:
        started.set()
        return release.wait(60)

    async def main() -> None:
        pool = DaemonPool("test-drop", 1)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(pool.run(stuck))
            assert await asyncio.to_thread(started.wait, 30)
            waiting = asyncio.ensure_future(pool.run(lambda: 1))
            second = group.create_task(asyncio.wait([waiting]))
            await asyncio.sleep(0)  # a task runs up to its first wait in one turn of the loop: the call is queued
            assert len(pool.close(0.0)) == 1
            (done,), _ = await second
            assert isinstance(done.exception(), PrefetchClosedError)
            release.set()
            assert await first is True

    run_async(main())


def test_close_does_the_work_that_waits() -> None:
    """Risk C10: the clean-up of a transfer was dropped with the queue, and its descriptor stayed open."""
    started, release = threading.Semaphore(0), threading.Event()
    cleaned = threading.Event()

    def busy() -> None:
        started.release()
        release.wait(60)

    async def main() -> None:
        pool = DaemonPool("test-keep")
        async with asyncio.TaskGroup() as group:
            for _ in range(_WORKERS):
                group.create_task(pool.work(busy))
            for _ in range(_WORKERS):
                assert await asyncio.to_thread(started.acquire, timeout=30)
            group.create_task(pool.work(cleaned.set))
            await asyncio.sleep(0)  # it is queued now
            assert len(pool.close(0.0)) == _WORKERS + 1
            release.set()
        assert cleaned.is_set()

    try:
        run_async(main())
    finally:
        release.set()


def test_a_thread_that_cannot_be_had_is_waited_for_or_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Risk C10: the caller got the error, and the call was made all the same, for nobody: it took a lease, say."""
    started, release = threading.Event(), threading.Event()
    made: list[str] = []

    def stuck() -> bool:
        started.set()
        return release.wait(60)

    def none_left(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        pool = DaemonPool("test-none", 2)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", none_left)
            with pytest.raises(RuntimeError, match="new thread"):
                await pool.run(made.append, "alone")
        first = asyncio.ensure_future(pool.run(stuck))
        assert await asyncio.to_thread(started.wait, 30)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", none_left)
            second = asyncio.ensure_future(pool.run(made.append, "behind the first"))
            await asyncio.sleep(0)
            first.cancel()
            await asyncio.wait([first])
            release.set()
            await asyncio.wait([second])
        assert first.cancelled()
        assert second.exception() is None
        pool.close(1.0)

    try:
        run_async(main())
    finally:
        release.set()
    assert made == ["behind the first"]


def test_work_has_ended_when_a_cancelled_caller_goes_on() -> None:
    """Else a descriptor that the caller closes could be written to under its next owner."""
    started, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        started.set()
        go_on.wait(60)  # work that cannot be interrupted
        ended.set()

    async def main() -> None:
        pool = DaemonPool("test-work")
        async with asyncio.TaskGroup() as group:

            async def caller() -> None:
                try:
                    await pool.work(call)
                finally:
                    assert ended.is_set()

            task = group.create_task(caller())
            assert await asyncio.to_thread(started.wait, 60)
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0)  # one turn of the loop, in which the caller hears of it
                assert not task.done()
            go_on.set()
        assert task.cancelled()
        pool.close(1.0)

    try:
        run_async(main())
    finally:
        go_on.set()


EXIT = """
import asyncio, threading
from forebay._transfer import DaemonPool
from forebay._transfer._pool import _WORKERS
started = threading.Event()
def stuck():
    started.set()
    threading.Event().wait()
async def main():
    pool = DaemonPool("stuck")
    task = asyncio.ensure_future(pool.run(stuck))
    await asyncio.to_thread(started.wait)
    task.cancel()
    await asyncio.wait([task])
    print(len(pool.close(0.0)))
asyncio.run(main())
"""


def test_interpreter_exits_with_a_call_that_never_returns_a11() -> None:
    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


FORK = """
import asyncio, os, threading
from forebay._transfer import DaemonPool
from forebay._transfer._pool import _WORKERS
pool = DaemonPool("forked", 2)
hold, inside = threading.Event(), threading.Event()
both = threading.Semaphore(0)
def held():
    both.release()
    hold.wait()
async def parent():
    tasks = [asyncio.ensure_future(pool.run(held)) for _ in range(2)]
    assert await pool.work(int, "7") == 7
    for _ in tasks:
        await asyncio.to_thread(both.acquire)
    inside.set()
    await asyncio.gather(*tasks)
async def child():
    async with asyncio.timeout(60):
        assert await pool.run(int, "5") == 5
        assert await pool.work(int, "6") == 6
    assert pool.close(1.0) == []
# The loop of the parent runs in a thread, which the child does not have: the child has only a copy of its descriptors,
# and reading from the shared ones would take the parent's wake-ups away.
thread = threading.Thread(target=asyncio.run, args=(parent(),))
thread.start()
assert inside.wait(60)
pid = os.fork()
if pid == 0:
    code = 1
    try:
        asyncio.run(child())
        code = 42
    finally:
        os._exit(code)
_, status = os.waitpid(pid, 0)
hold.set()
thread.join()
print(os.waitstatus_to_exitcode(status), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_child_starts_anew_j1_j6() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=90, check=False)
    assert done.stdout.splitlines() == ["42"], done.stderr
