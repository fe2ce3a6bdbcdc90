"""What a fork must find: no SQLite connection open, no lock held, and in the child no lock of the parent's.

Measured: a connection open at ``fork()`` lets parent and child lose each other's writes, even through a new connection
in the child. A child that keeps the holder lock's descriptor makes a dead parent look alive.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from forebay._cache._layout import drop_inherited_trash

if TYPE_CHECKING:
    from forebay._cache._shared import SharedCache

__all__ = ["forget", "registry_lock", "watch"]

#: Guards which caches are open; taken before the locks of any of them.
registry_lock = threading.RLock()
_watched: list[SharedCache] = []
_frozen: list[SharedCache] = []
_installed = False


def watch(cache: SharedCache) -> None:
    """Have forks respect ``cache``. Called with the registry's lock."""
    global _installed
    if not _installed:
        _installed = True
        os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
    _watched.append(cache)


def forget(cache: SharedCache) -> None:
    """Forks need not respect ``cache`` any more. Called with the registry's lock."""
    if cache in _watched:
        _watched.remove(cache)


def _before() -> None:
    registry_lock.acquire()
    _frozen[:] = _watched
    for cache in _frozen:
        cache.member.entry.acquire()
        cache.member.ledger.mutex.acquire()
        cache.member.ledger.disconnect()


def _in_parent() -> None:
    for cache in reversed(_frozen):
        cache.member.ledger.mutex.release()
        cache.member.entry.release()
    _frozen.clear()
    registry_lock.release()


def _in_child() -> None:
    for cache in _frozen:
        cache.forked()
    _frozen.clear()
    drop_inherited_trash()
    registry_lock.release()
