"""From a chunk that somebody wants to a ready file with a lease: single flight, room, transfer, verification."""

from __future__ import annotations

import asyncio
import logging
import os
from bisect import insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from forebay import _config
from forebay._cache import Busy, Cache, Flight, FlightLostError, Ready
from forebay._prefetch._full import DISK_TRIES, FULL_ERRNOS, disk_full, disk_need, is_full_disk
from forebay._prefetch._holdings import Holdings
from forebay._prefetch._limiter import InFlight
from forebay._prefetch._request import ChunkRequest
from forebay._prefetch._room import GiveWay, Metered, Room
from forebay._transfer import DaemonPool, TransferResult, file_digest, transfer
from forebay.exceptions import CacheError, CacheFullError, ChecksumMismatchError, PrefetchClosedError

__all__ = ["Engine"]

T = TypeVar("T")
logger = logging.getLogger("forebay")

#: Seconds between two looks at the ledger, while another process has what we wait for.
POLL_INTERVAL = 0.01
#: The same for a look-ahead that found no room: nobody waits for it.
LOOK_AHEAD_INTERVAL = 0.05
#: Seconds between two counts of the processes that share the directory's budget of requests.
SHARE_INTERVAL = 1.0

_ABANDONED = "closed while the chunk was on its way"


def _by_priority(request: ChunkRequest) -> tuple[int, ...]:
    return request.priority


class Engine:
    """Serves chunk requests against one cache directory. Its coroutines run on the I/O thread.

    Attributes:
        users: References to it in this process; whoever gives the last one back closes it.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.users = 0
        self.holdings = Holdings(cache)
        self.limiter = InFlight()
        self.pool = DaemonPool("forebay-hook")
        self.room_timeout = _config.wait_timeout()
        self._ledger = DaemonPool("forebay-ledger", 2)
        self._wakers: set[asyncio.Event] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shared_at = 0.0
        self._told_unverified = False
        self._ahead = 0  # fetches under way that began as look-aheads
        self._short = 0  # readers that found the disk full, and no chunk yet
        self._unsubscribe = cache.subscribe(self._on_change)

    async def steady(self, function: Callable[..., T], /, *args: object) -> T:
        """Run a short blocking call off the loop, and see it end even when the caller is cancelled, however often.

        What the call does to the ledger is then known to whoever cleans up.
        """
        running = asyncio.ensure_future(self._ledger.run(function, *args))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            while not running.done():
                with suppress(asyncio.CancelledError):  # once more, as by two that close: it makes no difference
                    await asyncio.wait([running])
            if not running.cancelled():
                running.exception()  # seen: the cancellation is what the caller hears of
            raise

    async def changed(self, interval: float = POLL_INTERVAL) -> None:
        """Return when something may have changed in the cache: at once for this process, soon for another."""
        self._loop = asyncio.get_running_loop()
        event = asyncio.Event()
        self._wakers.add(event)
        try:
            async with asyncio.timeout(interval):
                await event.wait()
        except TimeoutError:
            return
        finally:
            self._wakers.discard(event)

    async def obtain(self, request: ChunkRequest) -> Ready:
        """Return the ready chunk, with the lease that the request asks for; any error leaves none behind.

        Where the disk is full, what nobody reads gives its room to a reader, a few times; what is only looked ahead for
        rests until its reader comes. Look-aheads that are under way may be faster to take the room: none begins
        meanwhile, and what these have fetched is given back too.
        """
        relieved, short, request.waited = 0, 0, 0.0
        begin = _config.monotonic()
        try:
            while True:
                try:
                    return await self._obtain(request)
                except CacheFullError as exc:
                    if not is_full_disk(exc):
                        raise
                    if not request.hard:
                        while not request.hard:
                            await self.changed(SHARE_INTERVAL)
                        continue
                    self._short, short = self._short + 1 - short, 1
                    if await self.steady(self.cache.relieve, disk_need(request.source)) and relieved < DISK_TRIES:
                        relieved += 1
                    elif self._ahead and _config.monotonic() - begin < self.room_timeout:
                        await self.changed()
                    else:
                        raise
        finally:
            self._short -= short

    async def _obtain(self, request: ChunkRequest) -> Ready:
        healed = False
        hit = True
        try:
            while True:
                await self._share()
                outcome = await self._admit(request)
                hit = hit and isinstance(outcome, Ready)
                ready = await self._until_ready(request, outcome)
                if ready is None:
                    await self.changed()
                    continue
                if not await self._sound(request, ready):
                    await self._heal(request, ready, again=healed)
                    healed, hit = True, False
                    continue
                if request.hard and request.lease == "soft" and not await self.steady(self._harden, request):
                    continue
                if hit:
                    request.counters.add(cache_hits=1)
                return ready
        except BaseException:  # also a cancelled request leaves no lease; it is raised again
            self.give_back(request)
            raise

    def give_back(self, request: ChunkRequest) -> None:
        """Let go of whatever the request holds in the ledger, but for an eager lease."""
        with request.lock:
            self._give_back_locked(request)

    def abandon(self, request: ChunkRequest) -> None:
        """Let go of everything, for good: whoever still works on it gets `PrefetchClosedError`, and no lease."""
        with request.lock:
            request.abandoned = True
            request.eager = False
            try:
                self._give_back_locked(request)
            finally:
                if request.declared:
                    request.declared = False
                    self.cache.release(request.key, hard=False)

    def _give_back_locked(self, request: ChunkRequest) -> None:
        flight, lease = request.flight, request.lease
        request.flight = request.lease = None
        self.holdings.forget(request)
        if request.eager and not request.declared and (flight is not None or lease is not None):
            try:
                self.cache.declare([request.key])
                request.declared = True
            except (CacheError, OSError) as exc:  # without it the chunk may have to be fetched once more
                logger.debug("%s is not kept for its reader: %s", request.key.url, exc)
        if flight is not None:
            flight.abort()
        elif lease is not None:
            self.cache.release(request.key, hard=lease == "hard")

    def harden(self, request: ChunkRequest) -> bool:
        """Make sure, from a reader's thread, that what was obtained cannot be evicted; False if it was already.

        Raises:
            PrefetchClosedError: The request was abandoned meanwhile.
        """
        with self._steered(request):
            return request.lease == "hard" or self._harden_locked(request)

    def close(self) -> None:
        """Let go of the threads; requests that still run fail."""
        self._unsubscribe()
        self.pool.close(0.0)
        self._ledger.close(0.0)

    @contextmanager
    def _steered(self, request: ChunkRequest) -> Iterator[None]:
        """Hold the request's lock, unless nobody wants the request any more."""
        with request.lock:
            if request.abandoned:
                raise PrefetchClosedError(_ABANDONED)
            yield

    def _acquire(self, request: ChunkRequest) -> Ready | Busy | Flight:
        with self._steered(request):
            hard = request.hard
            outcome = self.cache.acquire(request.key, hard=hard)
            if request.declared:  # one reader counts once
                self.cache.release(request.key, hard=False)
                request.declared = False
            request.lease = "hard" if hard else "soft"
            request.flight = outcome if isinstance(outcome, Flight) else None
            return outcome

    def _poll(self, request: ChunkRequest) -> Ready | Busy | Flight:
        with self._steered(request):
            if request.hard and request.lease == "soft":
                # A reader waits now for what was only prefetched: trade the weak claim for a strong one.
                outcome = self.cache.acquire(request.key, hard=True)
                self.cache.release(request.key, hard=False)
                request.lease = "hard"
            else:
                outcome = self.cache.poll(request.key, hard=request.lease == "hard")
            request.flight = outcome if isinstance(outcome, Flight) else None
            return outcome

    def _harden(self, request: ChunkRequest) -> bool:
        with self._steered(request):
            return self._harden_locked(request)

    def _harden_locked(self, request: ChunkRequest) -> bool:
        def told(kept: bool) -> None:
            request.lease = "hard" if kept else None

        try:
            kept = self.cache.harden(request.key, told)
        except CacheFullError:  # the disk is full, and the ledger finds no room to say so
            if not self.cache.relieve(disk_need(request.source)):
                raise
            kept = self.cache.harden(request.key, told)
        if request.abandoned:  # meanwhile, by a signal handler in this thread
            self._give_back_locked(request)
            raise PrefetchClosedError(_ABANDONED)
        return kept

    async def _admit(self, request: ChunkRequest) -> Ready | Busy | Flight:
        """Take a lease and, where the chunk is ours to fetch, the room for it, in turn."""
        size = request.source.expected_decoded
        insort(request.line, request, key=_by_priority)
        try:
            while True:
                # Somebody waits for a hard request: it stands behind nobody, in whatever order it came to be one.
                while not request.hard and (request.line[0] is not request or self._short):
                    await self.changed(LOOK_AHEAD_INTERVAL)
                outcome = await self.steady(self._acquire, request)
                if not isinstance(outcome, Flight) or size is None:
                    return outcome
                try:
                    await Room(self, request, outcome).ensure(size)
                except (GiveWay, FlightLostError):
                    self.give_back(request)
                    await self.changed(POLL_INTERVAL if request.hard else LOOK_AHEAD_INTERVAL)
                    await self._until_room(request, size)
                else:
                    return outcome
        finally:
            request.line.remove(request)
            self.wake()

    async def _until_room(self, request: ChunkRequest, size: int) -> None:
        """Wait until a look-ahead that was refused would not be, or a reader waits for it.

        Looking costs the others nothing; a flight that is begun and given up is four changes of the ledger.
        """
        while not request.hard and not await self.steady(self.cache.has_room, request.key, size):
            await self.changed(LOOK_AHEAD_INTERVAL)

    async def _until_ready(self, request: ChunkRequest, outcome: Ready | Busy | Flight) -> Ready | None:
        """Fetch, or wait for whoever fetches. None: the request gave way and holds nothing."""
        while not isinstance(outcome, Ready):
            if isinstance(outcome, Flight):
                try:
                    return await self._fetch(request, outcome)
                except (GiveWay, FlightLostError):
                    self.give_back(request)
                    return None
            await self.changed()
            outcome = await self.steady(self._poll, request)
        return outcome

    async def _fetch(self, request: ChunkRequest, flight: Flight) -> Ready:
        flight.hard = request.hard
        ahead = int(not request.hard)
        self._ahead += ahead
        try:
            result = await transfer(
                request.source,
                flight.temp,
                room=Room(self, request, flight),
                limiter=Metered(self.limiter, request, flight),
                pool=self.pool,
                policy=request.policy,
                priority=request.priority,
                tally=request.counters.tally,
            )
        except OSError as exc:
            if exc.errno not in FULL_ERRNOS:
                raise
            raise disk_full(exc, request.key.url, self.cache.directory) from exc
        finally:
            self._ahead -= ahead
        self._count(request, result)
        return await self.steady(self._publish, request, flight, result)

    def _publish(self, request: ChunkRequest, flight: Flight, result: TransferResult) -> Ready:
        with self._steered(request):
            flight.hard = request.hard
            ready = flight.publish(bytes=result.bytes, digest=result.digest, etag=result.etag)
            request.flight = None
            request.fetched = True
            return ready

    async def _sound(self, request: ChunkRequest, ready: Ready) -> bool:
        """Whether a chunk that an earlier run left is what it was when it was published."""
        if ready.trusted:
            return True
        try:
            if request.verify == "size":
                sound = await self._has_its_size(request, ready)
            else:
                # A ledger that was lost knows no digests; what the index promises is as good, and nothing is not.
                promised = ready.digest or request.source.digest
                if promised is None:
                    self._tell_unverified()
                    sound = self.cache.read_only and await self._has_its_size(request, ready)
                else:
                    sound = await self.steady(file_digest, ready.path) == promised
        except FileNotFoundError:
            sound = False
        if sound:
            await self.steady(self.cache.trust, request.key)
        return sound

    async def _has_its_size(self, request: ChunkRequest, ready: Ready) -> bool:
        """Whether the file is as large as was published, and as the index says: a ledger made anew knows only files."""
        size = (await self.steady(os.stat, ready.path)).st_size
        return size == ready.bytes and request.source.expected_decoded in (None, size)

    def _tell_unverified(self) -> None:
        if self.cache.read_only and not self._told_unverified:
            self._told_unverified = True
            logger.warning(
                "no digest of the chunks in %s can be read, there or in the index: their sizes are compared instead",
                self.cache.directory,
            )

    async def _heal(self, request: ChunkRequest, ready: Ready, *, again: bool) -> None:
        await self.steady(self.cache.discard, request.key)
        self.give_back(request)
        if again:
            raise ChecksumMismatchError(
                f"the cached copy of {request.key.url} was damaged, and again after it was fetched anew;"
                f" check the disk below {self.cache.directory}",
                url=request.key.url,
                expected=ready.digest,
            )
        logger.warning("the cached copy of %s is damaged; it is fetched again", request.key.url)

    async def _share(self) -> None:
        now = _config.monotonic()
        if now - self._shared_at > SHARE_INTERVAL:
            self._shared_at = now
            self.limiter.share((await self.steady(self.cache.info)).holders)

    def _count(self, request: ChunkRequest, result: TransferResult) -> None:
        request.counters.add(chunks_fetched=1, bytes_fetched=result.stored_bytes)
        for stage, seconds in result.stages.items():
            request.counters.stage(stage, seconds)

    def _on_change(self) -> None:
        loop = self._loop
        if loop is None or not self._wakers:
            return
        try:
            loop.call_soon_threadsafe(self.wake)
        except RuntimeError:  # the loop has ended; nobody waits any more
            return

    def wake(self) -> None:
        """Let everybody on the loop who waits for a change look again."""
        for event in self._wakers:
            event.set()
