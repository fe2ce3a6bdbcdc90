"""What the ways to fetch one object share: the sink, the room, the slots, the counters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from forebay._retry import Trials
from forebay._transfer._guard import single_error
from forebay._transfer._pool import DaemonPool
from forebay._transfer._sink import Sink
from forebay._transfer._types import MIB, Limiter, Room, Source, TransferPolicy
from forebay.exceptions import BudgetTooSmallError, IncompleteBodyError, SizeMismatchError, ThrottledError

__all__ = ["Context", "Slot"]

#: Room is asked for in such steps where nobody knows how much will be needed.
STEP = 8 * MIB
#: In a budget that is almost used up, in steps that get smaller, down to this.
LEAST_STEP = MIB // 16
#: Seconds that a transfer which waits for room keeps its place among the requests.
GRACE = 0.25


class Slot:
    """A place among the requests in flight that can be given up for a while."""

    def __init__(self, limiter: Limiter, priority: tuple[int, ...], nbytes: int) -> None:
        self._limiter = limiter
        self._priority = priority
        self._nbytes = nbytes
        self._stack = AsyncExitStack()
        self._held = False

    async def __aenter__(self) -> Slot:
        await self.take()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.give_up()

    async def take(self) -> None:
        """Wait for the slot; one that is held stays held."""
        if not self._held:
            await self._stack.enter_async_context(self._limiter.slot(self._priority, self._nbytes))
            self._held = True

    async def give_up(self) -> None:
        """Let others go first."""
        self._held = False
        await self._stack.aclose()


class Context:
    """One transfer while it runs."""

    def __init__(
        self,
        source: Source,
        sink: Sink,
        *,
        room: Room,
        limiter: Limiter,
        pool: DaemonPool,
        policy: TransferPolicy,
        priority: tuple[int, ...],
    ) -> None:
        self.source = source
        self.sink = sink
        self.limiter = limiter
        self.pool = pool
        self.policy = policy
        self.priority = priority
        self.requests = 0
        self.retries = 0
        self.etag: str | None = None
        #: An error of the room: not the store's, so it is neither tried again nor explained.
        self.room_error: BaseException | None = None
        self._room = room

    @property
    def async_hooks(self) -> bool:
        """Whether the downloader's native async hooks work in this process."""
        return self.source.capabilities.native_async

    def beat(self) -> None:
        """Say that the transfer is alive."""
        self.limiter.moved(0)

    def trials(self) -> Trials:
        """The tries of one request."""
        return Trials(max_attempts=self.policy.max_attempts, backoff=self.policy.backoff, beat=self.beat)

    async def pause(self, trials: Trials, error: Exception) -> None:
        """Wait before the next try of a request, or raise ``error``."""
        if isinstance(error, ThrottledError):
            self.limiter.throttled()
        await trials.pause(error)
        self.retries += 1

    async def reserve(
        self, total: int, *, exact: bool = False, blocked: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Make room for ``total`` decoded bytes, and some more where the end is not known.

        ``blocked`` is called once when that takes long, to give up what others may need to make room.
        """
        if total <= self.sink.allowed:
            return
        ahead = total if exact else -(-total // STEP) * STEP
        try:
            await self._ensure(ahead, blocked)
        except BudgetTooSmallError:
            if ahead == total:
                raise
            ahead = total
            await self._ensure(total, blocked)
        self.sink.allowed = ahead

    async def reserve_beyond(self, total: int) -> bool:
        """Make room for ``total`` bytes, and for as much of another `STEP` as the whole budget allows.

        Returns:
            Whether the budget allows all of it, so that it is worth asking again later.

        Raises:
            BudgetTooSmallError: It does not allow ``total`` bytes.
        """
        more = STEP
        while True:
            try:
                await self.reserve(total + more, exact=True)
            except BudgetTooSmallError:
                if not more:
                    raise
                more = more // 2 if more > LEAST_STEP else 0
            else:
                return more == STEP

    async def _ensure(self, total: int, blocked: Callable[[], Awaitable[None]] | None) -> None:
        try:
            if blocked is None:
                await self._room.ensure(total)
                return
            with single_error():
                async with asyncio.TaskGroup() as group:
                    later = group.create_task(_after_grace(blocked))
                    await self._room.ensure(total)
                    later.cancel()
        except BaseException as exc:
            self.room_error = exc
            raise

    async def take(
        self, data: bytes | bytearray | memoryview, blocked: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Put the next stored bytes through the sink."""
        self.sink.start(data)
        await self.pump(blocked)

    async def pump(self, blocked: Callable[[], Awaitable[None]] | None = None) -> None:
        """Let the sink work off what it has, with the room that it needs."""
        while (need := await self.pool.work(self.sink.pump)) is not None:
            if need:
                await self.reserve(need, blocked=blocked)

    def check_total(self, total: int | None) -> None:
        """Compare the size that a response names with the promised one."""
        expected = self.source.expected_stored
        if total is not None and expected is not None and total != expected:
            raise SizeMismatchError(
                f"{self.source.where} has {total} bytes in the store, but {expected} were promised",
                url=self.source.url,
                expected=str(expected),
                actual=str(total),
            )

    def too_long(self, expected: int) -> SizeMismatchError:
        """The store sent more than it should."""
        return SizeMismatchError(
            f"the body of {self.source.where} is longer than the {expected} bytes that it should have",
            url=self.source.url,
            expected=str(expected),
        )

    def too_short(self, got: int, expected: int) -> IncompleteBodyError:
        """The store sent less than it should."""
        text = f"the body of {self.source.where} ended after {got} of {expected} bytes"
        return IncompleteBodyError(text, url=self.source.url, key=self.source.key, backend=self.source.backend)


async def _after_grace(blocked: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(GRACE)
    await blocked()
