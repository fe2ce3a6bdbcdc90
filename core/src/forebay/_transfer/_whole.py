"""One object as one body: through the hook that writes to a file object, or in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from forebay._retry import RETRYABLE, Trials
from forebay._transfer._context import Context, Slot
from forebay._transfer._guard import single_error, stall_guard
from forebay._transfer._intake import Intake, LoopIntake, NeedRoomError, ThreadIntake
from forebay._transfer._ranges import Parts, Pin, RangeHook
from forebay.downloader import overrides

__all__ = ["WholeBody"]


class WholeBody:
    """Fetches the object on one connection; a body that breaks is resumed where its version is certain.

    Args:
        context: The transfer.
        read: How to read a range, for resuming.
        pin: The version to resume from; without one only a promised digest makes resuming safe.
    """

    def __init__(self, context: Context, read: RangeHook | None, pin: Pin) -> None:
        self._context = context
        self._read = read
        self._pin = pin

    async def run(self) -> None:
        """Fetch the body, with as many tries as the policy allows."""
        context = self._context
        promised = context.source.expected_decoded
        await context.reserve(promised or 1, exact=promised is not None)
        trials = context.trials()
        while True:
            try:
                await self._attempt()
            except NeedRoomError as exc:
                await self._again()
                await context.reserve(exc.total)
            except RETRYABLE as exc:
                if await self._recover(trials, exc):
                    break
            except Exception as exc:
                trials.conclude(exc)
                raise
            else:
                break
        trials.succeeded()

    async def _recover(self, trials: Trials, error: Exception) -> bool:
        """After a failed try: wait, then fetch the rest (True) or be ready to begin again (False)."""
        context, sink = self._context, self._context.sink
        if error is sink.failure or error is context.room_error:
            raise error
        await context.pause(trials, error)
        certain = self._pin.strong or context.source.digest is not None
        if self._read is not None and certain and sink.fed and context.source.expected_stored is not None:
            rest = Parts(context, self._read, self._pin, start=sink.fed, total=context.source.expected_stored)
            if await rest.run():
                return True
        await self._again()
        return False

    async def _again(self) -> None:
        await self._context.pool.work(self._context.sink.restart)

    async def _attempt(self) -> None:
        context = self._context
        expected, most = context.source.expected_stored, context.policy.part_size
        context.requests += 1
        async with Slot(context.limiter, (*context.priority, 0), min(expected or most, most)) as slot:
            hook, intake = self._hook(slot)
            try:
                failure = await self._run_hook(hook, intake)
            finally:
                await context.pool.work(intake.give_up)
        if failure is not None:
            raise failure
        nothing = intake.received == 0 and context.source.expected_decoded not in (None, 0)
        if (expected is not None and intake.received < expected) or nothing:
            raise context.too_short(intake.received, expected or 1)

    def _hook(self, slot: Slot) -> tuple[Callable[[Intake], Awaitable[None]], Intake]:
        """The best hook for a whole body, and what it writes to."""
        context = self._context
        downloader, key, pool = context.source.downloader, context.source.key, context.pool
        expected = context.source.expected_stored
        if context.async_hooks and overrides(downloader, "adownload_fileobj"):
            return lambda intake: downloader.adownload_fileobj(key, intake), LoopIntake(context, slot)
        fits = expected is not None and expected <= context.policy.part_size
        if context.async_hooks and fits and overrides(downloader, "adownload_bytes"):

            async def in_one_piece(intake: Intake) -> None:
                intake.write(await downloader.adownload_bytes(key, 0, None))

            return in_one_piece, LoopIntake(context, slot)
        return lambda intake: pool.run(downloader.download_fileobj, key, intake), ThreadIntake(context, slot)

    async def _run_hook(self, hook: Callable[[Intake], Awaitable[None]], intake: Intake) -> Exception | None:
        """Run the hook to its end.

        Returns:
            A failure that may pass, once all bytes before it are in the sink.
        """
        context = self._context
        failure: Exception | None = None
        with single_error():
            async with asyncio.TaskGroup() as group:
                server = group.create_task(intake.serve())
                try:
                    message = f"no byte of {context.source.where} came"
                    async with stall_guard(
                        context.policy.timeout, message, progress=intake.progress, beat=context.beat
                    ):
                        await hook(intake)
                except RETRYABLE as exc:
                    failure = intake.error or exc
                except Exception as exc:  # noqa: BLE001 - raised again at once
                    # A hook may have wrapped what `write` raised; the cause is what counts.
                    raise intake.error or exc from exc.__cause__
                if intake.error is not None:
                    raise intake.error
                if failure is not None:
                    await context.pool.work(intake.give_up)
                intake.end()
                await server
        return failure
