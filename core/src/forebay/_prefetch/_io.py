"""The one I/O thread of a process: an event loop that starts at first use and is joined at exit.

Every task on it is owned by one `asyncio.TaskGroup`; what a task raises goes to the future of whoever asked for it,
never into the group, so that one failed chunk takes nobody down. A forked child starts with no thread and makes its
own.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from forebay import _collector, _config
from forebay._mutex import Mutex
from forebay.exceptions import PrefetchClosedError, WorkerCrashedError

__all__ = [
    "IOFuture",
    "IOThread",
    "after_exit",
    "before_exit",
    "close_idle_thread",
    "io_thread",
    "keep_thread",
    "wait_for",
]

T = TypeVar("T")
logger = logging.getLogger("forebay")

#: Seconds that `IOThread.close` waits for the loop to end.
CLOSE_DEADLINE = 3.0
#: Seconds that one callback may keep the loop before waiting callers are told.
STUCK_AFTER = 30.0
#: Seconds between two looks at whether the thread is alive, while a caller waits for it.
LIVENESS_INTERVAL = 1.0
#: Seconds without such a look after which nothing can be said of the time since the one before.
PAUSE = 5.0

_CANCELLED = "cancelled: the dataset or the engine was closed"


class IOFuture(Future[T]):
    """The result of a task on the I/O thread; ``stop`` cancels the task."""

    _thread: IOThread | None = None
    _task: asyncio.Task[None] | None = None
    _stopped = False

    def attach(self, thread: IOThread, task: asyncio.Task[None]) -> None:
        """Bind the task; called on the loop."""
        self._thread, self._task = thread, task
        if self._stopped:
            task.cancel()

    def stop(self) -> None:
        """Cancel the task, or the wait for it to start; safe from any thread, and after its end."""
        self._stopped = True
        if self._task is None or self._thread is None:
            self.cancel()
        elif not self.done():
            with suppress(PrefetchClosedError):  # the thread has ended, and the task with it
                self._thread.call_soon(self._task.cancel)


class IOThread:
    """A daemon thread with an event loop. Use `io_thread` to get the process's own."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked = self._turned = self._looked = _config.monotonic()
        self._thread = threading.Thread(target=self._run, name="forebay-io", daemon=True)
        self._thread.start()
        self._started.wait(CLOSE_DEADLINE)
        if self._loop is None:
            raise WorkerCrashedError("the I/O thread did not start")

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The thread's event loop."""
        assert self._loop is not None
        return self._loop

    @property
    def alive(self) -> bool:
        """Whether tasks can run."""
        return not self._closed and self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> IOFuture[T]:
        """Run the coroutine that ``make`` returns on the loop."""
        future: IOFuture[T] = IOFuture()
        self.call_soon(self._start, make, future)
        return future

    def check(self) -> None:
        """Make sure that the loop turns.

        Raises:
            WorkerCrashedError: The thread died, or something on it has blocked for `STUCK_AFTER` seconds.
        """
        if not self.alive:
            raise WorkerCrashedError("the I/O thread died; open the dataset again")
        before, self._looked = self._looked, _config.monotonic()
        now = self._looked
        # Where nobody looked for so long, the process may have been stopped, and the loop with it: it is asked anew.
        if self._turned >= self._asked or now - before > PAUSE:
            self._asked = now
            self.call_soon(self._note_turn)
        elif now - self._asked > STUCK_AFTER:
            raise WorkerCrashedError(
                f"the I/O thread has not turned for {now - self._asked:.0f} s: something blocks it, at {self._where()};"
                " an async hook of a downloader must not block (use await, or the sync hook)"
            )

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Call ``callback`` on the loop.

        Raises:
            PrefetchClosedError: The thread has ended.
        """
        if not self.alive:
            raise PrefetchClosedError("the I/O thread is closed")
        try:
            self.loop.call_soon_threadsafe(callback, *args)
        except RuntimeError as exc:  # closed between the check and the call
            raise PrefetchClosedError("the I/O thread is closed") from exc

    def nudge(self, callback: Callable[[], None]) -> None:
        """`call_soon` for the collector: takes no lock, and is dropped without a word where the thread has ended."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(callback)

    def close(self, deadline: float = CLOSE_DEADLINE) -> None:
        """Cancel every task, wait for them, end the loop and join the thread."""
        if self._closed or self._stop is None:
            return
        self._closed = True
        try:
            self.loop.call_soon_threadsafe(self._stop.set)
        except RuntimeError:  # the loop has ended by itself
            return
        if not self.is_current:
            self._thread.join(deadline)
            if self._thread.is_alive():
                logger.warning("the I/O thread did not end within %.1f s and is abandoned", deadline)

    def _note_turn(self) -> None:
        self._turned = _config.monotonic()

    def _where(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"

    def _start(self, make: Callable[[], Coroutine[Any, Any, T]], future: IOFuture[T]) -> None:
        assert self._group is not None
        if self._closed or not future.set_running_or_notify_cancel():
            future.cancel()
            return
        task = self._group.create_task(self._forward(make, future))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, future))
        future.attach(self, task)

    def _ended(self, future: Future[T], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not future.done():  # cancelled before its first step: nothing of `_forward` has run
            future.set_exception(PrefetchClosedError(_CANCELLED))

    @staticmethod
    async def _forward(make: Callable[[], Coroutine[Any, Any, T]], future: Future[T]) -> None:
        try:
            result = await make()
        except asyncio.CancelledError:
            future.set_exception(PrefetchClosedError(_CANCELLED))
            raise
        except BaseException as exc:  # noqa: BLE001 - the edge of a thread: everything belongs to the waiting caller
            future.set_exception(exc)
        else:
            future.set_result(result)

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            runner.run(self._main())

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._started.set()
            await self._stop.wait()
            for task in list(self._tasks):
                task.cancel()


_lock = Mutex()
_current: IOThread | None = None
_kept = False
_before_exit: list[Callable[[], None]] = []
_after_exit: list[Callable[[], None]] = []


def io_thread() -> IOThread:
    """Return the I/O thread of this process, started if need be."""
    global _current
    with _lock:
        thread = _current
        if thread is None or not thread.alive:
            thread = IOThread()
            before, _current = _current, thread
            if before is not None:  # the dead one, or what a finalizer that ran meanwhile made for itself
                before.close()
            _collector.serve()  # what was forgotten while there was no thread to do it
        return thread


def keep_thread() -> None:
    """Let the I/O thread live to the end of the process, for work that comes in single calls."""
    global _kept
    _kept = True


def close_idle_thread() -> None:
    """End the I/O thread, unless `keep_thread` was asked for; the next use starts another."""
    global _current
    with _lock:
        thread = None if _kept else _current
        if thread is not None:
            _current = None
    if thread is not None:
        thread.close()
        _collector.serve()  # what was forgotten last reached a loop that had ended


def before_exit(callback: Callable[[], None]) -> None:
    """Call ``callback`` at interpreter exit while the I/O thread still serves: drivers let go of what they hold."""
    _before_exit.append(callback)


def after_exit(callback: Callable[[], None]) -> None:
    """Call ``callback`` at interpreter exit, once the I/O thread has ended and nothing of ours runs any more."""
    _after_exit.append(callback)


def wait_for(future: Future[T], thread: IOThread, timeout: float | None = None) -> T:
    """Wait for a result of the I/O thread, however long it works, and never for a dead thread.

    Raises:
        FutureTimeoutError: ``timeout`` seconds have passed.
        WorkerCrashedError: The thread died, or something blocks it.
        PrefetchClosedError: The thread, or what the future stands for, was closed.
    """
    if thread.is_current:
        raise WorkerCrashedError("a blocking call of forebay was made on forebay's own I/O thread")
    deadline = None if timeout is None else _config.monotonic() + timeout
    while True:
        left = LIVENESS_INTERVAL if deadline is None else deadline - _config.monotonic()
        done, _ = wait([future], max(min(left, LIVENESS_INTERVAL), 0.0))
        if done:
            break
        if deadline is not None and _config.monotonic() >= deadline:
            raise FutureTimeoutError
        thread.check()
    try:
        return future.result()
    except FutureCancelledError as exc:
        raise PrefetchClosedError(_CANCELLED) from exc


def _nudge(callback: Callable[[], None]) -> None:
    thread = _current
    if thread is not None:
        thread.nudge(callback)


def _close_at_exit() -> None:
    if not _collector.finish(CLOSE_DEADLINE):
        logger.warning("what was forgotten did not close within %.1f s and is abandoned", CLOSE_DEADLINE)
    for callback in list(_before_exit):
        try:
            callback()
        except Exception:  # a stranger's driver; the others are closed all the same
            logger.warning("closing at exit failed", exc_info=True)
    if _current is not None:
        _current.close()
    for callback in list(_after_exit):
        callback()


def _forget_after_fork() -> None:
    # The thread does not exist in the child.
    global _current, _kept
    _current = None
    _kept = False


_collector.wake_with(_nudge)
atexit.register(_close_at_exit)
os.register_at_fork(after_in_child=_forget_after_fork)
