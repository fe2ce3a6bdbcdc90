"""The order in which look-aheads take room, and the way past it for whoever a reader waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

__all__ = ["in_turn"]


@asynccontextmanager
async def in_turn(turn: asyncio.Lock, wanted: asyncio.Event) -> AsyncIterator[None]:
    """Hold ``turn`` inside the block, unless ``wanted`` is set before it came: then the block runs without it.

    A look-ahead that lost its room stands in line again, behind later ones that may wait for the room that it needs:
    once a reader comes for it, it must not wait for them.
    """
    mine = await _wait(turn, wanted)
    try:
        yield
    finally:
        if mine:
            turn.release()


async def _wait(turn: asyncio.Lock, wanted: asyncio.Event) -> bool:
    if wanted.is_set():
        return False
    coming, going = asyncio.ensure_future(turn.acquire()), asyncio.ensure_future(wanted.wait())
    try:
        await asyncio.wait([coming, going], return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        if await _settle(coming, going):
            turn.release()
        raise
    return await _settle(coming, going)


async def _settle(coming: asyncio.Task[Any], going: asyncio.Task[Any]) -> bool:
    """End both waits; whether the turn came."""
    coming.cancel()
    going.cancel()
    await asyncio.wait([coming, going])
    return not coming.cancelled()
