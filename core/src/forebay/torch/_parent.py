"""A worker ends as soon as its trainer does, whatever it waits for."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import wait

__all__ = ["end_with_parent"]

#: Seconds between two looks at what no descriptor tells of: a parent that changed.
LOOK_INTERVAL = 1.0

_watches = 0  # the process that has the thread


def end_with_parent() -> None:
    """See to it; for each worker once, however often this is called. Nothing in a process that nobody started so."""
    global _watches
    if _watches != os.getpid() and multiprocessing.parent_process() is not None:
        _watches = os.getpid()
        threading.Thread(target=_watch, name="forebay-parent", daemon=True).start()


def _watch() -> None:
    """End this process when the trainer is gone.

    The descriptor tells of the trainer's death at once, also where a fork server is the parent; but another process
    that was forked meanwhile may hold its other end.
    """
    parent, number = multiprocessing.parent_process(), os.getppid()
    if parent is not None:
        while not wait([parent.sentinel], LOOK_INTERVAL) and os.getppid() == number:
            pass
        os._exit(1)
