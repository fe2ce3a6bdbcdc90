"""How worker processes start, and what is said when one dies."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from collections.abc import Iterable
from multiprocessing.context import BaseContext
from typing import Any

from torch.utils.data.dataloader import DataLoader, _MultiProcessingDataLoaderIter

from forebay.exceptions import ConfigError, WorkerCrashedError

__all__ = ["WatchfulIter", "choose_context", "crash_error"]

#: Seconds between two looks at the workers, where no signal tells of a dead one: a forkserver's children are not ours.
LOOK_INTERVAL = 1.0
#: What the server of new workers imports once, so that each worker starts in a moment.
_PRELOAD = ("torch", "torch.utils.data", "numpy", "forebay.torch", "forebay._prefetch", "forebay._cache")


def choose_context(asked: BaseContext | str | None, travelling: Iterable[object]) -> BaseContext:
    """Return the way in which workers start: as asked, else one that no library of the parent can make hang.

    ``fork`` copies a process in which a store's library, or anybody's thread, may be running; the copy then waits for
    threads that it does not have. A server that was forked before any of them started is as quick and has none.

    Raises:
        ConfigError: What goes to the workers is defined in a notebook or typed at a prompt, and nobody chose how.
    """
    if isinstance(asked, str):
        return multiprocessing.get_context(asked)
    if asked is not None:
        return asked
    chosen = multiprocessing.get_start_method(allow_none=True)
    if chosen not in (None, "fork"):
        return multiprocessing.get_context(chosen)  # somebody chose it for the whole program
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if not hasattr(sys.modules["__main__"], "__file__"):
        for thing in travelling:
            _check_importable(thing)
    if "forkserver" in methods:
        context.set_forkserver_preload(list(_PRELOAD))
    return context


def _check_importable(thing: object) -> None:
    module = getattr(thing, "__module__", None) or type(thing).__module__
    if module == "__main__":
        name = getattr(thing, "__qualname__", repr(thing))
        raise ConfigError(
            f"workers cannot import {name}: it is defined in a notebook or at a prompt; put it into a module, or give"
            ' multiprocessing_context="fork" before anything was read in this process, or num_workers=0',
            option="multiprocessing_context",
        )


def crash_error(error: RuntimeError) -> WorkerCrashedError | None:
    """Return what to raise instead of torch's error where it says that a worker died, else None."""
    text = str(error)
    if "DataLoader worker (pid" not in text:
        return None
    return WorkerCrashedError(
        f"{text.rstrip('. ')}; its chunks go back to the cache by themselves. A worker that dies at its start usually"
        ' means a script without `if __name__ == "__main__":` around its main part, or a dataset or collate function'
        " that cannot be imported there (its own output says which); one that is killed later, too little memory"
    )


class WatchfulIter(_MultiProcessingDataLoaderIter):
    """torch's iterator over workers, that looks more often whether they live."""

    def _try_get_data(self, timeout: float = LOOK_INTERVAL) -> tuple[bool, Any]:
        result: tuple[bool, Any] = super()._try_get_data(timeout)  # type: ignore[no-untyped-call]
        return result


def check_picklable(loader: DataLoader[Any], context: BaseContext) -> None:
    """Refuse, before any worker starts, what cannot be sent to one.

    Raises:
        ConfigError: A function cannot be pickled; the argument is named.
    """
    if context.get_start_method() == "fork":
        return
    for name in ("collate_fn", "worker_init_fn"):
        function = getattr(loader, name)
        try:
            pickle.dumps(function)
        except (pickle.PicklingError, AttributeError, TypeError) as exc:
            raise ConfigError(
                f"{name} cannot be sent to a worker ({exc}): define it at the top of a module; or give"
                ' multiprocessing_context="fork" where nothing was read in this process yet',
                option=name,
            ) from exc
