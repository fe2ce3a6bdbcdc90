"""What somebody wants of the cache, and what the wish holds there."""

from __future__ import annotations

from dataclasses import dataclass, field

from forebay._cache import ChunkKey, Flight
from forebay._mutex import Mutex
from forebay._stats import Counters
from forebay._transfer import Source, TransferPolicy

__all__ = ["ChunkRequest"]


@dataclass(slots=True, kw_only=True, eq=False)
class ChunkRequest:
    """One chunk that somebody wants, and what the wish holds in the ledger.

    ``hard`` may be switched on later, when a reader comes to wait for what was prefetched. ``lease`` is None,
    ``"soft"`` or ``"hard"``; ``flight`` is set while this request has the right and the duty to fetch. ``eager``: the
    reader declared the chunk before it read any, so a soft lease is there also while this request holds nothing, which
    is when ``declared`` is set. ``lock`` guards them and ``abandoned``: the I/O thread, a reader and whoever closes
    meet here, and what stands here must be what the ledger was told. Requests that share a ``line`` take room in the
    order of their ``priority``: a later chunk must not fill the room of an earlier one, only to be evicted for it.
    ``thread`` is the one that stands still until the chunk is there, or did so last; ``waited`` are the seconds that
    this call of `Engine.obtain` spent without room.
    """

    key: ChunkKey
    source: Source
    policy: TransferPolicy
    verify: str = "digest"
    hard: bool = False
    priority: tuple[int, ...] = (0,)
    counters: Counters = field(default_factory=Counters)
    lease: str | None = None
    flight: Flight | None = None
    fetched: bool = False
    eager: bool = False
    declared: bool = False
    line: list[ChunkRequest] = field(default_factory=list)
    abandoned: bool = False
    thread: int | None = None
    waited: float = 0.0
    lock: Mutex = field(default_factory=Mutex)
