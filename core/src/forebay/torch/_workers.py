"""How worker processes start and end, and what is said when one dies.

torch's own iterator leaves gaps that people meet: it waits for ever for the rest of a message whose writer was killed,
and for a lock that a killed worker held; it hears of a dead child of a fork server every five seconds only, and of
other dead children by an exception at whatever line the training loop is; workers whose trainer was killed wait for
each other with full queues. So dead workers are seen here while waiting, messages are read without ever blocking, and
a worker ends as soon as its trainer does.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker, util
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from torch.utils.data import _utils
from torch.utils.data.dataloader import DataLoader, _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from forebay import _config
from forebay.exceptions import ConfigError, WorkerCrashedError
from forebay.torch._buffers import Buffers, serve_worker
from forebay.torch._errors import sendable_errors
from forebay.torch._inbox import Inbox
from forebay.torch._parent import end_with_parent
from forebay.torch._start import FORK_ADVICE, is_being_started

__all__ = ["WatchfulIter", "end"]

#: Seconds between two looks at what no descriptor tells of: torch's thread that pins memory.
LOOK_INTERVAL = 1.0
#: Seconds that workers have to end by themselves, all together, before they are ended.
END_DEADLINE = 2.0
#: Seconds that they then have to follow SIGTERM, all together, before they are killed: a stopped one never does.
TERM_DEADLINE = 1.0
#: Seconds to wait for a lock that workers hold for microseconds, unless they died with it.
LOCK_DEADLINE = 1.0

_GUARD = (
    'a script whose loader has workers needs `if __name__ == "__main__":` around its main part, because each worker'
    " imports it"
)


class WatchfulIter(_MultiProcessingDataLoaderIter):
    """torch's iterator over workers, that sees at once when one dies, and never waits for what a dead one left."""

    # Until torch has made enough of the object that there is something to end.
    _shutdown = True
    _worker_pids_set = False
    _at_exit: util.Finalize | None = None

    def __init__(self, loader: DataLoader[Any]) -> None:
        if is_being_started():
            raise ConfigError(f"this is a worker that is being started, and it would start workers itself: {_GUARD}")
        self._heard: set[int] = set()
        self._workers, self._index_queues = [], []
        context: Any = loader.multiprocessing_context
        self._buffers = _make_buffers(loader)
        try:
            with _sigint_held_back(context):
                super().__init__(_WithStart(loader, self._buffers))
                self._forget_pids()
            self._at_exit = _end_at_exit(self)
        except (pickle.PicklingError, AttributeError, TypeError) as exc:
            raise ConfigError(
                f"the dataset cannot be sent to a worker ({exc}): what it holds has to be defined at the top of a"
                f" module; or give {FORK_ADVICE}",
                option="dataset",
            ) from exc
        except RuntimeError as exc:
            if "DataLoader worker (pid" not in str(exc):
                raise
            raise self._crashed(self._dead()) from None
        except BaseException:  # Ctrl-C: what has started must not go on alone
            self._abandon()
            raise
        finally:
            if self._buffers is not None:
                self._buffers.close_descriptor()

    @property
    def ended(self) -> bool:
        """Whether its workers are gone, so that nothing more comes."""
        return self._shutdown

    def _forget_pids(self) -> None:
        """Have torch's SIGCHLD handler leave our workers to us: it raises at whatever line the main thread is."""
        if self._worker_pids_set:
            _utils.signal_handling._remove_worker_pids(id(self))  # type: ignore[attr-defined]
            self._worker_pids_set = False

    def _try_get_data(self, timeout: float = LOOK_INTERVAL) -> tuple[bool, Any]:
        if self._buffers is not None:
            self._buffers.take_back()
        deadline = _config.monotonic() + timeout
        return self._receive_pinned(deadline) if self._pin_memory else self._receive(deadline)

    def _receive_pinned(self, deadline: float) -> tuple[bool, Any]:
        """A thread of torch's reads the messages; who waits for it has to look whether the workers live."""
        while True:
            left = max(deadline - _config.monotonic(), 0)
            try:
                found: tuple[bool, Any] = super()._try_get_data(min(left, LOOK_INTERVAL))  # type: ignore[no-untyped-call]
            except RuntimeError as exc:
                if "exited unexpectedly" not in str(exc):
                    raise
                raise self._crashed(self._dead()) from None
            if found[0] or left <= LOOK_INTERVAL:
                return found

    def _receive(self, deadline: float) -> tuple[bool, Any]:
        working = {
            worker.sentinel: worker for worker, works in zip(self._workers, self._workers_status, strict=True) if works
        }
        try:
            message = self._inbox.receive(working, deadline)
        except BrokenPipeError:
            for worker in working.values():
                if wait([worker.sentinel], 0):  # its descriptors are closed a moment before it can be waited for
                    worker.join(END_DEADLINE)
            raise self._crashed(self._dead()) from None
        if message is None:
            return False, None
        try:
            return True, message.load()
        except (OSError, EOFError, RuntimeError) as exc:
            # The tensors of a batch are fetched from who made them, who may be dying at this moment.
            if not wait(list(working), LOCK_DEADLINE) or not self._dead():
                raise
            raise self._crashed(self._dead()) from exc

    @property
    def _inbox(self) -> Inbox:
        inbox: Inbox | None = self.__dict__.get("_opened_inbox")
        if inbox is None:
            inbox = self.__dict__["_opened_inbox"] = Inbox(self._worker_result_queue)
        return inbox

    def _process_data(self, data: Any, worker_idx: int) -> Any:
        self._heard.add(worker_idx)
        return super()._process_data(data, worker_idx)  # type: ignore[no-untyped-call]

    def _dead(self) -> list[int]:
        """Numbers of the workers that ended though nobody told them to."""
        return [
            number
            for number, worker in enumerate(self._workers)
            if not worker.is_alive() and (self._workers_status[number] or worker.exitcode)
        ]

    def _crashed(self, dead: list[int]) -> WorkerCrashedError:
        """Give up the other workers too, and return what to raise."""
        lines = [f"worker {number} {_ending(self._workers[number])}" for number in dead]
        killed = any((self._workers[number].exitcode or 0) < 0 for number in dead)
        early = not any(number in self._heard for number in dead)
        self._abandon()
        advice = []
        if killed:
            advice.append(
                "the kernel kills processes where memory is short: take fewer workers, smaller batches or windows. Its"
                " chunks go back to the cache by themselves, and the loader can be iterated again"
            )
        elif early:
            advice.append(
                f"it ended before its first batch, and its own output above says why: {_GUARD}; what the dataset,"
                " collate_fn and worker_init_fn need has to be importable there, so not be defined inside of that `if`"
            )
        return WorkerCrashedError("; ".join([*(lines or ["a worker died"]), *advice]))

    def _abandon(self) -> None:
        """End the workers without asking them: the one that died may have held any lock that they share."""
        self._shutdown = True
        self._forget_pids()
        self._forget_exit()
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.join(END_DEADLINE)
        if hasattr(self, "_pin_memory_thread"):
            self._pin_memory_thread_done_event.set()
            self._worker_result_queue.cancel_join_thread()
        for queue in self._index_queues:
            queue.cancel_join_thread()
            queue.close()

    def _shutdown_workers(self) -> None:
        if self._shutdown or _utils.python_exit_status is not False:
            return  # at the interpreter's end multiprocessing ends them
        done: Any = self._workers_done_event
        if self._dead() or not done._cond.acquire(True, LOCK_DEADLINE):
            self._abandon()
            return
        done._cond.release()
        if not self._has_stopped_pinning():
            self._abandon()
            return
        done.set()
        for number in range(len(self._workers)):
            if self._persistent_workers or self._workers_status[number]:
                self._mark_worker_as_unavailable(number, shutdown=True)
        deadline = _config.monotonic() + END_DEADLINE
        for worker in self._workers:
            worker.join(max(deadline - _config.monotonic(), 0))
        _end_now(self._workers)  # some wait for a chunk: what they hold is given back without them
        self._forget_exit()
        done = threading.Event()  # one that was ended may have held the lock of the other
        self._workers_done_event = done
        super()._shutdown_workers()

    def _has_stopped_pinning(self) -> bool:
        """End torch's thread that pins memory, before the workers that it reads from; False where it reads on."""
        if not self._pin_memory:
            return True
        self._pin_memory_thread_done_event.set()
        self._worker_result_queue.put((None, None))  # wakes it up
        self._pin_memory_thread.join(END_DEADLINE)
        return not self._pin_memory_thread.is_alive()

    def _forget_exit(self) -> None:
        _at_work.discard(self)
        if self._at_exit is not None:
            self._at_exit.cancel()
            self._at_exit = None


def _end_now(workers: Sequence[BaseProcess]) -> None:
    """End workers by a signal, and by SIGKILL those that SIGTERM does not reach, as one that somebody stopped."""
    for signal_by in (BaseProcess.terminate, BaseProcess.kill):
        left = [worker for worker in workers if worker.is_alive()]
        for worker in left:
            signal_by(worker)
        deadline = _config.monotonic() + TERM_DEADLINE
        for worker in left:
            worker.join(max(deadline - _config.monotonic(), 0))


_at_work: weakref.WeakSet[WatchfulIter] = weakref.WeakSet()
_is_registered = False


def _end_at_exit(iterator: WatchfulIter) -> util.Finalize:
    """Have its workers ended at the interpreter's end, if it is not ended before.

    Before datasets are closed: a worker that is stopped may hold the cache's ledger. And before multiprocessing ends
    what is left: it waits without a deadline, also for who is stopped. Its own children end without `atexit`.
    """
    global _is_registered
    _at_work.add(iterator)
    if not _is_registered:  # now, and not before: what is registered last is called first
        _is_registered = True
        atexit.register(_end_all)
    return util.Finalize(None, _end_now, args=(iterator._workers,), exitpriority=1)


def _end_all() -> None:
    _end_now([worker for each in list(_at_work) for worker in each._workers])


os.register_at_fork(after_in_child=_at_work.clear)


def _make_buffers(loader: DataLoader[Any]) -> Buffers | None:
    with suppress(OSError):  # torch's own way for what is large, then
        return Buffers(loader.num_workers, loader.prefetch_factor or 1)
    return None


def end(delivered: Any) -> None:
    """End an iterator of a loader now, and not when nothing refers to it any more: an error's traceback may, for long.

    Persistent workers are for the next epoch.
    """
    if isinstance(delivered, WatchfulIter):
        if not delivered._persistent_workers:
            delivered._shutdown_workers()
    elif isinstance(delivered, _BaseDataLoaderIter):
        delivered._dataset_fetcher.dataset_iter.close()  # type: ignore[attr-defined]


def _ending(worker: BaseProcess) -> str:
    code = worker.exitcode
    if code is None or code >= 0:
        return f"(pid {worker.pid}) exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"(pid {worker.pid}) was killed by {name}" + (": is /dev/shm full?" if name == "SIGBUS" else "")


class _WithStart:
    """A loader as torch's iterator sees it: its workers begin with what ours need."""

    def __init__(self, loader: DataLoader[Any], buffers: Buffers | None) -> None:
        self._loader = loader
        self.dataset = loader.dataset
        self.worker_init_fn = _Start(loader.worker_init_fn, buffers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Start:
    """What a worker does first; then the user's own function."""

    def __init__(self, function: Callable[[int], None] | None, buffers: Buffers | None) -> None:
        self._function = function
        self._buffers = buffers

    def __call__(self, number: int) -> None:
        # Ctrl-C goes to all processes of a terminal; it is for the trainer, which ends its workers or goes on.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        end_with_parent()
        serve_worker(self._buffers, number)
        if self._function is not None:
            with sendable_errors():
                self._function(number)


@contextmanager
def _sigint_held_back(context: BaseContext) -> Iterator[None]:
    """Have Ctrl-C wait until all workers have started, so that none of them is told half of what it needs.

    Workers begin with the signal held back, as this thread is, and say nothing of it before `_Start` ignores it; those
    of a fork server inherit from that, which is left as it is.
    """
    came: list[tuple[int, Any]] = []
    handler = signal.getsignal(signal.SIGINT)
    ours = threading.current_thread() is threading.main_thread() and callable(handler)
    masks = context.get_start_method() != "forkserver"
    resource_tracker.ensure_running()  # its start would let the signal through
    if ours:
        signal.signal(signal.SIGINT, lambda *arrived: came.append(arrived))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT} if masks else ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if ours:
            signal.signal(signal.SIGINT, handler)
            if came and callable(handler):
                handler(*came[0])
