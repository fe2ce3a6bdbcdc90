"""A deadline that moves with the bytes, and errors out of task groups as themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from forebay.exceptions import StorageTimeoutError

__all__ = ["single_error", "stall_guard"]

#: Seconds between two signs of life.
_BEAT = 5.0


@asynccontextmanager
async def stall_guard(
    limit: float, message: str, *, progress: Callable[[], float] | None = None, beat: Callable[[], None] | None = None
) -> AsyncIterator[None]:
    """Give the block up once ``limit`` seconds have passed since ``progress()`` (None: since the block began).

    Raises:
        StorageTimeoutError: It was given up.
    """
    loop = asyncio.get_running_loop()
    interval = min(limit / 4, _BEAT)
    due = loop.time() + interval
    start = loop.time()
    timer: asyncio.TimerHandle | None = None

    def tick() -> None:
        nonlocal timer, due, start
        now = loop.time()
        # A loop that was held up has not yet seen what came meanwhile: that time does not count against the store.
        if now - due > interval:
            start = now - limit + interval
        elif now - max(start, progress() if progress is not None else start) >= limit:
            scope.reschedule(now)
            return
        if beat is not None:
            beat()
        due = now + interval
        timer = loop.call_later(interval, tick)

    try:
        async with asyncio.timeout(None) as scope:
            timer = loop.call_later(interval, tick)
            try:
                yield
            finally:
                timer.cancel()
    except TimeoutError as exc:
        if scope.expired():
            raise StorageTimeoutError(f"{message} for {limit:g} s") from exc
        raise


@contextmanager
def single_error() -> Iterator[None]:
    """Let the first error of a task group leave as itself: readers wait for that class, not for a group."""
    try:
        yield
    except BaseExceptionGroup as group:
        first = group.exceptions[0]
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from first.__cause__
