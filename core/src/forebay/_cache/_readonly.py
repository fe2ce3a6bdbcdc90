"""A cache directory that this process may only read: a full cache on a read-only disk, or another user's."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from forebay._cache import _inspect, _recover
from forebay._cache._api import Cache
from forebay._cache._flight import Flight
from forebay._cache._layout import FINAL, Layout, chunk_name
from forebay._cache._plans import PlanReader
from forebay._cache._report import DatasetReport, Report
from forebay._cache._types import Busy, ChunkKey, Problem, Ready
from forebay.exceptions import CacheError
from forebay.types import CacheInfo

__all__ = ["ReadOnlyCache"]


class ReadOnlyCache(Cache):
    """See `Cache`. Chunks are found by their names, no lease is taken, and what is missing is an error."""

    read_only = True

    def __init__(self, layout: Layout, *, on_close: Callable[[ReadOnlyCache], bool]) -> None:
        self.layout = layout
        self.directory = layout.directory
        self.evictions = 0
        self._on_close = on_close
        self._trusted: set[str] = set()
        self._damaged: set[str] = set()

    @property
    def max_bytes(self) -> int:
        """No budget rules where nothing is written."""
        return sys.maxsize

    def acquire(self, chunk: ChunkKey, *, hard: bool) -> Ready | Busy | Flight:
        """See `Cache`.

        Raises:
            CacheError: The chunk is not there, or was found damaged.
        """
        name = chunk_name(chunk)
        size = self.layout.size_of(name)
        if size is None or name in self._damaged:
            state = "is not in" if size is None else "is damaged in"
            raise CacheError(
                f"{chunk.url} {state} the cache {self.directory}, and this process may only read there:"
                " make the directory writable for it, or choose another with cache_dir= or FOREBAY_CACHE_DIR",
                path=str(self.directory),
            )
        recorded = self._recorded(name) or {}
        return Ready(
            path=Path(self.layout.final(name)),
            bytes=int(recorded.get("bytes") or size),
            digest=recorded.get("digest"),
            trusted=name in self._trusted,
        )

    def poll(self, chunk: ChunkKey, *, hard: bool) -> Ready | Busy | Flight:
        """See `Cache`."""
        return self.acquire(chunk, hard=hard)

    def release(self, chunk: ChunkKey, *, hard: bool) -> None:
        """See `Cache`."""

    def declare(self, chunks: Iterable[ChunkKey]) -> None:
        """See `Cache`."""

    def relieve(self, wanted: int | None) -> int:
        """Nothing can go."""
        return 0

    def harden(self, chunk: ChunkKey, told: Callable[[bool], object] = bool) -> bool:
        """See `Cache`."""
        there = self.layout.size_of(chunk_name(chunk)) is not None
        told(there)
        return there

    def soften(self, chunk: ChunkKey) -> None:
        """See `Cache`."""

    def has_room(self, chunk: ChunkKey, total: int) -> bool:
        """See `Cache`: nothing is fetched here."""
        return True

    def starving(self) -> list[int]:
        """See `Cache`: nobody waits for room here."""
        return []

    def room_beside(self, chunks: Iterable[ChunkKey]) -> int:
        """See `Cache`: nothing is fetched here."""
        return self.max_bytes

    def claim_window(self, kept: int, need: int, old: int | None = None) -> tuple[int | None, int]:
        """Nothing is evicted here, so every window fits."""
        return 0, 0

    def drop_window(self, number: int) -> None:
        """See `Cache`."""

    def plan_reader(self, dataset: str) -> PlanReader:
        """Nothing is evicted here, so nobody listens."""
        return PlanReader()

    def discard(self, chunk: ChunkKey) -> None:
        """Remember that the chunk is damaged; the file stays."""
        self._damaged.add(chunk_name(chunk))

    def trust(self, chunk: ChunkKey) -> None:
        """See `Cache`."""
        self._trusted.add(chunk_name(chunk))

    def meta(self, chunk: ChunkKey) -> Mapping[str, str | None] | None:
        """See `Cache`."""
        name = chunk_name(chunk)
        if self.layout.size_of(name) is None:
            return None
        recorded = self._recorded(name) or {}
        return {"etag": recorded.get("etag"), "digest": recorded.get("digest")}

    def version(self) -> int:
        """See `Cache`."""
        return 0

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """See `Cache`."""
        return lambda: None

    def describe(self) -> str:
        """See `Cache`."""
        return f"the cache {self.directory} is read-only for this process"

    def info(self) -> CacheInfo:
        """See `Cache`."""
        sizes = self._sizes()
        return CacheInfo(bytes=sum(sizes.values()), max_bytes=self.max_bytes, chunks=len(sizes), leases=0, holders=0)

    def report(self) -> Report:
        """See `Cache`."""
        totals: dict[str, list[int]] = {}
        for name, size in self._sizes().items():
            totals.setdefault(name.partition("/")[0], []).append(size)
        datasets = [
            DatasetReport(dataset=name, url="", chunks=len(sizes), bytes=sum(sizes)) for name, sizes in totals.items()
        ]
        return Report(info=self.info(), datasets=tuple(sorted(datasets, key=lambda one: (-one.bytes, one.dataset))))

    def refcount(self, chunk_url: str) -> int:
        """See `Cache`."""
        return 0

    def verify(self) -> list[Problem]:
        """See `Cache`. Chunks are compared with the ledger where that can be read without writing."""
        problems = []
        for name, size in self._sizes().items():
            recorded = self._recorded(name)
            if recorded is None:
                continue
            if recorded["bytes"] != str(size):
                message = f"{size} bytes where {recorded['bytes']} were published"
                problems.append(Problem(kind="size", path=f"chunks/{name}", message=message))
            elif recorded["digest"] not in (None, actual := _inspect.file_digest(self.layout.final(name))):
                message = f"{actual} where {recorded['digest']} was published"
                problems.append(Problem(kind="digest", path=f"chunks/{name}", message=message))
        return problems

    def gc(self) -> None:
        """Refused: nothing can be removed."""
        raise self._refusal()

    def clear(self) -> None:
        """Refused: nothing can be removed."""
        raise self._refusal()

    def close(self) -> None:
        """See `Cache`."""
        self._on_close(self)

    def index_path(self, identity: str) -> Path:
        """See `Cache`."""
        return self.layout.indexes / self.layout.index_name(identity)

    def _refusal(self) -> CacheError:
        return CacheError(f"{self.describe()}: nothing can be removed from it", path=str(self.directory))

    def _sizes(self) -> dict[str, int]:
        return {
            name: size
            for name, entry in _recover.files_below(self.layout)
            if FINAL.fullmatch(entry.name) and (size := self.layout.size_of(name)) is not None
        }

    def _recorded(self, name: str) -> dict[str, str | None] | None:
        """What the ledger says of a chunk, where it can be read without its shared memory; best effort.

        A ledger whose log was not written back says nothing: its main file alone may be older than the chunks.
        """
        wal = self.layout.directory / "ledger.sqlite-wal"
        try:
            if wal.exists() and wal.stat().st_size:
                return None
            uri = f"{self.layout.ledger.absolute().as_uri()}?mode=ro&immutable=1"
            connection = sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None)
            try:
                found = connection.execute(
                    "SELECT bytes, digest, etag FROM chunks WHERE name = ? AND ready = 1", (name,)
                ).fetchone()
            finally:
                connection.close()
        except (sqlite3.Error, OSError):
            return None
        return None if found is None else {"bytes": str(found[0]), "digest": found[1], "etag": found[2]}
