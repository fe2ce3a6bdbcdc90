"""``forebay.ChunkCache``: a cache directory as people look at it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import TracebackType

from forebay import _collector, _config
from forebay._cache._api import Cache
from forebay._cache._opening import clear_directory, open_observer
from forebay._cache._report import Report
from forebay._cache._types import Problem
from forebay._url import redact
from forebay.exceptions import CacheError, CacheFullError
from forebay.types import CacheInfo

__all__ = ["ChunkCache"]


class ChunkCache:
    """A cache directory, to look at and to look after. It holds no chunk itself.

    Args:
        cache_dir: None for the user's default cache directory.
        max_bytes: A new budget for the directory, in bytes or as ``"200GiB"``; None keeps the recorded one.
    """

    def __init__(self, cache_dir: Path | str | None, *, max_bytes: int | str | None = None) -> None:
        limit = None if max_bytes is None else _config.parse_size(max_bytes, option="max_bytes")
        self._where = None if cache_dir is None else Path(cache_dir).expanduser().absolute()
        self._limit = limit
        self._known: Cache | None = None
        self._closed = False
        with suppress(CacheFullError):  # `clear` can do something about it, and all else says so
            self._known = self._cache

    @property
    def _cache(self) -> Cache:
        if self._known is None:
            if self._closed:
                raise CacheError("this ChunkCache is closed")
            self._known = open_observer(self._where, max_bytes=self._limit)
        return self._known

    def info(self) -> CacheInfo:
        """Bytes, budget, chunks, leases and living processes, without what the dead held."""
        return self._cache.info()

    def report(self) -> Report:
        """The same, with the chunks of each dataset and what each living process holds."""
        return self._cache.report()

    def refcount(self, chunk_url: str) -> int:
        """How many leases, soft and hard, living processes hold on the chunk of this URL."""
        return self._cache.refcount(redact(chunk_url))

    def verify(self) -> list[Problem]:
        """Read every chunk and compare it with what was published; empty when all is sound."""
        return self._cache.verify()

    def gc(self) -> None:
        """Remove what dead processes left behind, and keep the budget."""
        self._cache.gc()

    def clear(self) -> None:
        """Remove every chunk that nobody uses, also where the disk is so full that nothing can be written.

        Raises:
            CacheError: Some are in use, and stay; the message says by whom.
        """
        clear_directory(self._where, max_bytes=self._limit)

    def close(self) -> None:
        """Let go of the directory; a second call does nothing."""
        if not self._closed:
            self._closed = True
            if self._known is not None:
                _collector.call_outside(self._known.close)

    def __enter__(self) -> ChunkCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = self._where if self._known is None else self._known.directory
        return f"ChunkCache({str(where)!r})"
