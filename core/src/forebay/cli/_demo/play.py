"""The demo itself: pack, serve, stream, check, count."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.cli._demo.data import ITEM_BYTES, Checker, make_items
from forebay.cli._demo.stage import Stage, stage
from forebay.cli._demo.watch import watched
from forebay.cli._output import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["EPOCHS", "Outcome", "play"]

#: The second pass meets chunks that the first one left in the cache.
EPOCHS = 2
_CHUNKS = 24
_BUDGET_CHUNKS = 8
_WINDOW = 2
_TICK = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the demo saw. Times are in seconds."""

    dataset_bytes: int
    chunks: int
    items: int
    bad_items: int
    missing_items: int
    seconds: float
    first_item_seconds: float
    item_bytes: int
    bytes_fetched: int
    chunks_fetched: int
    cache_hits: int
    peak_cache_bytes: int
    max_cache_bytes: int
    leases: int

    @property
    def ok(self) -> bool:
        """Whether everything that the demo promises came true."""
        whole = self.bad_items == 0 and self.missing_items == 0
        return whole and self.leases == 0 and self.peak_cache_bytes <= self.max_cache_bytes

    @property
    def items_per_second(self) -> float:
        """Items handed out in one second, over all passes."""
        return self.items / self.seconds

    @property
    def mib_per_second(self) -> float:
        """Payload handed out in one second, over all passes."""
        return self.item_bytes / self.seconds / (1 << 20)


def play(*, size: int, latency: float) -> Outcome:
    """Run the whole demo.

    Args:
        size: About how many bytes the dataset gets.
        latency: Seconds that the server waits before each answer.
    """
    chunk_bytes = max(size // _CHUNKS, 4 * ITEM_BYTES)
    budget = _BUDGET_CHUNKS * chunk_bytes
    count = max(size // ITEM_BYTES, 1)
    with stage(needed_bytes=int(size * 1.05) + budget + (32 << 20), latency=latency) as places:
        _pack(places, count, chunk_bytes)
        return _stream(places, count, budget)


def _pack(places: Stage, count: int, chunk_bytes: int) -> None:
    import forebay

    with progress("making a dataset", count) as advance:
        forebay.pack(_counted(count, advance), str(places.data), chunk_bytes=chunk_bytes, overwrite=True)


def _counted(count: int, advance: Callable[[int], None]) -> Iterator[dict[str, object]]:
    for number, item in enumerate(make_items(count), 1):
        yield item
        if number % _TICK == 0:
            advance(_TICK)


def _stream(places: Stage, count: int, budget: int) -> Outcome:
    import forebay

    checkers = [Checker(count) for _ in range(EPOCHS)]
    first = 0.0
    moved = 0
    with watched(places.cache / "chunks") as peak, progress("streaming", EPOCHS * count) as advance:
        begin = time.monotonic()
        with forebay.open_dataset(
            places.url, cache_dir=places.cache, max_cache_bytes=budget, shuffle=True, shuffle_window=_WINDOW
        ) as dataset:
            for checker in checkers:
                for number, item in enumerate(dataset, 1):
                    first = first or time.monotonic() - begin
                    moved += checker.check(item)
                    if number % _TICK == 0:
                        advance(_TICK)
            seconds = time.monotonic() - begin
            stats = dataset.stats()
    observer = forebay.ChunkCache(places.cache)
    try:
        leases = observer.info().leases
    finally:
        observer.close()
    return Outcome(
        dataset_bytes=sum(file.stat().st_size for file in places.data.iterdir()),
        chunks=sum(1 for _ in places.data.glob("*.bin")),
        items=sum(checker.good for checker in checkers),
        bad_items=sum(checker.bad for checker in checkers),
        missing_items=sum(checker.missing for checker in checkers),
        seconds=seconds,
        first_item_seconds=first,
        item_bytes=moved,
        bytes_fetched=stats.bytes_fetched,
        chunks_fetched=stats.chunks_fetched,
        cache_hits=stats.cache_hits,
        peak_cache_bytes=peak.bytes,
        max_cache_bytes=budget,
        leases=leases,
    )
