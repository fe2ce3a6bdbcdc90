"""One object through a hook that writes a file by itself: watched by size, digested afterwards."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

from forebay._retry import RETRYABLE
from forebay._transfer._context import STEP, Context, Slot
from forebay._transfer._digest import file_digest
from forebay._transfer._guard import single_error, stall_guard
from forebay._transfer._intake import NeedRoomError
from forebay._transfer._sink import FileTarget
from forebay.downloader import overrides
from forebay.exceptions import StorageError

__all__ = ["FileHook", "takes_file_hook"]

#: Seconds between two looks at the growing file.
_LOOK = 0.02


def takes_file_hook(context: Context) -> bool:
    """Whether the bytes need nothing on their way, and the downloader has the hook."""
    source = context.source
    return (
        context.async_hooks
        and source.codec is None
        and source.digest is None
        and isinstance(context.sink.target, FileTarget)
        and overrides(source.downloader, "adownload_file")
    )


class FileHook:
    """Runs ``adownload_file`` and sees to it that the file stays within its room."""

    def __init__(self, context: Context, path: Path) -> None:
        self._context = context
        self._path = path
        self._size = 0
        self._moved_at = 0.0
        self._growing: asyncio.Task[None] | None = None
        self._can_grow = False

    async def run(self) -> None:
        """Fetch the file, with as many tries as the policy allows, and enter it into the sink."""
        context = self._context
        expected = context.source.expected_decoded
        if expected is None:
            await self._grow(0)
        else:
            await context.reserve(expected, exact=True)
        trials = context.trials()
        while True:
            try:
                await self._attempt()
                break
            except NeedRoomError as exc:
                await context.pool.work(self._remove)
                await self._grow(exc.total)
            except RETRYABLE as exc:
                if exc is context.room_error:
                    raise
                await context.pause(trials, exc)
                await context.pool.work(self._remove)
            except Exception as exc:
                trials.conclude(exc)
                raise
        trials.succeeded()
        context.sink.adopt(self._size, await context.pool.work(file_digest, self._path))

    async def _attempt(self) -> None:
        context, source = self._context, self._context.source
        expected, most = source.expected_decoded, context.policy.part_size
        context.requests += 1
        self._size, self._moved_at, self._growing = 0, asyncio.get_running_loop().time(), None
        async with Slot(context.limiter, (*context.priority, 0), min(expected or most, most)):
            with single_error():
                async with asyncio.TaskGroup() as group:
                    watch = group.create_task(self._watch(group))
                    message = f"the file of {source.where} did not grow"
                    async with stall_guard(
                        context.policy.timeout, message, progress=lambda: self._moved_at, beat=context.beat
                    ):
                        await source.downloader.adownload_file(source.key, self._path)
                    watch.cancel()
                    if self._growing is not None and (await context.pool.work(self._stat) or 0) <= context.sink.allowed:
                        self._growing.cancel()  # nobody needs what it still waits for
        size = await context.pool.work(self._stat)
        self._judge(size or 0)
        if size is None or (expected is not None and size < expected):
            raise context.too_short(size or 0, expected or 1)

    async def _watch(self, group: asyncio.TaskGroup) -> None:
        context, loop = self._context, asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK)
            size = await context.pool.work(self._stat) or 0
            if size != self._size:
                self._moved_at = loop.time()
            self._judge(size)
            idle = self._growing is None or self._growing.done()
            if self._can_grow and size + STEP > context.sink.allowed and idle:
                self._growing = group.create_task(self._grow(size))

    async def _grow(self, size: int) -> None:
        self._can_grow = await self._context.reserve_beyond(size)

    def _judge(self, size: int) -> None:
        context = self._context
        context.limiter.moved(max(size - self._size, 0))
        self._size = size
        expected = context.source.expected_decoded
        if expected is not None and size > expected:
            raise context.too_long(expected)
        if size > context.sink.allowed:
            raise NeedRoomError(size)

    def _stat(self) -> int | None:
        try:
            found = os.lstat(self._path)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            # What is published is the cache's to evict, and what failed is removed: somebody's original is neither.
            source = self._context.source
            raise StorageError(
                f"adownload_file of {source.where} left a link or a folder in place of a file of its own;"
                " it has to copy the bytes",
                url=source.url,
                key=source.key,
                backend=source.backend,
            )
        return found.st_size

    def _remove(self) -> None:
        # Never truncated: the path may have become a link to a file that is not ours.
        self._path.unlink(missing_ok=True)
