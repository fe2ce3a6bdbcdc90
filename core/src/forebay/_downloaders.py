"""How a downloader ends, and which stay open for the next use: connections and what a driver found out are worth it."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from concurrent.futures import TimeoutError as FutureTimeoutError

from forebay import _registry
from forebay._mutex import Mutex
from forebay._prefetch import IOThread, before_exit, io_thread, keep_thread, wait_for
from forebay.downloader import Downloader
from forebay.exceptions import AccessDeniedError, AuthenticationError

__all__ = ["REFUSALS", "close_downloader", "retire_downloader", "shared_downloader"]

logger = logging.getLogger("forebay")

#: Seconds that a driver may take to close.
CLOSE_DEADLINE = 2.0
#: After these a downloader is made anew: environment and profiles, which it read when it was made, may be others now.
REFUSALS = (AuthenticationError, AccessDeniedError)
#: Downloaders stay open for the next use of the same root, this many of them.
MAX_DOWNLOADERS = 8

_LATE = "close() of %r did not return within %.0f s and is abandoned"

_Key = tuple[object, ...]
_lock = Mutex()
_kept: OrderedDict[_Key, Downloader] = OrderedDict()
#: No longer given out, and perhaps still in use by somebody who got them before.
_retired: OrderedDict[int, Downloader] = OrderedDict()


def close_downloader(downloader: Downloader) -> None:
    """Let a downloader drain on the loop that it was used on, then close it for good.

    A hook that fails or blocks here is logged and left alone: whoever closes wants to go on, and the data is delivered.
    """
    try:
        thread = io_thread()
    except RuntimeError:  # there was none, and at its end Python 3.12 starts none: nothing was used on it
        downloader.close()
        return
    closing = threading.Thread(target=downloader.close, name="forebay-close", daemon=True)
    try:
        if not thread.is_current:
            wait_for(thread.submit(downloader.aclose), thread, CLOSE_DEADLINE)
    except Exception as exc:  # noqa: BLE001 - a stranger's hook; `close` has to be reached all the same
        logger.warning("aclose() of %r did not end well: %s", downloader, str(exc) or type(exc).__name__)
    try:
        closing.start()
    except RuntimeError:  # as above; the loop's thread has nothing else to do by then
        _close_on(thread, downloader)
        return
    closing.join(CLOSE_DEADLINE)
    if closing.is_alive():
        logger.warning(_LATE, downloader, CLOSE_DEADLINE)


def _close_on(thread: IOThread, downloader: Downloader) -> None:
    async def close() -> None:
        downloader.close()

    try:
        wait_for(thread.submit(close), thread, CLOSE_DEADLINE)
    except FutureTimeoutError:
        logger.warning(_LATE, downloader, CLOSE_DEADLINE)


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
    lock = _lock.lock
    if not lock.acquire(timeout=CLOSE_DEADLINE):  # a daemon thread makes one, and a stranger's may never be made
        logger.warning("a downloader is still being made after %.0f s; none is closed", CLOSE_DEADLINE)
        return
    try:
        opened = [downloader for key, downloader in _kept.items() if key[0] == os.getpid()]
        opened += _retired.values()
        _kept.clear()
        _retired.clear()
    finally:
        lock.release()
    for downloader in opened:
        close_downloader(downloader)


def _forget_after_fork() -> None:
    _kept.clear()
    _retired.clear()


before_exit(_close_downloaders)
os.register_at_fork(after_in_child=_forget_after_fork)
