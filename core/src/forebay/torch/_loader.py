"""`StreamingDataLoader`: batches of a stream, with a position that is exact at every batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.context import BaseContext
from numbers import Real
from typing import Any, NamedTuple

from torch.utils.data import DataLoader

from forebay import _config
from forebay._stats import Counters, merge_stats
from forebay.exceptions import ConfigError, PrefetchClosedError, WorkerCrashedError
from forebay.torch._buffers import batch_buffer
from forebay.torch._collate import collate_batch, convert_item
from forebay.torch._control import Control
from forebay.torch._errors import sendable_errors
from forebay.torch._live import Live
from forebay.torch._overrides import refuse_own_iter
from forebay.torch._parcel import Parcel
from forebay.torch._reading import StepItems
from forebay.torch._start import check_travellers, choose_context, start_server
from forebay.torch._stream import Stream, checked_int
from forebay.torch._workers import WatchfulIter, end
from forebay.types import Stats

__all__ = ["StreamingDataLoader"]

#: Seconds between two reports of a worker's counters; they go along with a batch.
REPORT_INTERVAL = 0.05


class StreamingDataLoader(DataLoader[Any]):
    """A ``DataLoader`` over a stream whose position can be saved and resumed, exactly, at every batch.

    Batches that workers have read ahead are not part of the position: what counts is what the loop was given. A loaded
    position is kept until its epoch is read to the end: leaving the loop early makes the next one begin there again.

    Args:
        dataset: A `StreamingDataset`, `CombinedStreamingDataset` or `ParallelStreamingDataset`.
        batch_size: Samples a batch and rank; None gives single items.
        num_workers: Processes that read and decode; 0 reads in this one.
        collate_fn: Makes a batch of a list of items; with ``batch_size=None`` it gets one item.
        pin_memory: As with ``DataLoader``.
        drop_last: Whether the incomplete last global batch is left out; None takes the dataset's.
        timeout: Seconds to wait for a batch of workers; 0 leaves it to the deadlines of the cache and the store.
        worker_init_fn: Called in each worker with its number.
        multiprocessing_context: How workers start; None takes ``forkserver`` (or ``spawn``), which no library of this
            process can make hang, unless `multiprocessing.set_start_method` chose another than ``fork``. The server
            starts with the loader and imports torch meanwhile.
        generator: As with ``DataLoader``.
        prefetch_factor: Batches that each worker reads ahead, 2 where there are workers.
        persistent_workers: Whether workers live on between epochs.
        timing: Whether workers report their counters, and stages of this process are timed, for `stats`.

    Raises:
        ConfigError: An argument cannot be used with a stream, or the dataset's class overrides ``__iter__``.
    """

    dataset: Stream

    def __init__(
        self,
        dataset: Stream,
        *,
        batch_size: int | None = 1,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool | None = None,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: BaseContext | str | None = None,
        generator: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        timing: bool = True,
        **others: Any,
    ) -> None:
        if not isinstance(dataset, Stream):
            raise ConfigError(
                f"StreamingDataLoader reads a StreamingDataset, not a {type(dataset).__name__}: make one of a URL; what"
                " is no stream is for torch's own DataLoader",
                option="dataset",
            )
        refuse_own_iter(dataset)
        _refuse(others)
        batch_size = checked_int("batch_size", batch_size, 1)
        num_workers = checked_int("num_workers", num_workers, 0) or 0
        prefetch_factor = checked_int("prefetch_factor", prefetch_factor, 1)
        _check_timeout(timeout, num_workers)
        collate = collate_fn or (convert_item if batch_size is None else collate_batch)
        context = None
        if num_workers:
            context = choose_context(multiprocessing_context)
            check_travellers(
                context, {"collate_fn": collate_fn, "worker_init_fn": worker_init_fn, **dataset.travellers()}
            )
        super().__init__(
            dataset,
            batch_size=None,
            num_workers=num_workers,
            collate_fn=_Collate(collate, single=batch_size is None, timing=timing, worker=num_workers > 0),  # type: ignore[arg-type]
            pin_memory=pin_memory,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
        )
        if context is not None:
            start_server(context)
        # torch batches nothing here, the dataset does; what the user asked for is what the user sees.
        object.__setattr__(self, "batch_size", batch_size)
        object.__setattr__(self, "drop_last", dataset.drop_last if drop_last is None else drop_last)
        dataset.count_for(batch_size or 1, drop_last=self.drop_last)
        self._timing = timing
        self._channel = Control()
        self._counters = Counters()
        self._reports: dict[str, Stats] = {}
        self._past = Stats()
        self._newest: Live | None = None

    def __len__(self) -> int:
        """Batches of a whole epoch; the same on every rank."""
        return self.dataset.count_batches(self.batch_size or 1, drop_last=self.drop_last)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override] # a generator: torch's own type is not for others
        stream, batch = self.dataset, self.batch_size or 1
        live = stream.begin_run(self._channel, batch, drop_last=self.drop_last)
        if isinstance(self._iterator, WatchfulIter) and self._iterator.ended:
            self._iterator = None  # persistent workers of which one died
        begin = _config.monotonic() if self._timing else 0.0
        with stream.told_by(self._channel):
            delivered = super().__iter__()
        if self._timing and self.num_workers:
            self._counters.stage("start", _config.monotonic() - begin)
        self._newest = live
        return _deliver(self, live, delivered)

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return WatchfulIter(self)

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch that the loop was given, as plain JSON-able values."""
        return self.dataset.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to a saved position; ranks, workers and batch size may be others than when it was saved.

        Raises:
            ConfigError: The state is not one, or of another dataset or order; the field is named.
        """
        self.dataset.load_state_dict(state_dict)

    def stats(self) -> Stats:
        """Counters of this process and, with ``timing``, of its workers, since the loader was made.

        Besides the stages of the dataset there are ``start`` (of workers), ``collate``, ``yield`` (what the loop waited
        for a batch) and ``loop`` (what the loop did between two batches). Workers report with their batches, some 20
        times a second.
        """
        own = self._counters.snapshot()
        return merge_stats([own, self._past, *self._reports.values(), self.dataset.stats()])

    def _check_newest(self, live: Live) -> None:
        """Workers that live on serve one iterator: an older one would take the batches of the newest.

        Raises:
            PrefetchClosedError: It is an older one.
        """
        if live is not self._newest and self.persistent_workers:
            raise PrefetchClosedError("another iterator of this loader was begun, and its workers serve one at a time")

    def _note(self, report: _Report) -> None:
        if report.stats is not None:
            self._reports[report.worker] = report.stats
        if report.collate is not None:
            self._counters.stage("collate", report.collate)

    def _settle_reports(self) -> None:
        """Workers that are gone report no more; those that live on count on."""
        if not self.persistent_workers:
            self._past = merge_stats([self._past, *self._reports.values()])
            self._reports.clear()


def _deliver(loader: StreamingDataLoader, live: Live, delivered: Iterator[Any]) -> Iterator[Any]:
    """Hand out what the workers made, and move the position with each batch."""
    stream = loader.dataset
    counters = loader._counters if loader._timing else None
    ended = None
    try:
        while True:
            stream.check_current(live)
            loader._check_newest(live)
            begin = _config.monotonic() if counters else 0.0
            if counters and ended is not None:
                counters.stage("loop", begin - ended)
            try:
                batch, report = next(delivered)
            except StopIteration:
                break
            if counters:
                ended = _config.monotonic()
                counters.stage("yield", ended - begin)
                loader._note(report)
            stream.advance(live, report.step + 1, report.repeated)
            if report.empty:
                continue
            yield batch
        if live.steps < live.deal.steps:
            raise WorkerCrashedError(
                f"nothing more came after {live.steps} of {live.deal.steps} batches, and no worker said why: its own"
                " output may; the position is behind the last batch that came"
            )
    finally:
        loader._settle_reports()
        end(delivered)
    stream.finish(live)


class _Report(NamedTuple):
    """What a worker says with a batch; a tuple, since a frozen dataclass takes five times as long on its way."""

    step: int
    repeated: int
    empty: bool
    worker: str = ""
    stats: Stats | None = None
    collate: float | None = None


class _Collate:
    """Makes a batch of a step's items, where they were read."""

    def __init__(self, function: Callable[[Any], Any], *, single: bool, timing: bool, worker: bool) -> None:
        self.function = function
        self._single = single
        self._timing = timing
        self._worker = worker
        self._reported = 0.0

    def __call__(self, step: StepItems) -> tuple[Any, _Report] | Parcel:
        if not self._worker:
            return self._make(step)
        with sendable_errors(), batch_buffer():
            return Parcel(self._make(step), "a batch as collate_fn made it")

    def _make(self, step: StepItems) -> tuple[Any, _Report]:
        items = step.items
        if not items:
            return None, self._report(step, None)
        if not self._timing:
            return self._collated(items), self._report(step, None)
        begin = _config.monotonic()
        batch = self._collated(items)
        return batch, self._report(step, _config.monotonic() - begin)

    def _collated(self, items: list[Any]) -> Any:
        try:
            return self.function(items[0] if self._single else items)
        except StopIteration as exc:
            raise RuntimeError("collate_fn raised StopIteration, which means the end of the epoch to torch") from exc

    def _report(self, step: StepItems, collate: float | None) -> _Report:
        worker, stats = "", None
        if self._worker and self._timing:
            now = _config.monotonic()
            if step.last or now - self._reported > REPORT_INTERVAL:
                self._reported = now
                worker, stats = step.count()
        repeated = len(step.items) if step.repeated else 0
        return _Report(step.step, repeated, not step.items, worker, stats, collate)


#: Arguments of ``DataLoader`` that a stream has no use for: the values that ask for nothing, and what to do instead.
_USELESS: dict[str, tuple[tuple[object, ...], str]] = {
    "shuffle": ((None, False), "give shuffle= to the dataset: the order is its"),
    "sampler": ((None,), "the order is the dataset's"),
    "batch_sampler": ((None,), "batches are dealt by the dataset"),
    "in_order": ((True,), "batches that overtake one another leave no exact position"),
    "pin_memory_device": (("",), "torch takes the current accelerator"),
}


def _refuse(others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if name not in _USELESS:
            raise ConfigError(f"StreamingDataLoader has no argument {name!r}", option=name)
        nothing, remedy = _USELESS[name]
        if not any(value is each or value == each for each in nothing):
            raise ConfigError(f"{name}={value!r} does not go with a stream: {remedy}", option=name)


def _check_timeout(timeout: float, num_workers: int) -> None:
    if isinstance(timeout, bool) or not isinstance(timeout, Real) or not 0 <= timeout < math.inf:
        raise ConfigError(f"timeout must be a number of seconds of at least 0, not {timeout!r}", option="timeout")
    if timeout and not num_workers:
        raise ConfigError(
            f"timeout={timeout!r} needs workers: without them nobody could stop waiting; give num_workers=1 or more, or"
            " options={'timeout': …} to the dataset, which bounds each read of the store",
            option="timeout",
        )
