"""``forebay.ChunkCache``: a cache directory as people look at it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from forebay import _config
from forebay._cache._opening import open_observer
from forebay._cache._report import Report
from forebay._cache._types import Problem
from forebay._url import redact
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
        self._cache = open_observer(cache_dir, max_bytes=limit)
        self._closed = False

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
        """Remove every chunk that nobody uses.

        Raises:
            CacheError: Some are in use, and stay; the message says by whom.
        """
        self._cache.clear()

    def close(self) -> None:
        """Let go of the directory; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._cache.close()

    def __enter__(self) -> ChunkCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ChunkCache({str(self._cache.directory)!r})"
