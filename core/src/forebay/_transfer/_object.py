"""One object, start to finish: `transfer` to a file, `read_object` into memory, `stat_object`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

from forebay._transfer._ask import ask
from forebay._transfer._context import Context
from forebay._transfer._errors import explain
from forebay._transfer._file_hook import FileHook, takes_file_hook
from forebay._transfer._pool import DaemonPool
from forebay._transfer._ranges import Parts, Pin, RangeHook, range_hook, tells_version
from forebay._transfer._sink import FileTarget, MemoryTarget, Sink
from forebay._transfer._types import Limiter, Room, Source, TransferPolicy, TransferResult
from forebay._transfer._whole import WholeBody
from forebay.exceptions import (
    ChecksumMismatchError,
    DecompressionError,
    ObjectChangedError,
    UnsupportedOperationError,
)
from forebay.types import ObjectInfo

__all__ = ["read_object", "stat_object", "transfer"]

logger = logging.getLogger("forebay")

#: Takes the number of requests and the number of retries.
Tally = Callable[[int, int], None]


async def transfer(
    source: Source,
    path: Path,
    *,
    room: Room,
    limiter: Limiter,
    pool: DaemonPool,
    policy: TransferPolicy,
    priority: tuple[int, ...] = (0,),
    tally: Tally | None = None,
) -> TransferResult:
    """Fetch one object into the new file ``path``, decompressed and verified.

    The file exists afterwards only when this returns; no exit, cancellation included, leaves it or a task behind.

    Args:
        source: The object and what is promised of it.
        path: Must not exist. Nothing is published.
        room: Asked before bytes are written.
        limiter: Asked before each request.
        pool: Runs what blocks.
        policy: Sizes, tries, deadlines.
        priority: Place among other transfers; parts add theirs at the end.
        tally: Called once with the numbers of requests and retries, however the transfer ends.

    Raises:
        StorageError: The store failed, with the number of attempts and the earlier tries as notes.
        IntegrityError: The bytes are not the promised ones, also after one more try.
        Exception: A stranger's error as it is, with a note that names the object.
    """
    target = FileTarget(path)
    try:
        sink = Sink(source, target)
        context = Context(source, sink, room=room, limiter=limiter, pool=pool, policy=policy, priority=priority)
        begin = time.perf_counter()
        await _guarded(context, tally)
        await pool.work(target.close)
    except BaseException:
        await pool.work(target.discard)
        raise
    stages = {"download": max(time.perf_counter() - begin - sink.decompress_seconds, 0.0)}
    if source.codec is not None:
        stages["decompress"] = sink.decompress_seconds
    return TransferResult(
        bytes=sink.written,
        stored_bytes=sink.fed,
        digest=sink.digest,
        etag=context.etag,
        requests=context.requests,
        retries=context.retries,
        stages=stages,
    )


async def read_object(
    source: Source,
    *,
    limiter: Limiter,
    pool: DaemonPool,
    policy: TransferPolicy,
    max_bytes: int,
    priority: tuple[int, ...] = (0,),
    tally: Tally | None = None,
) -> tuple[bytes, ObjectInfo]:
    """Fetch a small object into memory, with the same tries, checks and errors as `transfer`.

    Raises:
        SizeMismatchError: It is larger than ``max_bytes``.
    """
    target = MemoryTarget()
    sink = Sink(source, target, ceiling=max_bytes)
    context = Context(source, sink, room=_Memory(), limiter=limiter, pool=pool, policy=policy, priority=priority)
    await _guarded(context, tally)
    return target.take(), ObjectInfo(source.key, size=sink.fed, etag=context.etag)


async def stat_object(source: Source, *, pool: DaemonPool, policy: TransferPolicy) -> ObjectInfo:
    """Ask what is known of the object, with the same tries and errors as `transfer`."""
    sink = Sink(source, MemoryTarget())
    context = Context(source, sink, room=_Memory(), limiter=_Unlimited(), pool=pool, policy=policy, priority=(0,))
    try:
        return await ask(context)
    except Exception as exc:
        explain(exc, source)
        raise


class _Memory:
    """Room for what is bounded otherwise."""

    async def ensure(self, total: int) -> None:
        """There is room."""


class _Unlimited:
    """Stands in where no slot is asked for."""

    def slot(self, priority: tuple[int, ...], nbytes: int) -> AbstractAsyncContextManager[None]:
        """A slot at once."""
        return nullcontext()

    def moved(self, nbytes: int) -> None:
        """Nothing to adapt."""

    def throttled(self) -> None:
        """Nothing to adapt."""


async def _guarded(context: Context, tally: Tally | None) -> None:
    """Fetch, and say in every error where it happened, but for the errors of the room and of the disk."""
    try:
        await _fetch(context)
    except Exception as exc:
        if exc is not context.room_error and exc is not context.sink.failure:
            explain(exc, context.source)
        raise
    finally:
        if tally is not None:
            # An outage, too, shows in the numbers: whoever looks at them looks because something failed.
            tally(context.requests, context.retries)


async def _fetch(context: Context) -> None:
    """Fetch the object; once more from the start where its bytes were damaged on the way."""
    sink, source = context.sink, context.source
    await context.pool.work(sink.target.open)
    try:
        await _fetch_once(context, source.etag)
        return
    except (ChecksumMismatchError, DecompressionError) as exc:
        earlier: Exception = exc
    except ObjectChangedError as exc:
        if not source.standalone:
            raise
        earlier = exc
    logger.info("%s is read once more: %s", source.where, earlier)
    await context.pool.work(sink.restart)
    context.etag = None
    context.retries += 1
    try:
        await _fetch_once(context, None if source.standalone else source.etag)
    except Exception as exc:
        exc.add_note(f"this was the second try; the first ended with {type(earlier).__name__}: {earlier}")
        raise


async def _fetch_once(context: Context, etag: str | None) -> None:
    target = context.sink.target
    if takes_file_hook(context) and isinstance(target, FileTarget):
        await FileHook(context, target.path).run()
        return
    read = range_hook(context)
    pin = Pin(context, etag)
    if read is None or not await _by_parts(context, read, pin):
        await WholeBody(context, read, pin).run()
    context.sink.start_end()
    await context.pump()
    context.sink.finish()


async def _by_parts(context: Context, read: RangeHook, pin: Pin) -> bool:
    """Fetch the object in parts, where its parts can be told to be of one version; False: nothing was fetched."""
    source = context.source
    total = source.expected_stored
    if tells_version(context):
        try:
            return await Parts(context, read, pin, start=0, total=total).run()
        except UnsupportedOperationError as exc:
            if context.sink.fed or exc.status in (403, 409):  # an archived object, which no other request would bring
                raise
            logger.info("%s is read on one connection: %s", source.where, exc)
            return False
    if total is None or total <= context.policy.part_size:
        return False
    if source.digest is not None:
        return await Parts(context, read, pin, start=0, total=total).run()
    if not source.capabilities.stat:
        return False
    before = await ask(context)
    context.check_total(before.size)
    pin.check(before, asked=True)
    context.sink.expect(before.checksums)
    done = pin.strong and await Parts(context, read, pin, start=0, total=total).run()
    if done:
        # These hooks do not say what they read of; the object was the same before and after.
        pin.check(await ask(context), asked=True)
    return done
