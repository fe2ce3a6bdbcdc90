"""Run a coroutine from a plain test function, and be strict about what it leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run_async"]

T = TypeVar("T")


def run_async(coro: Coroutine[Any, Any, T], timeout: float = 60.0) -> T:
    """Run ``coro`` on a fresh event loop in debug mode and return its result.

    Raises:
        AssertionError: A task was left running, or an error was lost in one (nobody asked for it).
        TimeoutError: The coroutine took longer than ``timeout`` seconds.
    """
    lost: list[str] = []
    with asyncio.Runner(debug=True) as runner:
        loop = runner.get_loop()
        loop.set_exception_handler(lambda _, context: lost.append(_describe(context)))
        result, left = runner.run(_supervise(coro, timeout))
    if left:
        raise AssertionError(f"{len(left)} asyncio task(s) left running: " + "; ".join(left))
    if lost:
        raise AssertionError("errors that nobody retrieved: " + "; ".join(lost))
    return result


async def _supervise(coro: Coroutine[Any, Any, T], timeout: float) -> tuple[T, list[str]]:
    """The result of ``coro``, and the tasks that outlive it in words (the runner cancels them)."""
    async with asyncio.timeout(timeout):
        result = await coro
    # A task that was cancelled or finished in this very step still counts as pending for one turn of the loop.
    await asyncio.sleep(0)
    own = asyncio.current_task()
    return result, [repr(task) for task in asyncio.all_tasks() if task is not own]


def _describe(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"{context.get('message')}: {error!r}" if error is not None else str(context.get("message"))
