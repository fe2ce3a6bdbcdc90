"""What a whole-body hook writes to: a write target that feeds the sink, from the event loop or from a thread."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import Any

from forebay._transfer._context import STEP, Context, Slot
from forebay.exceptions import StorageError

__all__ = ["Intake", "LoopIntake", "NeedRoomError", "ThreadIntake"]


class NeedRoomError(Exception):
    """A hook was stopped because it wrote faster than room can be had; it starts again with ``total`` bytes of it."""

    def __init__(self, total: int) -> None:
        super().__init__(f"no room for byte {total} yet")
        self.total = total


class Intake(ABC):
    """The ``fileobj`` of one try. It counts, refuses what is too much, and knows when the last byte came."""

    def __init__(self, context: Context, slot: Slot) -> None:
        self.context = context
        self.slot = slot
        #: Bytes that the hook has written.
        self.received = 0
        self.error: Exception | None = None
        self.closed = False
        self.waiting = False
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._limit = context.source.expected_stored

    def progress(self) -> float:
        """When the hook last moved; waiting for room is not its fault."""
        return self._loop.time() if self.waiting else self._last

    @abstractmethod
    def write(self, data: Any, /) -> int:
        """Take ``data``."""

    @abstractmethod
    async def serve(self) -> None:
        """Carry the bytes on, or make room for them, until cancelled or, once `end` was called, all is done."""

    @abstractmethod
    def end(self) -> None:
        """The hook has returned: no more bytes will come."""

    def give_up(self) -> None:
        """Refuse all further writes, and wait for one that is under way; may block shortly."""
        self.closed = True

    def _arrived(self, data: Any) -> memoryview:
        if self.closed:
            raise StorageError(f"this try to read {self.context.source.where} was given up; stop writing to it")
        if self.error is not None:
            raise self.error
        view = memoryview(data).cast("B")
        self._last = self._loop.time()
        self.received += len(view)
        if self._limit is not None and self.received > self._limit:
            self.error = self.context.too_long(self._limit)
            raise self.error
        return view


class LoopIntake(Intake):
    """For async hooks: ``write`` only queues, and helper threads do the work.

    A hook that is faster than they are is slowed down in ``write``; one that runs far ahead of its room is stopped.
    """

    def __init__(self, context: Context, slot: Slot) -> None:
        super().__init__(context, slot)
        self._queue: deque[memoryview] = deque()
        self._taken = 0
        self._most = max(2 * context.policy.part_size, STEP)
        self._news = asyncio.Event()
        self._ended = False
        self._busy = threading.Lock()

    def write(self, data: Any, /) -> int:
        """Queue ``data``, copied where the hook may change it afterwards."""
        view = self._arrived(data)
        if not view.readonly or isinstance(view.obj, bytearray):
            view = memoryview(bytes(view))
        self._queue.append(view)
        self._news.set()
        self.context.limiter.moved(len(view))
        if self.received - self._taken > self._most:
            self._catch_up()
        return len(view)

    def end(self) -> None:
        """No more bytes will come."""
        self._ended = True
        self._news.set()

    async def serve(self) -> None:
        """Write what is queued."""
        while True:
            need = await self.context.pool.work(self._drain)
            if need is None:
                if self._ended and not self._queue:
                    return
                await self._news.wait()
                self._news.clear()
            elif need:
                self.waiting = True
                await self.context.reserve(need, blocked=self.slot.give_up)
                await self.slot.take()
                self._last = self._loop.time()
                self.waiting = False

    def _drain(self) -> int | None:
        with self._busy:
            while (need := self.context.sink.pump()) is None:
                if not self._queue:
                    return None
                view = self._queue.popleft()
                self.context.sink.start(view)
                self._taken += len(view)
            return need

    def _catch_up(self) -> None:
        need: int | None = 0
        while need == 0:
            need = self._drain()
        if need is not None and need > self.context.sink.allowed:
            self.error = NeedRoomError(need)
            raise self.error


class ThreadIntake(Intake):
    """For blocking hooks: ``write`` does the work in the hook's own thread, and waits there for room."""

    def __init__(self, context: Context, slot: Slot) -> None:
        super().__init__(context, slot)
        self._ended = False
        self._wanted = asyncio.Event()
        self._need = 0
        self._granted = threading.Condition()

    def write(self, data: Any, /) -> int:
        """Put ``data`` through the sink."""
        with self._granted:
            view = self._arrived(data)
            sink = self.context.sink
            sink.start(view)
            while (need := sink.pump()) is not None:
                if need > sink.allowed:
                    self._wait_for_room(need)
            self._last = self._loop.time()
        self._loop.call_soon_threadsafe(self.context.limiter.moved, len(view))
        return len(view)

    def end(self) -> None:
        """No more bytes will come."""
        self._ended = True
        self._wanted.set()

    def give_up(self) -> None:
        """Refuse all further writes, and wait for one that is under way; blocks shortly."""
        self.closed = True
        with self._granted:
            self._granted.notify_all()

    async def serve(self) -> None:
        """Make room when the hook's thread asks for it."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            if self._ended:
                return
            await self._grant()

    async def _grant(self) -> None:
        context = self.context
        await context.reserve(self._need, blocked=self.slot.give_up)
        await self.slot.take()
        await context.pool.work(self._wake)

    def _wait_for_room(self, need: int) -> None:
        self._need = need
        self.waiting = True
        self._loop.call_soon_threadsafe(self._wanted.set)
        sink = self.context.sink
        self._granted.wait_for(lambda: sink.allowed >= need or self.closed)
        self.waiting = False
        if self.closed:
            self._arrived(b"")

    def _wake(self) -> None:
        with self._granted:
            self._granted.notify_all()
