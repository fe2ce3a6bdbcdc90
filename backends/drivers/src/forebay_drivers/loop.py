"""An event loop in a thread of its own, for the sync methods of drivers that only have async ones."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["LoopThread"]

T = TypeVar("T")
_CLOSE_DEADLINE = 5.0


class LoopThread:
    """Runs coroutines for blocking callers; started by the first one, once per process, and closed by the owner."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may close what this thread is about to use
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Wait for ``coro``, which has its own deadlines; an interrupt of the caller cancels it."""
        try:
            with self._lock:  # else between the last turns of a loop that is closed, which would leave it where it is
                future = asyncio.run_coroutine_threadsafe(coro, self._start())
        except BaseException:
            coro.close()
            raise
        try:
            return future.result()
        except BaseException:
            # The coroutine's own error (then this does nothing), or Ctrl-C here (then nobody waits for it any more).
            future.cancel()
            raise

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is not None and self._pid == os.getpid():
                return self._loop
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=_serve, args=(loop,), name="forebay-driver", daemon=True)
            thread.start()
            # A loop from before a fork has no thread here and is left alone: its selector is shared with the parent.
            self._loop, self._thread, self._pid = loop, thread, os.getpid()
            return loop

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run ``last`` on the loop, where there is one, and end the thread."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
            ours = self._pid == os.getpid()
        if loop is None or thread is None or not ours:
            last.close()
            return
        future = asyncio.run_coroutine_threadsafe(last, loop)
        try:
            future.result(_CLOSE_DEADLINE)
        except concurrent.futures.TimeoutError:
            future.cancel()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_CLOSE_DEADLINE)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
            loop.run_until_complete(asyncio.wait([task], timeout=_CLOSE_DEADLINE))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
