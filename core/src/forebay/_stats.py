"""Counters of one dataset, fed from the consumer's threads and from the I/O thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from forebay import _config
from forebay._mutex import Mutex
from forebay.types import StageStats, Stall, Stats

__all__ = ["Counters", "merge_stats"]


#: A wait for a chunk that takes so many seconds is a stall, and remembered if it is one of the longest.
STALL_SECONDS = 0.1
#: Stalls that are remembered.
MOST_STALLS = 8


class Counters:
    """Thread-safe sums behind ``ds.stats()``."""

    def __init__(self) -> None:
        self._mutex = Mutex()
        self._counts: dict[str, float] = {}
        self._stages: dict[str, tuple[int, float]] = {}
        self._stalls: list[Stall] = []

    def add(self, **amounts: float) -> None:
        """Add to the named counters, which are the fields of `Stats`."""
        with self._mutex.lock:
            for name, amount in amounts.items():
                self._counts[name] = self._counts.get(name, 0) + amount

    def decoded(self, items: int, seconds: float | None = None) -> None:
        """Count items that were handed out, and the run of the stage "decode" that made them where it was timed."""
        with self._mutex.lock:
            self._counts["items"] = self._counts.get("items", 0) + items
            if seconds is not None:
                count, total = self._stages.get("decode", (0, 0.0))
                self._stages["decode"] = (count + 1, total + seconds)

    def tally(self, requests: int, retries: int) -> None:
        """Count the requests of one transfer, whether it ended well or not."""
        self.add(requests=requests, retries=retries)

    def stage(self, name: str, seconds: float) -> None:
        """Count one run of a stage."""
        with self._mutex.lock:
            count, total = self._stages.get(name, (0, 0.0))
            self._stages[name] = (count + 1, total + seconds)

    def waited(self, seconds: float, *, chunk: str, backend: str) -> None:
        """Count a reader's wait for a chunk, and remember a long one."""
        self.add(wait_seconds=seconds)
        self.stage("wait", seconds)
        if seconds >= STALL_SECONDS:
            with self._mutex.lock:
                self._stalls = longest([*self._stalls, Stall(chunk=chunk, backend=backend, seconds=seconds)])

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Count the block as one run of a stage."""
        begin = _config.monotonic()
        try:
            yield
        finally:
            self.stage(name, _config.monotonic() - begin)

    def snapshot(self, *, evictions: int = 0) -> Stats:
        """The sums so far."""
        with self._mutex.lock:
            counts = dict(self._counts)
            stalls = tuple(self._stalls)
            stages = {name: StageStats(count=count, total=total) for name, (count, total) in self._stages.items()}
        wait_seconds = counts.pop("wait_seconds", 0.0)
        whole = {name: int(value) for name, value in counts.items()}
        return Stats(wait_seconds=wait_seconds, evictions=evictions, stages=stages, stalls=stalls, **whole)

    def __reduce__(self) -> tuple[type[Counters], tuple[()]]:
        # A pickled dataset counts for itself in its new process.
        return Counters, ()


def longest(stalls: Iterable[Stall]) -> list[Stall]:
    """The stalls that are worth remembering, the longest first."""
    return sorted(stalls, key=lambda stall: -stall.seconds)[:MOST_STALLS]


def merge_stats(several: Iterable[Stats]) -> Stats:
    """The sums of several counts, as of the datasets of a mixture or of the workers of a loader."""
    several = list(several)
    if len(several) == 1:
        return several[0]
    sums: dict[str, float] = {}
    stages: dict[str, StageStats] = {}
    stalls: list[Stall] = []
    for stats in several:
        for name in Stats.__slots__:
            if name not in ("stages", "stalls"):
                sums[name] = sums.get(name, 0) + getattr(stats, name)
        for name, stage in stats.stages.items():
            before = stages.get(name, StageStats())
            stages[name] = StageStats(count=before.count + stage.count, total=before.total + stage.total)
        stalls += stats.stalls
    wait_seconds = sums.pop("wait_seconds", 0.0)
    whole = {name: int(value) for name, value in sums.items()}
    return Stats(wait_seconds=wait_seconds, stages=stages, stalls=tuple(longest(stalls)), **whole)
