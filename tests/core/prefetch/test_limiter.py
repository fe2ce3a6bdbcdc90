"""What is in flight: bounded by requests and bytes, granted by priority, adapted, and never leaked."""

from __future__ import annotations

import asyncio

from forebay._prefetch._limiter import InFlight, LimiterSettings
from forebay.testing import run_async


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_requests_and_bytes_in_flight_stay_below_their_bounds() -> None:
    """Risk K3: a look-ahead without a bound in bytes ends in an out-of-memory kill."""
    limiter = InFlight(LimiterSettings(start=3, max_bytes=100))
    peak_requests = peak_bytes = 0

    async def part(number: int) -> None:
        nonlocal peak_requests, peak_bytes
        async with limiter.slot((number,), 40):
            peak_requests = max(peak_requests, limiter.requests)
            peak_bytes = max(peak_bytes, limiter.bytes)
            await asyncio.sleep(0)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(part(number))

    run_async(main())
    assert (peak_requests, peak_bytes) == (2, 80)
    assert (limiter.requests, limiter.bytes) == (0, 0)


def test_slots_go_to_the_smallest_priority_whenever_it_asked() -> None:
    limiter = InFlight(LimiterSettings(start=1, floor=1))
    order: list[tuple[int, ...]] = []

    async def part(priority: tuple[int, ...]) -> None:
        async with limiter.slot(priority, 1):
            order.append(priority)
            await asyncio.sleep(0)

    async def main() -> None:
        async with asyncio.TaskGroup() as group, limiter.slot((9, 9), 1):
            for priority in [(2, 0), (1, 1), (0, 5), (1, 0)]:
                group.create_task(part(priority))
            await asyncio.sleep(0)  # in one turn of the loop all four ask

    run_async(main())
    assert order == [(0, 5), (1, 0), (1, 1), (2, 0)]


def test_a_slot_larger_than_the_bound_is_granted_alone() -> None:
    limiter = InFlight(LimiterSettings(max_bytes=10))

    async def main() -> None:
        async with limiter.slot((0,), 1000):
            assert limiter.bytes == 1000

    run_async(main())


def test_cancelled_waiters_leave_nothing_behind() -> None:
    limiter = InFlight(LimiterSettings(start=1, floor=1))

    async def main() -> None:
        async with limiter.slot((0,), 1):
            waiting = [asyncio.create_task(limiter.slot((n,), 1).__aenter__()) for n in range(5)]
            await asyncio.sleep(0)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        assert limiter.requests == 0
        async with limiter.slot((0,), 1):
            assert limiter.requests == 1

    run_async(main())


def test_a_slot_granted_to_a_task_cancelled_in_the_same_turn_is_returned() -> None:
    limiter = InFlight(LimiterSettings(start=1, floor=1))

    async def hold() -> None:
        async with limiter.slot((1,), 1):
            raise AssertionError("it was cancelled before it could run")

    async def main() -> None:
        first = limiter.slot((0,), 1)
        await first.__aenter__()
        task = asyncio.create_task(hold())
        await asyncio.sleep(0)
        await first.__aexit__(None, None, None)  # grants the slot to the task
        task.cancel()  # before the task runs again
        await asyncio.gather(task, return_exceptions=True)

    run_async(main())
    assert (limiter.requests, limiter.bytes) == (0, 0)


def test_throttling_halves_the_requests_once_an_interval_and_a_rising_rate_raises_them() -> None:
    """Risk N1: a store that says SlowDown is asked for less, not for the same again."""
    clock = Clock()
    limiter = InFlight(LimiterSettings(start=16, interval=1.0), clock=clock)
    limiter.throttled()
    limiter.throttled()
    assert limiter.limit == 8
    clock.now = 1.5
    limiter.throttled()
    assert limiter.limit == 4
    for _ in range(10):
        limiter.throttled()
        clock.now += 1.5
    assert limiter.limit == 2

    async def saturated(rate: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(limiter.limit + 5):
                group.create_task(one(rate))

    async def one(rate: int) -> None:
        async with limiter.slot((0,), 1):
            await asyncio.sleep(0)
            clock.now += 0.2
            limiter.moved(rate)

    for rate in (100, 200, 400, 800):
        run_async(saturated(rate))
    assert limiter.limit > 4


def test_processes_on_one_cache_directory_share_the_bound() -> None:
    limiter = InFlight(LimiterSettings(start=16))
    limiter.share(4)
    peak = 0

    async def part(number: int) -> None:
        nonlocal peak
        async with limiter.slot((number,), 1):
            peak = max(peak, limiter.requests)
            await asyncio.sleep(0)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(part(number))

    run_async(main())
    assert peak == 4
