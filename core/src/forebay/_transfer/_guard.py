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
    timer: asyncio.TimerHandle | None = None

    def tick() -> None:
        nonlocal timer
        if scope.expired():
            return
        if progress is not None:
            scope.reschedule(max(progress() + limit, loop.time()))
        if beat is not None:
            beat()
        timer = loop.call_later(interval, tick)

    try:
        async with asyncio.timeout(limit) as scope:
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
