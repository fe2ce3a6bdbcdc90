"""Downloaders that stay open for the next use: connections, and what a driver has found out, are worth keeping."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict

from forebay import _registry
from forebay._prefetch import before_exit, keep_thread
from forebay._source import close_downloader
from forebay.downloader import Downloader
from forebay.exceptions import AccessDeniedError, AuthenticationError

__all__ = ["REFUSALS", "retire_downloader", "shared_downloader"]

#: After these a downloader is made anew: environment and profiles, which it read when it was made, may be others now.
REFUSALS = (AuthenticationError, AccessDeniedError)
#: Downloaders stay open for the next use of the same root, this many of them.
MAX_DOWNLOADERS = 8

_Key = tuple[object, ...]
_lock = threading.Lock()
_kept: OrderedDict[_Key, Downloader] = OrderedDict()
#: No longer given out, and perhaps still in use by somebody who got them before.
_retired: OrderedDict[int, Downloader] = OrderedDict()


def shared_downloader(resolved: _registry.Resolved, root: str) -> Downloader:
    """A downloader of ``root`` that stays open for the next use, and is closed with the process."""
    keep_thread()  # the open downloaders belong to its loop
    options = tuple(sorted((name, repr(value)) for name, value in resolved.options.items()))
    # The environment may name another store than it did: what is read there would be cached as this one's.
    # Not `location`: that names the object too, and each would have connections and credentials of its own.
    where = tuple(
        sorted((name, repr(value)) for name, value in resolved.cls.location_options(resolved.options).items())
    )
    key = (os.getpid(), resolved.cls, root, options, where)
    with _lock:
        known = _kept.pop(key, None)
        opened = known if known is not None else _registry.make(resolved, root)
        _kept[key] = opened
        old = [_kept.popitem(last=False)[1] for _ in range(len(_kept) - MAX_DOWNLOADERS)]
    for downloader in old:
        close_downloader(downloader)
    return opened


def retire_downloader(downloader: Downloader) -> None:
    """Give ``downloader`` to nobody any more. Does not block; it is closed after the next few, or with the process."""
    with _lock:
        found = next((key for key, one in _kept.items() if one is downloader), None)
        if found is None:
            return
        _retired[id(downloader)] = _kept.pop(found)
        old = [_retired.popitem(last=False)[1] for _ in range(len(_retired) - MAX_DOWNLOADERS)]
    for one in old:
        threading.Thread(target=close_downloader, args=(one,), name="forebay-close", daemon=True).start()


def _close_downloaders() -> None:
    with _lock:
        opened = [downloader for key, downloader in _kept.items() if key[0] == os.getpid()]
        opened += _retired.values()
        _kept.clear()
        _retired.clear()
    for downloader in opened:
        close_downloader(downloader)


def _forget_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _kept.clear()
    _retired.clear()


before_exit(_close_downloaders)
os.register_at_fork(after_in_child=_forget_after_fork)
