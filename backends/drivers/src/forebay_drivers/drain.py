"""The short pause between obstore's last async call and the end of the interpreter.

Measured with obstore 0.12.1: an interpreter that exits right after many parallel async calls aborts in one run of
eight, because a worker thread of the runtime still wants the GIL for the last result. A few milliseconds of quiet cure
it.
"""

from __future__ import annotations

import asyncio
import atexit
import time

from forebay._config import monotonic

__all__ = ["adrain", "drain", "touch"]

_QUIET = 0.05
_last: float | None = None


def touch() -> None:
    """Note that an async call of obstore has just ended, or was given up."""
    global _last
    if _last is None:
        atexit.register(drain)
    _last = monotonic()


def _left() -> float:
    return 0.0 if _last is None else _last + _QUIET - monotonic()


def drain() -> None:
    """Block until the quiet time is over."""
    left = _left()
    if left > 0:
        time.sleep(min(left, _QUIET))


async def adrain() -> None:
    """Wait until the quiet time is over, without blocking the loop."""
    left = _left()
    if left > 0:
        await asyncio.sleep(min(left, _QUIET))
