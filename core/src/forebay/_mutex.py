"""A lock for what finalizers and forked children come to as well."""

from __future__ import annotations

import os
import threading
import weakref

__all__ = ["Mutex"]


class Mutex:
    """Guards a few attributes for the length of a ``with`` block.

    A signal handler or a stranger's finalizer may come at any moment, also inside the block and in its thread, and take
    the lock again: so it is reentrant, and what it guards has to be whole wherever something is allocated.
    In a forked child it is free: the thread that held it at the fork does not exist there.

    Attributes:
        lock: The lock as it is now, for a ``with`` block that has to be quick.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _all.add(self)

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def renew(self) -> None:
        """Forget who holds it."""
        self.lock = threading.RLock()


_all: weakref.WeakSet[Mutex] = weakref.WeakSet()


def _after_fork() -> None:
    for mutex in list(_all):
        mutex.renew()


os.register_at_fork(after_in_child=_after_fork)
