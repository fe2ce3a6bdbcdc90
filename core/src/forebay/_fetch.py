"""`fetch`: one object as a local file, through the same cache, engine and errors as a dataset's chunks."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from forebay import _collector, _config, _registry, _url
from forebay._cache import ChunkKey, Ready
from forebay._downloaders import REFUSALS, retire_downloader, shared_downloader
from forebay._mutex import Mutex
from forebay._prefetch import (
    ChunkRequest,
    EngineHandle,
    IOFuture,
    IOThread,
    io_thread,
    open_engine,
    wait_for,
)
from forebay._source import location
from forebay._transfer import Source, TransferPolicy, stat_object
from forebay.downloader import probe
from forebay.exceptions import ObjectNotFoundError, StorageTimeoutError

__all__ = ["afetch", "fetch", "release"]


@dataclass(slots=True, kw_only=True)
class _Call:
    """One call of `fetch` under way."""

    shown: str
    backend: str
    engine: EngineHandle
    request: ChunkRequest
    revalidate: bool


@dataclass(slots=True, kw_only=True)
class _Held:
    """What a returned path keeps, once for each fetch of it: a lease, and a reference to the engine behind it."""

    engine: EngineHandle
    request: ChunkRequest
    pid: int


_lock = Mutex()
_held: dict[Path, list[_Held]] = {}
_validated: set[tuple[str, ChunkKey]] = set()


def fetch(
    url: str | os.PathLike[str],
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    max_cache_bytes: int | str | None = None,
    options: Mapping[str, object] | None = None,
    revalidate: bool = True,
    timeout: float | None = None,
) -> Path:
    """Return a local file with the object's bytes as they are stored, never decompressed.

    The path keeps the object's suffix, and cannot be evicted until `release` or the end of the process. Another fetch
    of the same URL is served by the cache; once a process it asks the store whether the object is still the same. A
    local path is returned as it is.

    Args:
        url: The object. Its identity is the whole URL less the signature parameters of known presign schemes.
        cache_dir: The cache directory; None takes the configured one.
        max_cache_bytes: The cache's budget; None keeps the recorded one.
        options: Options of the backend.
        revalidate: Whether a cached copy is compared with the store.
        timeout: Seconds for the whole call; None sets no limit while bytes move.

    Raises:
        ObjectNotFoundError: There is no such object.
        StorageTimeoutError: ``timeout`` seconds have passed.
        StorageError: The store refused or failed.
        CacheError: The cache cannot hold the object.
    """
    local = _local(url, options)
    if local is not None:
        return local
    call = _start(url, cache_dir, max_cache_bytes, options, revalidate)
    call.request.thread = threading.get_ident()
    thread, future = _submit(call)
    try:
        ready = wait_for(future, thread, timeout)
    except FutureTimeoutError as exc:
        # The store's own, or ours: by now the object may have come after all.
        theirs = future.done() and not future.cancelled() and future.exception() is exc
        _drop(call, future)
        if theirs:
            raise
        raise _too_slow(call, timeout) from exc
    except BaseException:  # Ctrl-C too: the fetch is given up with the call; it is raised again
        _drop(call, future)
        raise
    return _hold(call, ready)


async def afetch(
    url: str | os.PathLike[str],
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    max_cache_bytes: int | str | None = None,
    options: Mapping[str, object] | None = None,
    revalidate: bool = True,
    timeout: float | None = None,
) -> Path:
    """Async twin of `fetch`: the work runs on Forebay's own I/O thread, and cancelling the call cancels it."""
    local = _local(url, options)
    if local is not None:
        return local
    # Opening the cache touches the disk, which the caller's loop should not wait for.
    opening = _Opening(lambda: _start(url, cache_dir, max_cache_bytes, options, revalidate))
    try:
        call = await asyncio.to_thread(opening.open)
    except BaseException:  # a cancelled call, too; it is raised again
        opening.give_up()
        raise
    _, future = _submit(call)
    try:
        async with asyncio.timeout(timeout) as limit:
            ready = await asyncio.wrap_future(future)
    except TimeoutError as exc:
        _drop(call, future)
        if limit.expired():
            raise _too_slow(call, timeout) from exc
        raise
    except BaseException:  # a cancelled call, too, gives the fetch up; it is raised again
        _drop(call, future)
        raise
    return _hold(call, ready)


def release(path: str | os.PathLike[str]) -> None:
    """Let go of a path that `fetch` returned; the file may be evicted once every fetch of it was released.

    A local path that `fetch` returned as it is, and a path released before, are none of our business: nothing happens.
    """
    path = Path(path)
    _collector.call_outside(lambda: _release(path))


def _release(path: Path) -> None:
    with _lock:
        entries = _held.get(path)
        held = entries.pop() if entries else None
        if not entries:
            _held.pop(path, None)
    if held is not None and held.pid == os.getpid():
        try:
            held.engine.engine().give_back(held.request)
        finally:
            held.engine.close()


def _local(url: str | os.PathLike[str], options: Mapping[str, object] | None) -> Path | None:
    parsed = _url.parse_url(url)
    if parsed.scheme != "file":
        return None
    _registry.resolve(url, options)  # an option that means nothing here is an error, as everywhere
    path = _url.local_path(parsed)
    if not path.is_file():
        raise ObjectNotFoundError(f"there is no file {path}", url=str(path), key=path.name, backend="file")
    return path


def _start(
    url: str | os.PathLike[str],
    cache_dir: str | os.PathLike[str] | None,
    max_cache_bytes: int | str | None,
    options: Mapping[str, object] | None,
    revalidate: bool,
) -> _Call:
    resolved = _registry.resolve(url, options)
    root, key = _url.split_object(resolved.url, store=resolved.url.scheme not in resolved.backend.schemes)
    budget = None if max_cache_bytes is None else _config.parse_size(max_cache_bytes)
    engine = open_engine(None if cache_dir is None else Path(cache_dir).absolute(), max_bytes=budget)
    try:
        downloader = shared_downloader(resolved, root)
        shown = _url.redact(str(resolved.url))
        name = key or str(resolved.url).split("?", 1)[0].split("#", 1)[0]
        request = ChunkRequest(
            key=ChunkKey(
                dataset=hashlib.blake2b(b"objects", digest_size=16).hexdigest(),
                url=shown,
                identity=location(resolved),
                suffix=PurePosixPath(name).suffix,
            ),
            source=Source(
                downloader=downloader,
                capabilities=probe(downloader),
                key=key,
                url=shown,
                backend=resolved.backend.name,
                stored_bytes=None,
                decoded_bytes=None,
                codec=None,
                digest=None,
                standalone=True,
            ),
            policy=TransferPolicy.from_options(resolved.options),
            hard=True,
        )
        return _Call(shown=shown, backend=resolved.backend.name, engine=engine, request=request, revalidate=revalidate)
    except BaseException:  # the engine is nobody's, whatever came; it is raised again
        engine.close()
        raise


class _Opening:
    """A call that is begun in a thread, for somebody who may not wait for that: a thread cannot be cancelled."""

    def __init__(self, start: Callable[[], _Call]) -> None:
        self._start = start
        self._lock = Mutex()
        self._call: _Call | None = None
        self._wanted = True

    def open(self) -> _Call:
        """Begin the call, and end it where nobody wants it by then."""
        call = self._start()
        with self._lock:
            self._call, wanted = call, self._wanted
        if not wanted:
            call.engine.close()
        return call

    def give_up(self) -> None:
        """Nobody wants the call, whether it has begun or not."""
        with self._lock:
            self._wanted, call = False, self._call
        if call is not None:
            _close_aside(call)


def _submit(call: _Call) -> tuple[IOThread, IOFuture[Ready]]:
    try:
        thread = io_thread()
        return thread, thread.submit(lambda: _obtain(call))
    except BaseException:  # no thread can be had, say; it is raised again
        call.engine.close()
        raise


async def _obtain(call: _Call) -> Ready:
    try:
        return await _obtain_fresh(call)
    except REFUSALS:
        # Before the caller hears of it: credentials that it corrects now are the ones of its next call.
        retire_downloader(call.request.source.downloader)
        raise


async def _obtain_fresh(call: _Call) -> Ready:
    engine, request = call.engine.engine(), call.request
    ready = await engine.obtain(request)
    seen = (str(engine.cache.directory), request.key)
    if not request.fetched and call.revalidate and seen not in _validated:
        try:
            fresh = await _is_fresh(call, ready)
        except BaseException:  # no lease stays behind an error or a cancellation; it is raised again
            engine.give_back(request)
            raise
        if not fresh:
            await engine.steady(engine.cache.discard, request.key)
            engine.give_back(request)
            ready = await engine.obtain(request)
    _validated.add(seen)
    return ready


async def _is_fresh(call: _Call, ready: Ready) -> bool:
    """Whether the store still has what the cache has; where it cannot be asked cheaply, it counts as changed."""
    engine, source = call.engine.engine(), call.request.source
    if not source.capabilities.stat:
        return False
    info = await stat_object(source, pool=engine.pool, policy=call.request.policy)
    known = await engine.steady(engine.cache.meta, call.request.key)
    etag = (known or {}).get("etag")
    if etag is not None and info.etag is not None:
        return etag == info.etag
    # Equal sizes prove nothing where neither side has a validator.
    return False


def _hold(call: _Call, ready: Ready) -> Path:
    call.engine.engine().holdings.keep(call.request, str(ready.path))
    held = _Held(engine=call.engine, request=call.request, pid=os.getpid())
    with _lock:
        entries = _held.setdefault(ready.path, [])
        entries.append(held)
        _held[ready.path] = entries  # a file that the collector closed just now may have taken it away
    return ready.path


def _drop(call: _Call, future: IOFuture[Ready]) -> None:
    """End a call that nobody waits for any more, whenever its task ends, and give back what it holds."""
    future.stop()
    engine = call.engine.engine()

    def give_back(_: object) -> None:
        engine.give_back(call.request)
        _close_aside(call)

    future.add_done_callback(give_back)


def _close_aside(call: _Call) -> None:
    # Closing joins threads, which the loop's own thread must not do.
    threading.Thread(target=call.engine.close, name="forebay-close", daemon=True).start()


def _too_slow(call: _Call, timeout: float | None) -> StorageTimeoutError:
    return StorageTimeoutError(
        f"{call.shown} ({call.backend}) was not there after {timeout} s; give a longer timeout, or none",
        url=call.shown,
        key=call.request.source.key,
        backend=call.backend,
    )


def _forget_after_fork() -> None:
    _held.clear()
    _validated.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
