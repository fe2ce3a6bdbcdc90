"""A look-ahead over an order of chunks: starts requests in that order, hands out results, cleans up after itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from forebay import _config
from forebay._cache import Ready
from forebay._mutex import Mutex
from forebay._prefetch._engine import Engine
from forebay._prefetch._io import IOFuture, IOThread, wait_for
from forebay._prefetch._request import ChunkRequest
from forebay._stats import Counters
from forebay.exceptions import PrefetchClosedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Session"]

T = TypeVar("T")

#: Seconds that the first chunk of a session may have the link to itself.
HEAD_START = 0.15
#: Seconds that `Session.close` waits for its cancelled requests.
CLOSE_DEADLINE = 2.0


@dataclass(slots=True)
class _Place:
    request: ChunkRequest
    future: IOFuture[Ready]


class Session:
    """One reader's way through an order of chunks.

    Args:
        engine: Serves the requests.
        thread: The I/O thread of this process.
        order: Chunk numbers in reading order, each at most once at a time.
        request: Makes the request of a chunk for a place in the order.
        ahead: Chunks to fetch before the reader asks for them; 0 fetches on demand.
        counters: Where waiting time goes.
        shared: Chunks that other readers read too: each is leased from now on, until it is read or the session is
            closed, so that no fast reader has it evicted before a slow one comes.
    """

    def __init__(
        self,
        engine: Engine,
        thread: IOThread,
        order: Sequence[int] | NDArray[np.int64],
        request: Callable[[int, int], ChunkRequest],
        *,
        ahead: int,
        counters: Counters,
        shared: Collection[int] = (),
    ) -> None:
        self._engine = engine
        self._thread = thread
        self._order = order
        self._request = request
        self._ahead = ahead
        self._counters = counters
        self._places: dict[int, _Place] = {}
        self._line: list[ChunkRequest] = []
        self._next = 0
        self._closed = False
        self._process = os.getpid()
        self._lock = Mutex()  # a signal handler may close the dataset in the midst of what it guards
        self._declared = {
            place: request(int(chunk), place).key
            for place, chunk in enumerate(order if shared else ())
            if int(chunk) in shared
        }
        if self._declared:
            engine.cache.declare(self._declared.values())

    def take(self, place: int) -> Ready:
        """Return the chunk at ``place``, held by a hard lease until `opened` or `done`.

        Raises:
            PrefetchClosedError: The session was closed meanwhile.
            Exception: Whatever the chunk's own fetch raised; other places go on.
        """
        self._check_process()
        begin = _config.monotonic()
        if self._next == 0:
            # The first chunk gets the link to itself for a moment: somebody waits for it, and for nothing behind it.
            self._start_until(place, place)
            with self._lock:
                first = [entry.future for entry in self._places.values()]
            wait(first, HEAD_START)
        self._start_until(place + self._ahead, place)
        with self._lock:
            entry = self._places.get(place)
        if entry is None:
            raise PrefetchClosedError("the iterator was closed")
        entry.request.thread = threading.get_ident()
        if not entry.request.hard:
            entry.request.hard = True
            self._thread.call_soon(self._engine.wake)
        try:
            ready = wait_for(entry.future, self._thread)
            while not self._engine.harden(entry.request):
                self._resubmit(place, entry)
                ready = wait_for(entry.future, self._thread)
        except BaseException:  # also a cancelled reader lets go; it is raised again
            with self._lock:
                self._places.pop(place, None)
            self._abandon(entry)
            raise
        finally:
            waited = _config.monotonic() - begin
            self._counters.waited(waited, chunk=entry.request.key.url, backend=entry.request.source.backend)
        return ready

    def opened(self, place: int) -> None:
        """The chunk at ``place`` is mapped, and can be read whether its file stays or not.

        It stays, as long as nobody starves for its room.
        """
        with self._lock:
            entry = self._places.get(place)
        if entry is not None and self._engine.holdings.open(entry.request):
            self._thread.submit(lambda: self._engine.holdings.watch(self._engine))

    def done(self, place: int) -> None:
        """Let go of a taken chunk."""
        if self._process != os.getpid():
            return
        with self._lock:
            entry = self._places.pop(place, None)
        if entry is not None:
            self._engine.abandon(entry.request)

    def close(self) -> None:
        """Cancel what runs, wait a moment for it, and let go of every lease."""
        if self._process != os.getpid():
            return  # inherited through fork: leases and tasks are the parent's
        with self._lock:
            self._closed = True
            places = list(self._places.values())
        try:
            for entry in places:
                entry.future.stop()
            if not self._thread.is_current and self._thread.alive:
                wait([entry.future for entry in places], CLOSE_DEADLINE)
        finally:  # Ctrl-C once more, while it waits here, leaves no lease
            self._let_go()

    def _let_go(self) -> None:
        """Give every lease back, also where an interrupt comes in between: with what it leaves, this begins again."""
        try:
            while (key := self._pop(self._declared)) is not None:
                self._engine.cache.release(key, hard=False)
            while (entry := self._pop(self._places)) is not None:
                self._abandon(entry)
        except BaseException:  # it is raised again
            self._let_go()
            raise

    def _pop(self, left: dict[int, T]) -> T | None:
        with self._lock:
            return left.popitem()[1] if left else None

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise PrefetchClosedError(
                "this iterator was begun before fork() and belongs to the parent process; begin another one here"
            )

    def _abandon(self, entry: _Place) -> None:
        """Stop the request, and give back what it holds as soon as its task has ended, which may be now."""
        entry.future.stop()
        entry.future.add_done_callback(lambda _: self._engine.abandon(entry.request))

    def _start_until(self, place: int, wanted: int) -> None:
        """Start the requests up to and including ``place``; later calls never start one twice.

        A reader waits for the one at ``wanted``.
        """
        with self._lock:
            if self._closed:
                raise PrefetchClosedError("the iterator was closed")
            last = min(place, len(self._order) - 1)
            while self._next <= last:
                number, self._next = self._next, self._next + 1
                request = self._request(int(self._order[number]), number)
                request.line = self._line
                request.hard, request.thread = number == wanted, threading.get_ident()
                request.eager = request.declared = self._declared.pop(number, None) is not None
                self._places[number] = _Place(request, self._submit(request))
                if self._closed:  # meanwhile, by a signal handler
                    self.close()
                    raise PrefetchClosedError("the iterator was closed")

    def _resubmit(self, place: int, entry: _Place) -> None:
        """Ask again for a chunk that was evicted before its reader came to it."""
        with self._lock:
            if self._closed or self._places.get(place) is not entry:
                raise PrefetchClosedError("the iterator was closed")
            entry.future = self._submit(entry.request)

    def _submit(self, request: ChunkRequest) -> IOFuture[Ready]:
        return self._thread.submit(lambda: self._engine.obtain(request))
