"""Opening a cache directory: one shared object for each process and real directory."""

from __future__ import annotations

import logging
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

from forebay import _config
from forebay._cache import _fork
from forebay._cache._api import Cache
from forebay._cache._emergency import make_room
from forebay._cache._layout import Layout, refuse_dangerous
from forebay._cache._platform import READ_ONLY_ERRNOS, probe_locking, refuse_platform
from forebay._cache._readonly import ReadOnlyCache
from forebay._cache._shared import SharedCache
from forebay.exceptions import CacheError, CacheFullError, ConfigError

__all__ = ["clear_directory", "open_cache", "open_observer"]

logger = logging.getLogger("forebay")

_Identity = tuple[int, int]
_open: dict[_Identity, Cache] = {}


def open_cache(cache_dir: Path | str | None, *, max_bytes: int | None) -> Cache:
    """Open a cache directory, making it where there is none, and become one of its holders.

    Args:
        cache_dir: None for the user's default cache directory, which is private; another follows the umask.
        max_bytes: The budget of everything below ``chunks/``. None: the recorded one, else 80 % of the free space.

    Raises:
        ConfigError: The directory is one where other things live, or the budget is not positive.
        CacheError: It is not a cache and not empty, cannot be written, or the system cannot serve one.
        CacheCorruptError: Another version's, or on a file system that cannot lock.
    """
    try:
        return _join(cache_dir, max_bytes)
    except CacheFullError:  # the ledger has no room: what an earlier run left is there to be given back
        if not make_room(Layout(_directory(cache_dir))):
            raise
    return _join(cache_dir, max_bytes)


def _join(cache_dir: Path | str | None, max_bytes: int | None) -> Cache:
    cache = _take(cache_dir, max_bytes)
    if isinstance(cache, SharedCache):
        try:
            cache.member.register()
        except BaseException:  # the count of users is given back, whatever came; it is raised again
            cache.close()
            raise
    return cache


def _directory(cache_dir: Path | str | None) -> Path:
    given = _config.default_cache_dir() if cache_dir is None else Path(cache_dir).expanduser()
    return given.resolve()


def open_observer(cache_dir: Path | str | None, *, max_bytes: int | None) -> Cache:
    """Like `open_cache`, without becoming a holder, and nothing is removed where the disk is full."""
    return _take(cache_dir, max_bytes)


def clear_directory(cache_dir: Path | str | None, *, max_bytes: int | None) -> None:
    """Remove every chunk that nobody uses, also where the disk has no room for the ledger that says so.

    Raises:
        CacheError: Some are in use, and stay; the message says by whom.
    """
    try:
        _clear(cache_dir, max_bytes)
    except CacheFullError as exc:
        layout = Layout(_directory(cache_dir))
        if not make_room(layout):
            raise CacheFullError(
                f"{layout.directory}: the disk is full, and nothing there can be removed: the cache is empty, or a"
                " living process uses it; free some space on that disk",
                path=str(layout.directory),
            ) from exc
        _clear(cache_dir, max_bytes)


def _clear(cache_dir: Path | str | None, max_bytes: int | None) -> None:
    cache = _take(cache_dir, max_bytes)
    try:
        cache.clear()
    finally:
        cache.close()


def _take(cache_dir: Path | str | None, max_bytes: int | None) -> Cache:
    refuse_platform(sys.platform)
    if max_bytes is not None and max_bytes <= 0:
        raise ConfigError(f"max_cache_bytes must be positive, not {max_bytes}", option="max_cache_bytes")
    directory = _directory(cache_dir)
    refuse_dangerous(directory)
    with _fork.registry_lock:
        layout = Layout(directory)
        writable = _prepare(layout, private=cache_dir is None)
        cache, known = _share(_identity(directory), lambda: _make(layout, max_bytes, writable=writable))
        if known and isinstance(cache, SharedCache):
            try:
                cache.member.ask_budget(max_bytes)
            except BaseException:  # the count of users is given back, whatever came; it is raised again
                cache.close()
                raise
    return cache


def _share(identity: _Identity, make: Callable[[], Cache]) -> tuple[Cache, bool]:
    """Count one user more; returns the cache, and whether it was open already."""
    while True:
        cache = known = _open.get(identity)
        if cache is None:
            cache = _open[identity] = make()
        cache.users += 1
        if _open.get(identity) is cache:  # else the collector has closed its last user just now
            return cache, known is not None


def _identity(directory: Path) -> _Identity:
    found = os.stat(directory)
    return found.st_dev, found.st_ino


def _prepare(layout: Layout, *, private: bool) -> bool:
    """Make the directory ready; False where this process may only read it."""
    try:
        layout.prepare(private=private)
        probe_locking(layout.holders)
    except OSError as exc:
        if exc.errno not in READ_ONLY_ERRNOS:
            raise CacheError(
                f"{layout.directory} cannot be a cache directory: {exc.strerror or exc}", path=str(layout.directory)
            ) from exc
        _refuse_unreadable(layout, exc)
        return False
    return True


def _refuse_unreadable(layout: Layout, cause: BaseException) -> None:
    try:
        usable = layout.is_cache() and os.access(layout.chunks, os.R_OK | os.X_OK)
    except OSError:
        usable = False
    if not usable:
        raise CacheError(
            f"{layout.directory} cannot be written by this process and holds no cache to read:"
            " make it writable, or choose another with cache_dir= or FOREBAY_CACHE_DIR",
            path=str(layout.directory),
        ) from cause


def _make(layout: Layout, max_bytes: int | None, *, writable: bool) -> Cache:
    if writable:
        try:
            cache = SharedCache(layout, max_bytes=max_bytes, on_close=_give_back)
        except CacheFullError:
            raise
        except CacheError as exc:
            code = getattr(exc.__cause__, "sqlite_errorcode", 0) & 0xFF
            if code not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
                raise
            _refuse_unreadable(layout, exc)
        else:
            _fork.watch(cache)
            return cache
    logger.warning("the cache %s is read-only for this process: chunks are read, none is added", layout.directory)
    return ReadOnlyCache(layout, on_close=_give_back)


def _give_back(cache: Cache) -> bool:
    """Count one user less; whether that was the last."""
    with _fork.registry_lock:
        for identity, known in list(_open.items()):
            if known is cache:
                cache.users -= 1
                if cache.users > 0:
                    return False
                del _open[identity]
                if isinstance(cache, SharedCache):
                    _fork.forget(cache)
                return True
    return False
