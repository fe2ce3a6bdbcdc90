"""Whether obstore's runtime works in this process.

The runtime is one per process, starts with the first request and does not survive ``fork()``: a child that inherits a
started one waits for ever in its first request. Three things tell:

* we started it, in a process that is not this one;
* somebody else did: its threads are seen right before the fork (Linux), where this module was loaded by then;
* nothing tells, but obstore may have been used before us: the runtime is asked for a sign of life before its first
  request in this process, and has two seconds for it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path

__all__ = ["check_alive", "check_alive_async", "install", "is_started", "needs_check", "note_start", "unusable_reason"]

_DEADLINE = 1.25
_GRACE = 0.2  # for the thread that waits
_REMEDY = 'use multiprocessing_context="forkserver" or "spawn" to have obstore in the child too'
_TASKS = Path("/proc/self/task")
_RUNTIME_THREADS = ("tokio-",)


class _State:
    """What this process knows. One object, so that the at-fork hooks and the requests see the same."""

    def __init__(self) -> None:
        self.installed = False
        self.started = False
        self.checked = False
        self.doubtful = False
        self.seen_at_fork = False
        self.reason: str | None = None


_state = _State()


def install() -> None:
    """Watch forks from now on. Called when the first downloader of the process is made."""
    if _state.installed:
        return
    _state.installed = True
    # Somebody imported obstore before us: its runtime may be running, or may have been inherited dead.
    _state.doubtful = "obstore" in sys.modules
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def note_start() -> None:
    """The runtime starts now, in this process."""
    _state.started = True


def is_started() -> bool:
    """Whether the runtime was started in this process, by us or by somebody else as far as that can be seen."""
    return _state.started or _runtime_threads()


def unusable_reason() -> str | None:
    """Why obstore cannot be used in this process; None where nothing speaks against it."""
    return _state.reason


def needs_check() -> bool:
    """Whether the runtime has to give a sign of life before it is used."""
    return _state.doubtful and not _state.checked


def _before_fork() -> None:
    _state.seen_at_fork = _state.started or _runtime_threads()


def _runtime_threads() -> bool:
    try:
        tasks = list(_TASKS.iterdir())
    except OSError:
        return False  # no /proc: the sign of life has to tell
    for task in tasks:
        try:
            name = (task / "comm").read_text()
        except OSError:
            continue  # the thread ended meanwhile
        if name.startswith(_RUNTIME_THREADS):
            return True
    return False


def _after_fork() -> None:
    if _state.seen_at_fork and _state.reason is None:
        _state.reason = f"obstore's runtime was started before this process was forked and died with that; {_REMEDY}"
    _state.seen_at_fork = _state.started = _state.checked = False
    _state.doubtful = "obstore" in sys.modules


async def check_alive_async() -> None:
    """Ask the runtime for a sign of life; where none comes in time, `unusable_reason` says so from then on."""
    import obstore
    from obstore.store import MemoryStore

    try:
        await asyncio.wait_for(obstore.head_async(MemoryStore(), "x"), _DEADLINE)
    except FileNotFoundError:
        _state.checked = True
    except TimeoutError:
        _give_up()


def check_alive() -> None:
    """Sync twin of `check_alive_async`, callable from inside a running loop too."""
    thread = threading.Thread(target=lambda: asyncio.run(check_alive_async()), name="forebay-driver-check", daemon=True)
    thread.start()
    thread.join(_DEADLINE + _GRACE)
    if thread.is_alive() and not _state.checked:
        _give_up()  # nobody's clean-up may take longer than the promise of two seconds


def _give_up() -> None:
    _state.reason = f"obstore's runtime gave no sign of life within {_DEADLINE:g} s after a fork; {_REMEDY}"
