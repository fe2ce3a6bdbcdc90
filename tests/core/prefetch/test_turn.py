"""Room in plan order: one look-ahead at a time, but whoever a reader waits for stands behind none of them."""

from __future__ import annotations

import asyncio

import pytest

from forebay._prefetch._turn import in_turn
from forebay.testing import run_async


def test_turns_come_in_the_order_of_asking() -> None:
    async def main() -> list[int]:
        turn, order = asyncio.Lock(), []

        async def take(number: int) -> None:
            async with in_turn(turn, asyncio.Event()):
                order.append(number)
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(take(number))
        assert not turn.locked()
        return order

    assert run_async(main()) == list(range(20))


def test_a_reader_that_comes_is_not_kept_behind_a_look_ahead_without_room() -> None:
    """FAULTS A7: the look-ahead in front waits for the room that this one holds or needs; without this, for ever."""

    async def main() -> None:
        turn, wanted, inside = asyncio.Lock(), asyncio.Event(), asyncio.Event()

        async def later() -> None:
            async with in_turn(turn, wanted):
                inside.set()

        async with turn, asyncio.TaskGroup() as group:
            task = group.create_task(later())
            await asyncio.sleep(0.01)
            assert not inside.is_set()
            wanted.set()
            await asyncio.wait_for(task, 5)
            assert turn.locked(), "the turn is still the other's"
        async with in_turn(turn, asyncio.Event()):
            assert turn.locked()
        assert not turn.locked()

    run_async(main())


def test_a_cancelled_wait_leaves_the_turn_to_the_next() -> None:
    async def main() -> None:
        turn = asyncio.Lock()

        async def take() -> None:
            async with in_turn(turn, asyncio.Event()):
                pytest.fail("cancelled")

        await turn.acquire()
        task = asyncio.ensure_future(take())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        turn.release()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5), in_turn(turn, asyncio.Event()):
            assert turn.locked()

    run_async(main())
