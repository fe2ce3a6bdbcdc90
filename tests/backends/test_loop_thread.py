"""The loop behind the sync methods of drivers: whoever calls while it is closed is told, and waits for nobody."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

import pytest

from forebay_drivers.loop import LoopThread


class ClosedMeanwhile(LoopThread):
    """Somebody closes it once a caller has been given its loop."""

    def __init__(self) -> None:
        super().__init__()
        self.ending, self.go = threading.Event(), asyncio.Event()
        self.closing = threading.Thread(target=lambda: self.close(asyncio.sleep(0)))

    async def first(self) -> None:
        """Holds the loop's end up until the late call has begun."""
        try:
            await asyncio.Event().wait()
        finally:
            self.ending.set()
            async with asyncio.timeout(5):
                await self.go.wait()

    async def late(self) -> None:
        self.go.set()
        await asyncio.Event().wait()

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = super()._start()
        if threading.current_thread() is threading.main_thread():
            self.closing.start()
            self.ending.wait(1)  # where the closing waits for this caller, it does so in vain
        return loop


def test_a_call_while_the_loop_is_closed_is_no_hang() -> None:
    """Risk C10: its task began in the last turns of the loop, was in no list, and its caller waited for ever."""
    thread = ClosedMeanwhile()
    begun = threading.Event()
    errors: list[BaseException] = []

    async def first() -> None:
        begun.set()
        await thread.first()

    def call() -> None:
        try:
            thread.run(first())
        except concurrent.futures.CancelledError as exc:
            errors.append(exc)

    other = threading.Thread(target=call)
    other.start()
    assert begun.wait(30)
    with pytest.raises(concurrent.futures.CancelledError):
        thread.run(thread.late())
    thread.closing.join(30)
    other.join(30)
    assert len(errors) == 1
