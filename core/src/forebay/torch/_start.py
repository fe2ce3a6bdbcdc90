"""Which way worker processes start, and whether what goes to them can get there."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import sys
import types
from collections.abc import Mapping
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from typing import Any

from forebay.exceptions import ConfigError

__all__ = ["FORK_ADVICE", "check_travellers", "choose_context", "is_being_started", "start_server"]

#: Where the last resort can be taken: opening a dataset over http starts nothing that a fork breaks.
FORK_ADVICE = (
    'multiprocessing_context="fork" before anything was read in this process (with options={"driver": "fsspec"} where'
    " the dataset is in S3, GCS or Azure)"
)

#: What the server of new workers imports once, so that each worker starts in a moment.
_PRELOAD = ("torch", "torch.utils.data", "numpy", "forebay.torch", "forebay._prefetch", "forebay._cache")


def choose_context(asked: BaseContext | str | None) -> BaseContext:
    """Return the way in which workers start: as asked, else one that no library of the parent can make hang.

    ``fork`` copies a process in which a store's library, or anybody's thread, may be running; the copy then waits for
    threads that it does not have. A server that was forked before any of them started is as quick and has none.
    """
    if isinstance(asked, str):
        try:
            context: BaseContext = multiprocessing.get_context(asked)
        except ValueError as exc:
            known = ", ".join(multiprocessing.get_all_start_methods())
            raise ConfigError(
                f"multiprocessing_context={asked!r} is none of {known}", option="multiprocessing_context"
            ) from exc
    elif asked is not None:
        context = asked
    else:
        # "fork" says nothing: it is what Python 3.13 and older take where nobody chose.
        chosen: str | None = multiprocessing.get_start_method(allow_none=True)
        methods = multiprocessing.get_all_start_methods()
        if chosen in (None, "fork"):
            chosen = "forkserver" if "forkserver" in methods else "spawn"
        context = multiprocessing.get_context(chosen)
    if context.get_start_method() == "forkserver":
        _preload(context)
    return context


def _preload(context: BaseContext) -> None:
    """Add our modules to what the program asked for; nothing changes where the server runs already."""
    asked = [name for name in getattr(forkserver._forkserver, "_preload_modules", ()) if name != "__main__"]
    context.set_forkserver_preload([*asked, *(name for name in _PRELOAD if name not in asked)])


def start_server(context: BaseContext) -> None:
    """Have the server of new workers import torch, which takes seconds, while this process goes on with other things.

    Not in a worker that is being started itself: its program has no main guard, and is told so when it iterates.
    """
    if context.get_start_method() == "forkserver" and not is_being_started():
        with contextlib.suppress(OSError):  # no room for another process now; whoever starts workers is told
            forkserver.ensure_running()


def is_being_started() -> bool:
    """Whether this process is a worker that still imports the program."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def check_travellers(context: BaseContext, travellers: Mapping[str, object]) -> None:
    """Refuse, before any worker starts, what cannot be sent to one; ``travellers`` go by the names of arguments.

    Raises:
        ConfigError: One cannot be pickled, or is defined where no other process can import it.
    """
    if context.get_start_method() == "fork":
        return
    main = getattr(sys.modules["__main__"], "__file__", None)
    typed = main is None
    if main is not None and getattr(sys.modules["__main__"], "__spec__", None) is None and not os.path.exists(main):
        raise ConfigError(
            f"workers cannot import the program, which was read from {main}: write it to a file, or give {FORK_ADVICE},"
            " or num_workers=0",
            option="multiprocessing_context",
        )
    for name, thing in travellers.items():
        pickler = _Globals()
        try:
            pickler.dump(thing)
        except (pickle.PicklingError, AttributeError, TypeError) as exc:
            raise ConfigError(
                f"{name} cannot be sent to a worker ({exc}): define it at the top of a module; or give {FORK_ADVICE}",
                option=name,
            ) from exc
        if typed and pickler.of_main:
            raise ConfigError(
                f"workers cannot import {pickler.of_main[0]} ({name}): it is defined in a notebook or at a prompt; put"
                f" it into a module, or give {FORK_ADVICE}, or num_workers=0",
                option=name,
            )


class _Globals(pickle.Pickler):
    """Pickles into nothing, and notes what would be imported from the program itself."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.of_main: list[str] = []

    def persistent_id(self, obj: Any) -> None:
        """Asked of every object: none is known to the other side."""
        if isinstance(obj, type | types.FunctionType) and obj.__module__ == "__main__":
            self.of_main.append(obj.__qualname__)
