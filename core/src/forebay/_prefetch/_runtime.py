"""The engines of this process: one for each cache directory, shared by all datasets on it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from forebay._cache import Cache, open_cache
from forebay._prefetch._engine import Engine
from forebay._prefetch._io import IOThread, after_exit, close_idle_thread, io_thread
from forebay.exceptions import PrefetchClosedError

__all__ = ["EngineHandle", "open_engine"]


class EngineHandle:
    """A counted reference to the engine of a cache directory; the last one closed takes the engine with it.

    A handle that crosses a ``fork()`` opens an engine of its own in the child, at first use.
    """

    def __init__(self, cache_dir: Path | str | None, max_bytes: int | None) -> None:
        self._cache_dir = cache_dir
        self._max_bytes = max_bytes
        self._engine: Engine | None = None
        self._pid = 0
        self._closed = False
        self.engine()

    def engine(self) -> Engine:
        """The engine, in the process that asks."""
        with _lock:
            if self._engine is None or self._pid != os.getpid():
                if self._closed:
                    raise PrefetchClosedError("closed: open the dataset again")
                self._engine = _take(self._cache_dir, self._max_bytes)
                self._pid = os.getpid()
            return self._engine

    @property
    def cache(self) -> Cache:
        """The cache behind the engine."""
        return self.engine().cache

    @property
    def thread(self) -> IOThread:
        """The I/O thread of the process that asks."""
        return io_thread()

    def close(self) -> None:
        """Give the reference back; a second call does nothing."""
        with _lock:  # said before it is done: whoever asks for the engine meanwhile would open another
            closed, self._closed = self._closed, True
            engine, self._engine = self._engine, None
        if engine is not None and self._pid == os.getpid() and not closed:
            _give(engine)


def open_engine(cache_dir: Path | str | None, *, max_bytes: int | None) -> EngineHandle:
    """Open the cache directory and return a reference to this process's engine on it."""
    return EngineHandle(cache_dir, max_bytes)


_lock = threading.RLock()
#: By the cache and not by its path: a directory that was removed and made anew is another one.
_engines: dict[Cache, Engine] = {}


def _take(cache_dir: Path | str | None, max_bytes: int | None) -> Engine:
    cache = open_cache(cache_dir, max_bytes=max_bytes)
    with _lock:
        while True:
            engine = _engines.get(cache)
            if engine is None:
                try:
                    engine = _engines[cache] = Engine(cache)
                except BaseException:  # the count of users is given back, whatever came; it is raised again
                    cache.close()
                    raise
            engine.users += 1
            if _engines.get(cache) is engine:  # else the collector has closed its last user just now
                return engine


def _give(engine: Engine) -> None:
    with _lock:
        engine.users -= 1
        if engine.users <= 0 and _engines.get(engine.cache) is engine:
            del _engines[engine.cache]
            engine.close()
        engine.cache.close()
        if not _engines:
            # Within the lock: whoever opens an engine now waits, and finds a thread of its own.
            close_idle_thread()


def _close_all() -> None:
    with _lock:
        engines = list(_engines.values())
        _engines.clear()
    for engine in engines:
        engine.close()
        for _ in range(engine.users):
            engine.cache.close()


def _forget_after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    _engines.clear()


after_exit(_close_all)
os.register_at_fork(after_in_child=_forget_after_fork)
