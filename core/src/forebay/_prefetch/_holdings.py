"""What this process keeps from eviction while it does not wait for it, and which of that it can let go of.

A reader at rest holds the chunk that it reads. Where it rests because of the very one who waits for that room - the
same thread, or another rank that a collective step needs - the chunk would never be let go of. But it is mapped by
then, and a map stays whole when its file is evicted: so the reader gives its claim on the file up, and reads on. A path
that `fetch` returned is in the user's hands and stays; where such paths keep a waiter from its room, it is told so.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from forebay import _config
from forebay._cache import Cache, ChunkKey
from forebay._mutex import Mutex
from forebay._prefetch._request import ChunkRequest
from forebay.exceptions import CacheError

if TYPE_CHECKING:
    from forebay._prefetch._engine import Engine

__all__ = ["Holdings"]

logger = logging.getLogger("forebay")

#: Seconds between two looks at whether somebody in the directory waits for room, while readers have chunks open.
WATCH_INTERVAL = 0.1
#: Seconds that such a one waits before readers elsewhere let go of what they have open. What they let go of keeps its
#: blocks on the disk until they have read it: so not at once, for most are about to move on.
PATIENCE = 0.5


class Holdings:
    """Open chunks and fetched paths of this process in one cache directory. Thread-safe."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._lock = Mutex()
        self._open: dict[ChunkRequest, None] = {}  # in the order in which they were opened
        self._paths: dict[ChunkRequest, str] = {}
        self._watched = False

    def open(self, request: ChunkRequest) -> bool:
        """The reader of ``request`` has its chunk mapped; returns whether somebody has to `watch` from now on."""
        with request.lock:
            if request.lease != "hard" or request.abandoned:
                return False  # closed meanwhile
            with self._lock:
                self._open[request] = None
                begin, self._watched = not self._watched, True
        return begin

    def keep(self, request: ChunkRequest, path: str) -> None:
        """``path`` is in the user's hands until ``request`` is given back."""
        with self._lock:
            self._paths[request] = path

    def forget(self, request: ChunkRequest) -> None:
        """The request holds nothing any more."""
        with self._lock:
            self._open.pop(request, None)
            self._paths.pop(request, None)

    def let_go(self, thread: int | None = None) -> bool:
        """Have the reader that opened its chunk first (of those that ``thread`` runs) let go of it; False: none has."""
        with self._lock:
            found = list(self._open)
        for request in [one for one in found if thread is None or one.thread == thread]:
            with request.lock:
                if request.lease == "hard" and not request.abandoned:
                    self._cache.soften(request.key)
                    request.lease = "soft"
                    self.forget(request)
                    return True
            self.forget(request)
        return False

    def paths(self) -> dict[str, ChunkKey]:
        """The paths in the user's hands."""
        with self._lock:
            found = self._paths.copy()
        return {path: request.key for request, path in found.items()}

    async def watch(self, engine: Engine) -> None:
        """Let go of one open chunk after the other while somebody in the directory, here or elsewhere, starves.

        How long that one waits is measured here: the ledger's times are those of clocks that may be set.
        """
        since: dict[int, float] = {}
        try:
            while self._anything_open():
                await asyncio.sleep(WATCH_INTERVAL)
                try:
                    waiting, now = await engine.steady(self._cache.starving), _config.monotonic()
                    since = {flight: since.get(flight, now) for flight in waiting}
                    if waiting and now - since[waiting[0]] > PATIENCE:
                        await engine.steady(self.let_go)
                except (CacheError, OSError) as exc:  # a locked or broken ledger: it may be better at the next look
                    logger.debug("who waits for room could not be seen: %s", exc)
        finally:
            with self._lock:
                self._watched = False

    def _anything_open(self) -> bool:
        with self._lock:
            self._watched = bool(self._open)
            return self._watched
