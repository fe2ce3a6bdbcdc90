"""Threads for calls that block: daemons, so that a hook which never returns cannot keep the interpreter alive."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from forebay.exceptions import PrefetchClosedError

__all__ = ["DaemonPool"]

T = TypeVar("T")
logger = logging.getLogger("forebay")

#: Threads for our own short work (write, digest, decompress), apart from those that strangers' hooks may block.
_WORKERS = max(2, min(os.cpu_count() or 2, 8))
#: Seconds after which an idle thread ends.
_IDLE = 30.0


@dataclass(slots=True, eq=False)
class _Call:
    function: Callable[..., Any]
    args: tuple[object, ...]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    started: bool = False
    abandoned: bool = False

    @property
    def name(self) -> str:
        """The call in words."""
        function = getattr(self.function, "func", self.function)
        return str(getattr(function, "__qualname__", function))


@dataclass(slots=True, eq=False)
class _Lane:
    """A queue of calls and the threads that serve it, all under one condition.

    ``kept``: what waits when the lane is closed is done all the same.
    """

    name: str
    limit: int
    kept: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)
    queue: deque[_Call] = field(default_factory=deque)
    running: list[_Call] = field(default_factory=list)
    threads: int = 0
    idle: int = 0
    closed: bool = False

    def submit(self, call: _Call) -> None:
        """Queue a call, with a new thread where none is free and the bound allows one."""
        with self.changed:
            if self.closed:
                raise PrefetchClosedError(f"{call.name} was asked for after its threads were closed")
            self.queue.append(call)
            try:
                self._staff()
            except RuntimeError:
                if self.threads <= sum(one.abandoned for one in self.running):  # nobody would ever come for it
                    self.queue.remove(call)
                    raise

    def abandon(self, call: _Call) -> None:
        """Nobody waits for the call any more: forget it, or leave its thread alone and go on without it."""
        with self.changed:
            if not call.started:
                if call in self.queue:
                    self.queue.remove(call)
            elif call in self.running:
                call.abandoned = True
                with suppress(RuntimeError):  # no thread for those that wait: they wait for one of the others
                    self._staff()

    def close(self, deadline: float) -> list[str]:
        with self.changed:
            self.closed = True
            dropped: list[_Call] = []
            if not self.kept:
                dropped, self.queue = list(self.queue), deque()
            self.changed.notify_all()
        for call in dropped:
            _settle(call, None, PrefetchClosedError(f"{call.name} was dropped: its threads were closed"))
        with self.changed:
            self.changed.wait_for(lambda: not self.running and not self.queue, max(deadline - time.monotonic(), 0.0))
            return [call.name for call in (*self.running, *self.queue)]

    def _staff(self) -> None:
        """Wake an idle thread, or start one. Abandoned calls do not count, up to a point: they may never end."""
        if self.idle >= len(self.queue):
            self.changed.notify()
            return
        lost = min(sum(1 for call in self.running if call.abandoned), 3 * self.limit)
        if self.threads - lost < self.limit:
            threading.Thread(target=self._serve, name=self.name, daemon=True).start()
            self.threads += 1

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            result, error = None, None
            try:
                result = call.function(*call.args)
            except BaseException as exc:  # noqa: BLE001 - a thread's edge: the error goes to whoever awaits the call
                error = exc
            with self.changed:
                self.running.remove(call)
                self.changed.notify_all()
            _settle(call, result, error)
            del call, result, error  # a waiting thread keeps nothing alive

    def _next(self) -> _Call | None:
        with self.changed:
            self.idle += 1
            found = self.changed.wait_for(lambda: self.queue or self.closed, _IDLE)
            self.idle -= 1
            if not found or not self.queue:
                self.threads -= 1
                return None
            call = self.queue.popleft()
            call.started = True
            self.running.append(call)
            return call


class DaemonPool:
    """Runs blocking calls for an event loop in a bounded number of daemon threads.

    A call whose awaiter is cancelled is abandoned: its thread goes on alone, its result is dropped, and another thread
    takes its place. After ``fork()`` the child starts with no threads and no calls.

    Args:
        name: The threads' name.
        max_threads: How many calls run at one time.
    """

    def __init__(self, name: str = "forebay", max_threads: int = 64) -> None:
        self._name = name
        self._max_threads = max_threads
        self._closed = False
        self._start_anew()

    def _start_anew(self) -> None:
        self._pid = os.getpid()
        self._calls = _Lane(self._name, self._max_threads, closed=self._closed)
        self._work = _Lane(f"{self._name}-work", _WORKERS, kept=True, closed=self._closed)

    async def run(self, function: Callable[..., T], /, *args: object) -> T:
        """Await ``function(*args)``, which may block for long; cancellation abandons it.

        Raises:
            PrefetchClosedError: The pool is closed.
        """
        call, lane = self._submit(function, args, "_calls")
        try:
            return await call.future  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            lane.abandon(call)
            raise

    async def work(self, function: Callable[..., T], /, *args: object) -> T:
        """Await ``function(*args)``, which is ours and short. It has ended when this returns or raises, always.

        A cancelled caller may thus close or remove what the call worked on. In a closed pool the call runs in line,
        and one that waits as the pool is closed gets its turn, so that clean-up still happens.
        """
        try:
            call, _ = self._submit(function, args, "_work")
        except PrefetchClosedError:
            return function(*args)
        cancelled: asyncio.CancelledError | None = None
        while not call.future.done():
            try:
                await asyncio.wait([call.future])
            except asyncio.CancelledError as exc:
                cancelled = exc
        if cancelled is not None:
            call.future.exception()  # seen: the caller hears of its cancellation
            raise cancelled
        return call.future.result()  # type: ignore[no-any-return]

    def close(self, deadline: float = 2.0) -> list[str]:
        """Drop what waits, give what runs ``deadline`` seconds to end, and return the names of what still runs.

        It blocks; a thread that awaits the pool's calls on its own loop passes 0.
        """
        self._closed = True
        if self._pid != os.getpid():
            self._start_anew()
        until = time.monotonic() + deadline
        return self._calls.close(until) + self._work.close(until)

    def _submit(self, function: Callable[..., Any], args: tuple[object, ...], lane: str) -> tuple[_Call, _Lane]:
        if self._pid != os.getpid():
            self._start_anew()
        loop = asyncio.get_running_loop()
        call = _Call(function, args, loop, loop.create_future())
        chosen: _Lane = getattr(self, lane)
        chosen.submit(call)
        return call, chosen


def _settle(call: _Call, result: object, error: BaseException | None) -> None:
    """Hand a result over to the loop, which may be gone, and to a future that may be cancelled."""
    if call.abandoned:
        logger.debug("the abandoned call %s has ended%s", call.name, f" with {type(error).__name__}" if error else "")
        return
    if isinstance(error, StopIteration):  # a future refuses it
        error = RuntimeError(f"{call.name} raised StopIteration")

    def deliver() -> None:
        if call.future.done():
            return
        if error is not None:
            call.future.set_exception(error)
        else:
            call.future.set_result(result)

    try:
        call.loop.call_soon_threadsafe(deliver)
    except RuntimeError:  # the loop is closed: nobody waits any more
        logger.debug("%s ended after its event loop", call.name)
