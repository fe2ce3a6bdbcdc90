"""`ChunkedDataset`: items by number and by iteration, whatever the store and the layout behind them."""

from __future__ import annotations

import logging
import operator
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, overload

import numpy as np

from forebay import _collector, _config
from forebay._formats import ChunkReader, DatasetFormat
from forebay._mutex import Mutex
from forebay._plan import EpochPlan, Step
from forebay._readers import OpenChunks, read_mixed, read_some
from forebay._source import ChunkSession, ChunkSource
from forebay._stats import Counters
from forebay.exceptions import CacheError, ConfigError, PrefetchClosedError, PrefetchError
from forebay.types import Stats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forebay._open import DatasetSpec

__all__ = ["ChunkedDataset", "Pace"]

logger = logging.getLogger("forebay")

#: An iteration decodes at most this many items at a time, and no more than this number of bytes holds: two batches, the
#: one in the reader's hands and the next, stay in the processor's cache (100 kB of bytes: 4.5 µs an item, else 7.4).
BATCH_ITEMS = 1024
BATCH_BYTES = 1 << 20
#: A batch is not to take longer than this, however slow its decoder is: the items behind it wait.
BATCH_SECONDS = 0.002
#: Random access waits for at most this many chunks at a time.
OPEN_AT_ONCE = 8


class ChunkedDataset:
    """A dataset whose items come from chunks. `forebay.open_dataset` makes it.

    ``ds[i]``, slices and `get_batch` use storage order; iteration follows the plan, and each completed one advances
    the epoch unless `set_epoch` was called. Use it as a context manager, or `close` it: what is left open is closed
    when nothing refers to it any more, soon after the collector finds it, or when the interpreter ends.
    """

    def __init__(self, spec: DatasetSpec, layout: DatasetFormat, source: ChunkSource, counters: Counters) -> None:
        self._spec = spec
        self._layout = layout
        self._source = source
        self._counters = counters
        self._index = layout.index
        self._starts: NDArray[np.int64] = self._index.starts
        mean = max((self._index.decoded_total or 0) // max(len(self), 1), 1)
        self._batch_items = max(min(BATCH_ITEMS, BATCH_BYTES // mean), 1)
        self._epoch = 0
        self._epoch_is_set = False
        self._closed = False
        self._fingerprint: str | None = None
        self._random_access = OpenChunks(self._open_missing)
        self._lock = Mutex()  # guards the set: it cannot be walked through while readers in other threads begin
        self._sessions: weakref.WeakSet[HeldSession] = weakref.WeakSet()
        self._finalizer = weakref.finalize(self, _close_source, source, os.getpid())
        if spec.shuffle:
            source.check_window(spec.shuffle_window)

    @property
    def url(self) -> str:
        """The dataset's URL without secrets."""
        return self._spec.shown_url

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration reads."""
        return self._epoch

    def __len__(self) -> int:
        return self._index.items

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        if isinstance(index, slice):
            return self.get_batch(range(*index.indices(len(self))))
        number = operator.index(index)
        if number < 0:
            number += len(self)
        if 0 <= number < len(self):
            chunk, offset = self._index.locate(number)
            reader = self._random_access.find(chunk)
            if reader is not None:
                item = reader.read(offset)
                self._counters.decoded(1)
                return item
        return self.get_batch([index])[0]

    def get_batch(self, indices: Sequence[SupportsIndex] | NDArray[np.integer[Any]]) -> list[Any]:
        """Return the items of ``indices``, in their order; each chunk is decoded in one call.

        Raises:
            IndexError: An index lies outside of the dataset.
        """
        numbers = self._check_indices(indices)
        if self._closed:
            raise PrefetchClosedError(f"the dataset {self.url} is closed")
        if not len(numbers):
            return []
        chunks, offsets = self._index.locate_many(numbers)
        wanted = list(dict.fromkeys(chunks.tolist()))
        if len(wanted) <= OPEN_AT_ONCE:
            items = read_mixed(self._random_access.get(wanted), chunks, offsets)
        else:
            items = [None] * len(numbers)
            wanted.sort()
            for first in range(0, len(wanted), OPEN_AT_ONCE):
                group = wanted[first : first + OPEN_AT_ONCE]
                where = np.flatnonzero((chunks >= group[0]) & (chunks <= group[-1]))
                found = read_mixed(self._random_access.get(group), chunks[where], offsets[where])
                for place, item in zip(where.tolist(), found, strict=True):
                    items[place] = item
        self._counters.decoded(len(items))
        return items

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """What torch's ``DataLoader`` calls on a dataset that it reads by number: one batch in one call."""
        return self.get_batch(indices)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that iterations read, until it is chosen again."""
        if not isinstance(epoch, int) or epoch < 0:
            raise ConfigError(f"epoch must be an int of at least 0, not {epoch!r}", option="epoch")
        self._epoch = epoch
        self._epoch_is_set = True

    def __iter__(self) -> Iterator[Any]:
        if self._closed:
            raise PrefetchClosedError(f"the dataset {self.url} is closed")
        return self._iterate(self._epoch)

    def stats(self) -> Stats:
        """Counters since the dataset was opened in this process."""
        return self._counters.snapshot(evictions=self._source.evictions)

    def close(self) -> None:
        """Stop every iteration, let go of every lease and connection. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        with self._lock:
            sessions = list(self._sessions)
        for held in sessions:
            held.close()
        self._random_access.clear()
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ChunkedDataset {self.url}: {len(self)} items in {len(self._index)} chunks>"

    def __reduce__(self) -> tuple[Any, ...]:
        from forebay._open import reopen

        return reopen, (self._spec, self._epoch, self._epoch_is_set)

    def _check_indices(self, indices: Sequence[SupportsIndex] | NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        if isinstance(indices, np.ndarray) and np.issubdtype(indices.dtype, np.integer):
            numbers = indices.astype(np.int64)
        elif isinstance(indices, range):
            numbers = np.arange(indices.start, indices.stop, indices.step, dtype=np.int64)
        else:
            numbers = np.array(list(map(operator.index, indices)), dtype=np.int64)
        if not len(numbers):
            return numbers
        length = len(self)
        low, high = int(numbers.min()), int(numbers.max())
        if low < -length or high >= length:
            wrong = low if low < -length else high
            raise IndexError(f"index {wrong} is out of range for {self.url} with {length} items")
        return numbers if low >= 0 else np.where(numbers < 0, numbers + length, numbers)

    def _open_missing(self, chunks: Sequence[int]) -> list[tuple[ChunkReader, Path]]:
        opened = []
        with closing(self._hold(chunks, ahead=len(chunks) - 1)) as held:
            for place, chunk in enumerate(chunks):
                path = held.session.take(place)
                # It stays open, and an item is read again: what was written to it must not be read.
                opened.append((self._layout.open_chunk(path, chunk).copying(), path))
                held.session.done(place)
        return opened

    def _hold(
        self, order: Sequence[int] | NDArray[np.int64], *, ahead: int | None, then: NDArray[np.int64] | None = None
    ) -> HeldSession:
        return self._keep(self._source.session(order, ahead=ahead, then=then))

    def _keep(self, session: ChunkSession) -> HeldSession:
        held = HeldSession(session)
        with self._lock:
            self._sessions.add(held)
        if self._closed:  # only now: who closes the dataset either finds the session or is seen here
            held.close()
            raise PrefetchClosedError(f"the dataset {self.url} is closed")
        return held

    def epoch_plan(self, epoch: int, partitions: int = 1) -> EpochPlan:
        """The order of an epoch, divided into canonical partitions."""
        spec = self._spec
        window = spec.shuffle_window if spec.shuffle else 0
        return EpochPlan(
            sizes=self._index.item_counts, seed=spec.seed, epoch=epoch, window=window, partitions=partitions
        )

    def describe_order(self) -> dict[str, Any]:
        """What the order of items depends on, in plain values: two datasets that agree in it have the same orders."""
        spec = self._spec
        if self._fingerprint is None:
            self._fingerprint = self._index.fingerprint()
        block_size = (spec.format_options or {}).get("block_size")
        return {
            "block_size": block_size if isinstance(block_size, int) else None,
            "dataset": self._fingerprint,
            "seed": spec.seed,
            "shuffle": spec.shuffle,
            "shuffle_window": spec.shuffle_window,
        }

    def travellers(self) -> dict[str, object]:
        """What goes along with the pickled dataset and was given by the user, by the name under which that was done."""
        spec = self._spec
        return {"options": spec.options, **{f"{name}://": cls for name, cls in (spec.registrations or {}).items()}}

    @property
    def batch_items(self) -> int:
        """Items that are decoded together, so that neither calls nor memory cost too much."""
        return self._batch_items

    @property
    def look_ahead(self) -> int:
        """Chunks that a reader fetches ahead."""
        return self._source.look_ahead(self._spec.ahead)

    def claim_window(self, window: int) -> AbstractContextManager[None]:
        """See `ChunkSource.claim_window`."""
        return self._source.claim_window(window)

    def follow(
        self, order: Sequence[int], *, ahead: int, now: NDArray[np.int64], then: NDArray[np.int64]
    ) -> HeldSession:
        """Start a way through a list of chunks that may grow; ``now`` and ``then`` are this epoch's order and the next.

        Raises:
            PrefetchClosedError: The dataset is closed.
        """
        if self._closed:
            raise PrefetchClosedError(f"the dataset {self.url} is closed")
        return self._keep(self._source.session(order, ahead=ahead, now=now, then=then))

    def decode(self, reader: ChunkReader, offsets: NDArray[np.int64]) -> tuple[list[Any], float]:
        """Read samples of an open chunk, and count them; the second value is the seconds that it took."""
        began = _config.monotonic()
        items = read_some(reader, offsets)
        seconds = _config.monotonic() - began
        self._counters.decoded(len(items), seconds)
        return items, seconds

    def _iterate(self, epoch: int) -> Iterator[Any]:
        plan = self.epoch_plan(epoch)
        window = plan.window
        lane, then = plan.lane(), replace(plan, epoch=epoch + 1).chunks()
        order = lane.chunks
        readers: dict[int, ChunkReader] = {}
        pace = Pace(self._batch_items)
        with self._source.claim_window(window), closing(self._hold(order, ahead=self._spec.ahead, then=then)) as held:
            for step in plan.steps(lane):
                reader = self.enter_chunk(held.session, int(order[step.place]), step.place)
                if reader is not None:
                    readers[step.place] = reader
                for batch in self._batches(step, readers, pace):
                    yield from batch
                    if self._closed:
                        raise PrefetchClosedError(f"the dataset {self.url} was closed during an iteration")
                for place in step.finished:
                    readers.pop(place, None)
                    held.session.done(place)
        if not self._epoch_is_set and self._epoch == epoch:
            self._epoch += 1

    def enter_chunk(self, session: ChunkSession, chunk: int, place: int) -> ChunkReader | None:
        """Wait for a chunk of a session and open it; None where it cannot be had and is to be skipped."""
        try:
            reader = self._layout.open_chunk(session.take(place), chunk)
        except (CacheError, PrefetchError, ConfigError):
            raise
        except Exception as exc:  # on_error="skip" covers whatever a store or a stranger's hook raises
            if self._spec.on_error != "skip":
                raise
            session.done(place)
            self._counters.add(skipped_chunks=1)
            logger.warning("chunk %s of %s is skipped: %s", self._index.chunk(chunk).name, self.url, exc)
            return None
        session.opened(place)
        return reader

    def _batches(self, step: Step, readers: dict[int, ChunkReader], pace: Pace) -> Iterator[list[Any]]:
        begin, count = 0, len(step.offsets)
        while begin < count:
            part = slice(begin, begin + pace.items)
            began = _config.monotonic()
            if step.places is None:
                reader = readers.get(step.place)
                batch = [] if reader is None else reader.read_many(step.offsets[part])
            else:
                batch = read_mixed(readers, step.places[part], np.asarray(step.offsets[part]))
            seconds = _config.monotonic() - began
            self._counters.decoded(len(batch), seconds)
            yield batch
            begin = part.stop
            pace.took(seconds)


class Pace:
    """How many items an iteration decodes at a time: more while that is quick, fewer where a decoder is slow."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.items = min(most, 8)

    def took(self, seconds: float) -> None:
        """Learn how long the last batch took."""
        if seconds > BATCH_SECONDS:
            self.items = max(self.items // 2, 1)
        elif seconds < BATCH_SECONDS / 3:
            self.items = min(self.items * 2, self._most)


class HeldSession:
    """A session that the dataset can find again, to close it."""

    def __init__(self, session: ChunkSession) -> None:
        self.session = session

    def close(self) -> None:
        _collector.call_outside(self.session.close)


def _close_source(source: ChunkSource, pid: int) -> None:
    if pid == os.getpid():
        _collector.call_outside(source.close)
