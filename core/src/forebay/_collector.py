"""What the collector comes upon is closed outside of it.

The collector runs wherever something is allocated, in a thread that may hold any lock at that moment: that of a future
it waits for, which the I/O thread needs to go on, or that of a logging handler. Closing a forgotten dataset there would
wait for threads that wait for such a lock. So inside the collector nothing is closed, only put down to be closed: that
takes no lock, starts no thread and waits for nobody. A thread that the I/O thread starts does it a moment later, and
whatever is left at the end of the process is done then.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from forebay import _config
from forebay._mutex import Mutex

__all__ = ["call_outside", "finish", "serve", "wake_with"]

logger = logging.getLogger("forebay")

_Closing = Callable[[], object]

#: What the collector said last comes last: "start" while it runs. It says so to methods in C alone: in a function of
#: ours an interrupt could arrive, and what is raised in the collector goes nowhere.
_phases: dict[str, object] = {}
#: What it said in this thread.
_here = threading.local()
#: Put down inside the collector, in the order in which it is to be done.
_forgotten: deque[_Closing] = deque()
_wake: Callable[[Callable[[], None]], None] | None = None
_closer: threading.Thread | None = None
_lock = Mutex()


def call_outside(closing: _Closing) -> None:
    """Call ``closing`` now; from within the collector, have another thread do so, in the order of such calls."""
    if not _is_collecting():
        closing()
        return
    _forgotten.append(closing)
    if _wake is not None:
        _wake(serve)


def wake_with(wake: Callable[[Callable[[], None]], None]) -> None:
    """Have ``wake`` called inside the collector: it is to call `serve` somewhere else, and must not wait."""
    global _wake
    _wake = wake


def serve() -> None:
    """See to it that a thread does what was put down. Not for the collector: it starts that thread."""
    global _closer
    with _lock:
        if _forgotten and (_closer is None or not _closer.is_alive()):
            thread = threading.Thread(target=_close_forgotten, name="forebay-close", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # none can be had, perhaps since the interpreter ends: it waits for `finish`
                return
            _closer = thread


def finish(deadline: float) -> bool:
    """Wait until all that was put down is done; False where that takes longer than ``deadline`` seconds."""
    until = _config.monotonic() + deadline
    while True:
        serve()
        closer = _closer
        if closer is None:
            if not _forgotten:
                return True
            _close_one()
            continue
        if closer is threading.current_thread():
            return False  # it closes something that asks for this
        closer.join(max(until - _config.monotonic(), 0.0))
        if closer.is_alive():
            return False


def _close_forgotten() -> None:
    global _closer
    while True:
        with _lock:
            if not _forgotten:
                _closer = None
                return
        _close_one()


def _close_one() -> None:
    try:
        closing = _forgotten.popleft()
    except IndexError:  # another thread was faster
        return
    try:
        closing()
    except (Exception, SystemExit):  # a driver's; nobody is there to hear of it, as in any finalizer
        logger.warning("closing what was forgotten failed", exc_info=True)


def _is_collecting() -> bool:
    """Whether the collector runs in this thread."""
    last = next(reversed(_phases), "stop")
    return last == "start" and getattr(_here, "start", None) is _phases.get("start")


def _forget_after_fork() -> None:
    # What waits is the parent's, as is the thread.
    global _closer
    _closer = None
    _phases.clear()
    _forgotten.clear()


gc.callbacks += [_phases.pop, _phases.__setitem__, partial(setattr, _here)]
os.register_at_fork(after_in_child=_forget_after_fork)
