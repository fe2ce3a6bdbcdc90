"""One object as ranged parts: several in flight, used in order, all of one version."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from forebay._retry import RETRYABLE
from forebay._transfer._ask import ask
from forebay._transfer._context import Context, Slot
from forebay._transfer._guard import single_error, stall_guard
from forebay._transfer._types import MIB
from forebay.downloader import SupportsRangeRead, overrides
from forebay.exceptions import ObjectChangedError, StorageError, StorageTimeoutError
from forebay.types import ObjectInfo, RangeRead

__all__ = ["Parts", "Pin", "RangeHook", "range_hook", "tells_version"]

logger = logging.getLogger("forebay")

RangeHook = Callable[[int, int, str | None], Awaitable[RangeRead]]

#: A part is one call that shows no progress: a connection that is slower than this makes it look stalled at first.
_SLOW = 1 * MIB
#: The same for a driver that watches each read by itself.
_CRAWL = 16 * 1024


def tells_version(context: Context) -> bool:
    """Whether this downloader says with each range what it is of, as those that give nothing but bytes cannot."""
    return context.async_hooks and isinstance(context.source.downloader, SupportsRangeRead)


def range_hook(context: Context) -> RangeHook | None:
    """The best way of this downloader to read a range; None where each would read the whole body for it."""
    source, downloader = context.source, context.source.downloader
    key = source.key
    if tells_version(context):
        ranged = cast(SupportsRangeRead, downloader)
        return lambda offset, length, if_match: ranged.aread_range(key, offset, length, if_match=if_match)
    if context.async_hooks and overrides(downloader, "adownload_bytes"):

        async def read(offset: int, length: int, _: str | None) -> RangeRead:
            return RangeRead(data=await downloader.adownload_bytes(key, offset, length), info=ObjectInfo(key))

        return read
    if overrides(downloader, "download_bytes"):

        async def read_in_thread(offset: int, length: int, _: str | None) -> RangeRead:
            data = await context.pool.run(downloader.download_bytes, key, offset, length)
            return RangeRead(data=data, info=ObjectInfo(key))

        return read_in_thread
    return None


class Pin:
    """The version that all parts have to be of: the first response sets it."""

    def __init__(self, context: Context, etag: str | None = None) -> None:
        self._where = context.source.where
        self._context = context
        self._etag = etag
        self._version: str | None = None
        self.known = etag is not None

    @property
    def if_match(self) -> str | None:
        """The validator to send, once there is a strong one."""
        return self._etag if self._etag and not self._etag.startswith("W/") else None

    @property
    def strong(self) -> bool:
        """Whether equal validators mean equal bytes."""
        return self.if_match is not None or self._version is not None

    def check(self, info: ObjectInfo, *, asked: bool) -> bool:
        """Compare a response with the first; ``asked`` says that it was asked with the validator.

        Returns:
            False where the response does not say what it is of.

        Raises:
            ObjectChangedError: It is of another version.
        """
        if self._context.etag is None:
            self._context.etag = info.etag
        if not self.known:
            self._etag, self._version = info.etag, info.version
            self.known = True
            return True
        for pinned, seen in ((self._etag, info.etag), (self._version, info.version)):
            if pinned is not None and seen is not None and pinned != seen:
                raise ObjectChangedError(
                    f"{self._where} was replaced while it was read: {pinned} became {seen}",
                    url=self._context.source.url,
                )
        return asked or not self.strong or info.etag is not None or info.version is not None


@dataclass(slots=True, eq=False)
class _Part:
    index: int
    offset: int
    length: int
    granted: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    used: asyncio.Event = field(default_factory=asyncio.Event)
    data: bytes | bytearray | memoryview = b""
    task: asyncio.Task[None] | None = None


class Parts:
    """Fetches ``[start, total)`` of an object, where ``total`` None is found out with the first part.

    A part asks for its slot after the one before it has got its own, and holds it until its bytes are used: whoever has
    slots can go on with the first of them, so transfers cannot block each other, and what was fetched but not used
    counts as in flight. While the transfer waits for room of unknown extent it gives its slots up.
    """

    def __init__(self, context: Context, read: RangeHook, pin: Pin, *, start: int, total: int | None) -> None:
        self._context = context
        self._read = read
        self._pin = pin
        self._start = start
        self._total = total
        self._tells = tells_version(context)
        self._patience = 1.0
        self._window: dict[int, _Part] = {}
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> bool:
        """Fetch and use all parts.

        Returns:
            False, with nothing used, where the first response cannot be pinned and the object needs several.
        """
        with single_error():
            async with asyncio.TaskGroup() as group:
                self._group = group
                return await self._use_all()

    async def _use_all(self) -> bool:
        part_size = self._context.policy.part_size
        if self._total is not None:
            await self._reserve_all()
        index = 0
        while self._total is None or index == 0 or self._start + index * part_size < self._total:
            self._fill(index)
            part = self._window[index]
            await part.ready.wait()
            if index == 0 and not await self._accept(part):
                await self._drop(-1)
                return False
            data, part.data = part.data, b""
            await self._context.take(data, partial(self._drop, index))
            del data
            part.used.set()
            del self._window[index]
            index += 1
        return True

    async def _accept(self, first: _Part) -> bool:
        """With the first part here: whether the others may follow, and room for all of them."""
        several = self._total is None or self._start + first.length < self._total
        if several and not self._pin.strong and self._context.source.digest is None:
            return False
        if self._total is None:
            return False
        await self._reserve_all(partial(self._drop, 0))
        return True

    async def _reserve_all(self, blocked: Callable[[], Awaitable[None]] | None = None) -> None:
        expected = self._context.source.expected_decoded
        if expected is None and self._context.source.codec is None:
            expected = self._total
        if expected is not None:
            await self._context.reserve(expected, exact=True, blocked=blocked)

    def _fill(self, first: int) -> None:
        """Start the parts that may be in flight while ``first`` is the next to be used."""
        policy, group = self._context.policy, self._group
        assert group is not None
        ahead = policy.parallel_parts if self._total is not None else 1
        for index in range(first, first + ahead):
            offset = self._start + index * policy.part_size
            if index and (self._total is None or offset >= self._total):
                return
            if index not in self._window:
                length = policy.part_size if self._total is None else min(policy.part_size, self._total - offset)
                part = _Part(index, offset, max(length, 1))
                before = self._window.get(index - 1)
                self._window[index] = part
                part.task = group.create_task(self._fetch(part, before))

    async def _drop(self, keep: int) -> None:
        """Give up all slots: forget the parts after ``keep``, and let ``keep``, whose data are in hand, end."""
        for index, part in list(self._window.items()):
            if index > keep:
                del self._window[index]
                if part.task is not None:
                    part.task.cancel()
            else:
                part.used.set()

    async def _fetch(self, part: _Part, before: _Part | None) -> None:
        if before is not None:
            await before.granted.wait()
        context = self._context
        async with Slot(context.limiter, (*context.priority, part.index), part.length):
            part.granted.set()
            part.data = await self._attempts(part)
            part.ready.set()
            await part.used.wait()

    async def _attempts(self, part: _Part) -> bytes | bytearray | memoryview:
        context = self._context
        trials = context.trials()
        while True:
            asked = self._pin.if_match
            try:
                got = await self._attempt(part, asked)
                data = self._check(part, got)
            except RETRYABLE as exc:
                await context.pause(trials, exc)
            except Exception as exc:
                trials.conclude(exc)
                raise
            else:
                if not self._tells or self._pin.check(got.info, asked=asked is not None):
                    trials.succeeded()
                    if part.offset == 0:
                        await self._expect_checksum(got.info)
                    return data
                if self._pin.if_match is None:
                    raise self._nameless(part)  # the same question would get the same answer

    def _nameless(self, part: _Part) -> StorageError:
        source = self._context.source
        return StorageError(
            f"bytes {part.offset}+{part.length} of {source.where} came without the version that others came with",
            url=source.url,
            key=source.key,
            backend=source.backend,
        )

    async def _attempt(self, part: _Part, if_match: str | None) -> RangeRead:
        context = self._context
        watched = context.source.downloader.detects_stalls
        limit = 4 * context.policy.timeout + part.length / _CRAWL if watched else self._limit(part)
        context.requests += 1
        try:
            async with stall_guard(limit, f"bytes {part.offset}+{part.length} did not come", beat=context.beat):
                got = await self._read(part.offset, part.length, if_match)
        except StorageTimeoutError:
            self._patience *= 2
            raise
        context.limiter.moved(len(got.data))
        return got

    async def _expect_checksum(self, said: ObjectInfo) -> None:
        """Have the bytes compared with the store's own checksum; one more request where a range does not tell it."""
        context, known, can = self._context, said.checksums, self._context.source.capabilities
        if known is None and can.checksums and can.stat and context.sink.wants_checksums:
            try:
                info = await ask(context)
            except StorageError as exc:
                if exc.retryable:
                    raise
                # Rights to read are enough; size and version are checked all the same.
                logger.info("%s is not compared with a checksum of the store's: %s", context.source.where, exc)
                return
            self._pin.check(info, asked=True)
            known = info.checksums
        context.sink.expect(known)

    def _limit(self, part: _Part) -> float:
        return self._patience * (self._context.policy.timeout + part.length / _SLOW)

    def _check(self, part: _Part, got: RangeRead) -> bytes | bytearray | memoryview:
        """Compare a response with the promises; the first one tells the size where nobody promised it."""
        context, size = self._context, memoryview(got.data).nbytes
        context.check_total(got.info.size)
        total = got.info.size if got.info.size is not None else self._total
        if total is None and size < part.length:
            total = part.offset + size
        if self._total is not None and total != self._total:
            text = f"{context.source.where} was replaced while it was read: {self._total} bytes became {total}"
            raise ObjectChangedError(text, url=context.source.url)
        wanted = part.length if total is None else max(min(part.length, total - part.offset), 0)
        if size < wanted:
            raise context.too_short(part.offset + size, part.offset + wanted)
        if size > wanted:
            raise context.too_long(wanted)
        self._total = total
        return got.data
