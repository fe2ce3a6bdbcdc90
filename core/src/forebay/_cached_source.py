"""Chunks of a store, through the cache: the sessions of a dataset's readers, and what they tell the cache."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forebay import _config, _url
from forebay._cache import ChunkKey, PlanReader
from forebay._claims import WindowClaims
from forebay._downloaders import close_downloader
from forebay._index import DatasetIndex
from forebay._mutex import Mutex
from forebay._prefetch import ChunkRequest, EngineHandle, Session, before_exit
from forebay._registry import Resolved
from forebay._source import ChunkSession, ChunkSource
from forebay._stats import Counters
from forebay._transfer import Source, TransferPolicy
from forebay.downloader import Downloader, probe
from forebay.exceptions import BudgetTooSmallError, PrefetchClosedError
from forebay.types import CodecSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CachedSource"]

#: Bytes that a look-ahead without a number of its own tries to keep ahead of the reader.
AHEAD_BYTES = 256 << 20
#: The most chunks that such a look-ahead spans.
AHEAD_CEILING = 64


class CachedSource(ChunkSource):
    """Chunks of a store, through the cache.

    Args:
        resolved: The backend and the options.
        index: The dataset's index.
        identity: Hex digest over the dataset's location and index; another index is another dataset.
        engine: The engine on the cache directory; closed with the source.
        downloader: Opened at the dataset's root; closed with the source.
        codec: How chunks are compressed in the store.
        verify: How a chunk that an earlier run left is checked, ``"digest"`` or ``"size"``.
        counters: Where the work is counted.
    """

    def __init__(
        self,
        resolved: Resolved,
        index: DatasetIndex,
        *,
        identity: str,
        engine: EngineHandle,
        downloader: Downloader,
        codec: CodecSpec | None,
        verify: str,
        counters: Counters,
    ) -> None:
        self._resolved = resolved
        self._index = index
        self._identity = identity
        self._engine = engine
        self._downloader = downloader
        self._codec = codec
        self._verify = verify
        self._counters = counters
        self._policy = TransferPolicy.from_options(resolved.options)
        self._capabilities = probe(downloader)
        self._evicted_before = engine.cache.evictions
        self._pid = self._opened_in = os.getpid()
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._closed = False
        self._evicted = 0
        self._lock = Mutex()
        self._resting: PlanReader | None = None
        self._claims = WindowClaims(lambda: engine.cache, index)
        self._check_budget()
        with _lock:
            _open_sources.add(self)

    @property
    def evictions(self) -> int:  # type: ignore[override]
        """Chunks evicted in this process since the source was made."""
        return self._evicted if self._closed else self._engine.cache.evictions - self._evicted_before

    def session(
        self,
        order: Sequence[int] | NDArray[np.int64],
        *,
        ahead: int | None,
        now: NDArray[np.int64] | None = None,
        then: NDArray[np.int64] | None = None,
        shared: Collection[int] = (),
    ) -> ChunkSession:
        """Start a way through ``order`` with requests in that order."""
        if self._pid != os.getpid():
            self._pid, self._capabilities = os.getpid(), probe(self._downloader)
        handle = self._engine
        session = Session(
            handle.engine(),
            handle.thread,
            order,
            self._make_request,
            ahead=self.look_ahead(ahead),
            counters=self._counters,
            shared=shared,
        )
        try:
            with self._lock:
                self._sessions.add(session)
            if self._closed:  # only now: who closes the source either finds the session or is seen here
                raise PrefetchClosedError("the dataset was closed")
            if then is None:
                return _CachedSession(session)
            plan = np.asarray(order, np.int64) if now is None else now
            return _PlannedSession(
                session, self._claims, self._declare(plan, then), len(plan), self._rest, told=now is not None
            )
        except BaseException:  # what it has leased already is given back, whatever came; it is raised again
            session.close()
            raise

    def _declare(self, now: NDArray[np.int64], then: NDArray[np.int64]) -> PlanReader:
        """Tell the cache what a reader will read; as the reader that stopped last, where there is one."""
        with self._lock:
            reader, self._resting = self._resting, None
        reader = reader or self._engine.cache.plan_reader(self._identity)
        try:
            reader.declare(now, then)
        except BaseException:  # nobody goes on with the plan before it; it is raised again
            reader.close()
            raise
        return reader

    def _rest(self, reader: PlanReader) -> None:
        """Keep the plan of the reader that stopped last: it probably goes on, with the next epoch."""
        with self._lock:
            before, self._resting = self._resting, None if self._closed else reader
        for unwanted in (before, reader if self._closed else None):
            if unwanted is not None:
                unwanted.close()

    def check_window(self, window: int) -> None:
        """Refuse a shuffle window that the budget cannot hold."""
        self._claims.check(window)

    def claim_window(self, window: int) -> AbstractContextManager[None]:
        """See `ChunkSource`."""
        return self._claims.claim(window)

    def close(self) -> None:
        """End the sessions, close the downloader and give the engine back. A second call does nothing."""
        if self._closed or self._opened_in != os.getpid():
            return  # a forked child leaves the parent's connections and leases alone
        self._evicted = self.evictions
        self._closed = True
        with _lock:
            _open_sources.discard(self)
        try:
            with self._lock:  # readers in other threads may begin at this moment
                sessions = list(self._sessions)
            for session in sessions:
                session.close()
            with self._lock:
                reader, self._resting = self._resting, None
            if reader is not None:
                reader.close()
            close_downloader(self._downloader)
        finally:
            self._engine.close()

    def _check_budget(self) -> None:
        largest, budget = self._claims.largest, self._engine.cache.max_bytes
        if largest > budget:
            raise BudgetTooSmallError(
                f"the largest chunk of {_url.redact(str(self._resolved.url))} has {_config.format_size(largest)}"
                f" ({largest} bytes) and max_cache_bytes is {_config.format_size(budget)} ({budget} bytes):"
                f" {_config.format_size(largest - budget)} are missing",
                path=str(self._engine.cache.directory),
            )

    def look_ahead(self, asked: int | None) -> int:
        """Chunks that a session looks ahead; ``asked`` None is for a number that suits the chunks."""
        if asked is not None:
            return asked
        chunks = len(self._index)
        total = int(self._index.decoded_total or 0)
        mean = max(total // chunks, 1) if chunks and total else AHEAD_BYTES // 4
        wanted = -(-AHEAD_BYTES // mean)
        return max(min(wanted, AHEAD_CEILING), _config.prefetch_floor(), 1)

    def _make_request(self, chunk: int, place: int) -> ChunkRequest:
        entry = self._index.chunk(chunk)
        url = _url.join_url(str(self._resolved.url), entry.name)
        stored = entry.stored_bytes
        if stored is None and self._codec is None:
            stored = entry.decoded_bytes
        return ChunkRequest(
            key=ChunkKey(
                dataset=self._identity,
                url=_url.redact(url),
                identity=entry.name,
                suffix=Path(entry.name).suffix,
                number=chunk,
            ),
            source=Source(
                downloader=self._downloader,
                capabilities=self._capabilities,
                key=entry.name,
                url=_url.redact(url),
                backend=self._resolved.backend.name,
                stored_bytes=stored,
                decoded_bytes=entry.decoded_bytes,
                codec=self._codec,
                digest=entry.digest,
            ),
            policy=self._policy,
            verify=self._verify,
            priority=(place,),
            counters=self._counters,
        )


_lock = Mutex()
_open_sources: weakref.WeakSet[CachedSource] = weakref.WeakSet()


def _close_open_sources() -> None:
    with _lock:
        sources = list(_open_sources)
    for source in sources:
        source.close()


before_exit(_close_open_sources)


class _CachedSession:
    """A session that gives paths."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.opened = session.opened
        self.done = session.done
        self.close = session.close

    def take(self, place: int) -> Path:
        return self._session.take(place).path

    def reached(self, place: int) -> None:
        """Nobody was told of an order."""


class _PlannedSession(_CachedSession):
    """A session whose reader told the cache what it will read, and says how far it is: as it goes, or when ``told``."""

    def __init__(
        self,
        session: Session,
        claims: WindowClaims,
        reader: PlanReader,
        places: int,
        rest: Callable[[PlanReader], None],
        *,
        told: bool = False,
    ) -> None:
        super().__init__(session)
        self._claims = claims
        if not told:
            self.done = self._done
        self.close = self._close
        self._reader: PlanReader | None = reader
        self._places = places
        self._reached = 0
        self._rest = rest

    def reached(self, place: int) -> None:
        """See `ChunkSession`."""
        if self._reader is not None and place > self._reached:
            self._reached = place
            self._reader.reached(place)

    def take(self, place: int) -> Path:
        ready = self._session.take(place)
        self._claims.learn(ready.bytes)
        return ready.path

    def _done(self, place: int) -> None:
        self.reached(place + 1)  # before the release, which makes the chunk one that may go
        self._session.done(place)

    def _close(self) -> None:
        try:
            self._session.close()
        finally:
            reader, self._reader = self._reader, None
            if reader is not None:
                if self._reached < self._places:
                    reader.reached(0)  # the epoch was not read to its end: the next iteration begins it again
                self._rest(reader)
