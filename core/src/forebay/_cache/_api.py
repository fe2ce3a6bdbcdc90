"""What the engine may ask of a cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from forebay._cache._flight import Flight
from forebay._cache._layout import Layout
from forebay._cache._plans import PlanReader
from forebay._cache._report import Report
from forebay._cache._types import Busy, ChunkKey, Problem, Ready
from forebay.types import CacheInfo

__all__ = ["Cache"]


class Cache(ABC):
    """One cache directory, shared with other threads and processes. Every call is short and blocking, and thread-safe.

    Attributes:
        directory: The real path of the directory.
        evictions: Chunks that this process evicted.
        users: Times that this process has it open.
        read_only: Nothing can be fetched or removed here: what cannot be verified is all there is.
    """

    directory: Path
    evictions: int = 0
    users: int = 0
    read_only: bool = False
    layout: Layout

    @property
    @abstractmethod
    def max_bytes(self) -> int:
        """The budget that rules now: the smallest of the living processes'."""

    @abstractmethod
    def acquire(self, chunk: ChunkKey, *, hard: bool) -> Ready | Busy | Flight:
        """Take a lease at once, and say whether the chunk is ready, fetched by somebody, or now ours to fetch."""

    @abstractmethod
    def poll(self, chunk: ChunkKey, *, hard: bool) -> Ready | Busy | Flight:
        """Look again, for who waits with a lease; a fetcher that died, failed or stalled makes it ours to fetch."""

    @abstractmethod
    def release(self, chunk: ChunkKey, *, hard: bool) -> None:
        """Give a lease back. One too many is logged and changes nothing."""

    @abstractmethod
    def declare(self, chunks: Iterable[ChunkKey]) -> None:
        """Take a soft lease on each chunk, there or not, before anybody reads: eager leases, all at once."""

    @abstractmethod
    def relieve(self, wanted: int | None) -> int:
        """Evict what nobody reads, at least ``wanted`` bytes (None: all), since the disk is full; returns how many."""

    @abstractmethod
    def harden(self, chunk: ChunkKey, told: Callable[[bool], object] = bool) -> bool:
        """Make a soft lease of ours hard; False, and nothing held, when the chunk is not ready any more.

        ``told`` is called with that as soon as it is so: an interrupt may come before this returns.
        """

    @abstractmethod
    def soften(self, chunk: ChunkKey) -> None:
        """Make a hard lease of ours soft."""

    @abstractmethod
    def claim_window(self, kept: int, need: int, old: int | None = None) -> tuple[int | None, int]:
        """Say that a reader keeps ``kept`` bytes while it waits for ``need`` more, beside all other readers.

        The claim takes the place of the reader's ``old`` one; where it does not fit, that one stays.

        Returns:
            The claim's number, None where they would wait for each other; and the bytes that this reader may keep.
        """

    @abstractmethod
    def drop_window(self, number: int) -> None:
        """Give a claimed window back."""

    @abstractmethod
    def has_room(self, chunk: ChunkKey, total: int) -> bool:
        """Whether a look-ahead for ``chunk``, of ``total`` bytes, would be granted its room now, or need none."""

    @abstractmethod
    def starving(self) -> list[int]:
        """The flights that wait for room, for a reader, in the order in which they get it."""

    @abstractmethod
    def room_beside(self, chunks: Iterable[ChunkKey]) -> int:
        """Bytes of the budget that are left when everything goes but these chunks."""

    @abstractmethod
    def plan_reader(self, dataset: str) -> PlanReader:
        """A reader of ``dataset``, to tell the cache what it will read; close it when it reads no more."""

    @abstractmethod
    def discard(self, chunk: ChunkKey) -> None:
        """Drop a ready chunk that failed its verification; leases stay."""

    @abstractmethod
    def trust(self, chunk: ChunkKey) -> None:
        """Note that the chunk was verified in this run."""

    @abstractmethod
    def meta(self, chunk: ChunkKey) -> Mapping[str, str | None] | None:
        """``etag`` and ``digest`` as given at publish; None where the chunk is not ready."""

    @abstractmethod
    def version(self) -> int:
        """A number that moves when this or another process changed the ledger."""

    @abstractmethod
    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have ``callback`` called, from any thread, after each local change; returns what ends that."""

    @abstractmethod
    def describe(self) -> str:
        """Who holds what, in one line for people."""

    @abstractmethod
    def info(self) -> CacheInfo:
        """The numbers of the directory now, without what the dead held."""

    @abstractmethod
    def report(self) -> Report:
        """Chunks by dataset, and what each living process holds."""

    @abstractmethod
    def refcount(self, chunk_url: str) -> int:
        """Soft and hard leases of living processes on the chunk of this URL."""

    @abstractmethod
    def verify(self) -> list[Problem]:
        """Read every chunk and compare; empty when all is sound. Changes nothing."""

    @abstractmethod
    def gc(self) -> None:
        """Remove what the dead left, make the ledger and the directory agree, and keep the budget."""

    @abstractmethod
    def clear(self) -> None:
        """Remove every chunk that nobody uses.

        Raises:
            CacheError: Some are in use, and stay; the message says by whom.
        """

    @abstractmethod
    def close(self) -> None:
        """Give this reference back; the last one lets go of every lease of this process."""

    def index_path(self, identity: str) -> Path:
        """Where the small index file of ``identity`` lies, beside ``chunks/`` and not counted."""
        return self.layout.index_path(identity)
