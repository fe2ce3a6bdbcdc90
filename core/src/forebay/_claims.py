"""What the readers of one dataset keep of the cache while they wait: checked before, claimed, and refused in time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from forebay import _collector, _config
from forebay._cache import Cache
from forebay._index import DatasetIndex
from forebay._mutex import Mutex
from forebay.exceptions import BudgetTooSmallError

__all__ = ["WindowClaims"]


#: Seconds that a reader for whom there is no room waits for forgotten readers to let go of theirs.
FORGOTTEN_DEADLINE = 5.0


@dataclass(slots=True, eq=False)
class _Claim:
    cache: Cache
    window: int
    number: int = 0
    largest: int = -1
    process: int = field(default_factory=os.getpid)


class WindowClaims:
    """The windows of one dataset's readers in one cache directory. Thread-safe.

    Where an index does not tell the size of each chunk, a claim begins with what it does tell, and grows with the
    chunks that arrive: the reader that finds one too large for all windows is refused then.
    """

    def __init__(self, cache: Callable[[], Cache], index: DatasetIndex) -> None:
        self._cache = cache
        self._chunks = len(index)
        self.largest = max(int(index.decoded_bytes.max(initial=0)), 0)
        self._claims: set[_Claim] = set()
        self._late = False
        self._lock = Mutex()

    def check(self, window: int) -> None:
        """Refuse a shuffle window that the budget cannot hold.

        Raises:
            BudgetTooSmallError: With the largest window that fits.
        """
        cache = self._cache()
        if min(window, self._chunks) * self.largest > cache.max_bytes:
            raise self._too_large(cache, window, cache.max_bytes - self.largest)

    @contextmanager
    def claim(self, window: int) -> Iterator[None]:
        """Inside the block, no other reader's window takes the room of this one's.

        Raises:
            BudgetTooSmallError: The windows of the readers that are under way leave too little.
        """
        claim = _Claim(self._cache(), window)
        try:
            self._add(claim)
        except BudgetTooSmallError:
            if not _collector.finish(FORGOTTEN_DEADLINE):
                raise
            self._add(claim)
        try:
            yield
        finally:
            if claim.process == os.getpid():  # else it is the parent's
                _collector.call_outside(lambda: self._drop(claim))

    def _add(self, claim: _Claim) -> None:
        with self._lock:
            self._settle(claim)
            self._claims.add(claim)

    def _drop(self, claim: _Claim) -> None:
        with self._lock:
            self._claims.discard(claim)
        claim.cache.drop_window(claim.number)

    def learn(self, size: int) -> None:
        """A chunk of ``size`` bytes has arrived.

        Raises:
            BudgetTooSmallError: With chunks as large as that, the windows do not fit any more.
        """
        if size <= self.largest and not self._late:
            return
        with self._lock:
            self.largest = max(self.largest, size)
            small = [one for one in tuple(self._claims) if one.largest < self.largest and one.process == os.getpid()]
            self._late = True  # until each has its room: what is refused here is tried with the next chunk
            for claim in small:
                self._settle(claim)
                if claim not in self._claims:  # the collector closed its reader meanwhile
                    claim.cache.drop_window(claim.number)
            self._late = False

    def _settle(self, claim: _Claim) -> None:
        """Claim what the window takes with chunks as large as the largest known."""
        kept, old = (max(min(claim.window, self._chunks), 1) - 1) * self.largest, claim.number or None
        number, left = claim.cache.claim_window(kept, self.largest, old)
        if number is None:
            raise self._too_large(claim.cache, claim.window, left)
        claim.number, claim.largest = number, self.largest

    def _too_large(self, cache: Cache, window: int, left: int) -> BudgetTooSmallError:
        size, largest = _config.format_size, max(self.largest, 1)
        fits = left // largest + 1 if left >= 0 else 0
        remedy = f"the largest window that fits is {fits}" if fits else "wait until they have ended"
        chunks = max(min(window, self._chunks), 1)
        spare = cache.max_bytes // largest - 1
        if window > 1 and spare >= 0 and left < cache.max_bytes - self.largest:  # others have claimed theirs
            remedy += (
                f"; each worker of each rank is a reader, and where R of them are alike, shuffle_window may be"
                f" 1 + {spare} // R"
            )
        return BudgetTooSmallError(
            f"a reader with shuffle_window={max(window, 1)} keeps {chunks} chunks of up to"
            f" {size(largest)} at one time, and the cache may hold {size(cache.max_bytes)}"
            f" together with what other readers keep: {remedy}; or raise max_cache_bytes",
            path=str(cache.directory),
        )
