"""`open_dataset`: checks what was asked for, fetches the index and puts the parts together."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from forebay import _config, _registry, _url
from forebay._cached_source import CachedSource
from forebay._dataset import ChunkedDataset
from forebay._downloaders import close_downloader
from forebay._formats import DatasetFormat
from forebay._kept_index import KeptIndex
from forebay._prefetch import EngineHandle, IOThread, io_thread, open_engine, wait_for
from forebay._source import ChunkSource, LocalSource, dataset_identity, location
from forebay._stats import Counters
from forebay._transfer import Source, TransferPolicy, read_object, stat_object
from forebay.downloader import Downloader, probe
from forebay.exceptions import ConfigError, DatasetError, InvalidIndexError, ObjectNotFoundError, StorageError
from forebay.types import FormatSpec

T = TypeVar("T")
logger = logging.getLogger("forebay")

__all__ = ["DatasetSpec", "open_dataset", "reopen"]

#: An index larger than this is somebody's mistake, or an attack.
MAX_INDEX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpec:
    """What `open_dataset` was asked for, checked; it pickles, and a worker opens the same dataset from it."""

    url: str = field(repr=False)
    shown_url: str
    cache_dir: Path | None = None
    max_cache_bytes: int | None = None
    format: str | None = None
    shuffle: bool = False
    seed: int = 0
    shuffle_window: int = 8
    ahead: int | None = None
    verify: str = "digest"
    options: Mapping[str, object] | None = field(default=None, repr=False)
    format_options: Mapping[str, object] | None = None
    allow_pickle: bool = False
    on_error: str = "raise"
    index: tuple[str, bytes] | None = field(default=None, repr=False)
    registrations: Mapping[str, type[Downloader]] | None = field(default=None, repr=False)


def open_dataset(
    url: str | os.PathLike[str],
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    max_cache_bytes: int | str | None = None,
    format: str | None = None,
    shuffle: bool = False,
    seed: int = 0,
    shuffle_window: int = 8,
    prefetch: bool | int | None = None,
    verify: str = "digest",
    options: Mapping[str, object] | None = None,
    format_options: Mapping[str, object] | None = None,
    allow_pickle: bool = False,
    on_error: str = "raise",
) -> ChunkedDataset:
    """Open the dataset at ``url``, in any store that an installed backend serves.

    Args:
        url: Where the dataset's index lies; a bare path is a local directory.
        cache_dir: The cache directory; None takes ``FOREBAY_CACHE_DIR``, ``forebay.toml``, or the user's cache
            directory.
        max_cache_bytes: The cache's budget, an int of bytes or text like ``"200GiB"``; None keeps the directory's
            recorded budget, else takes 80 % of the free space.
        format: The layout's name; None finds it by the index file.
        shuffle: Whether iteration is shuffled: chunks first, then samples within a window of chunks.
        seed: Seed of the shuffle.
        shuffle_window: Chunks whose samples are mixed at one time; 1 shuffles within each chunk only.
        prefetch: Chunks to fetch ahead of the reader; None decides by the scheme, False or 0 fetches on demand, True
            takes a number that suits the chunks.
        verify: How chunks that an earlier run left in the cache are checked at first use, ``"digest"`` or ``"size"``.
        options: Options of the backend; they win over ``forebay.toml`` and the environment.
        format_options: Options of the layout, such as ``{"block_size": 2048}`` for token blocks.
        allow_pickle: Whether pickled items may be read, which runs code from the dataset.
        on_error: ``"raise"``, or ``"skip"`` to leave out a chunk that cannot be had, and count it.

    Raises:
        ConfigError: Something above cannot be used; nothing was read.
        ObjectNotFoundError: There is no index at ``url``.
        DatasetError: The index cannot be read.
        BudgetTooSmallError: The budget cannot hold what one reader needs at one time.
    """
    resolved = _registry.resolve(url, options)
    full_url = os.fspath(url)
    spec = DatasetSpec(
        url=full_url,
        shown_url=_url.redact(full_url),
        cache_dir=None if cache_dir is None else Path(cache_dir).absolute(),
        max_cache_bytes=None if max_cache_bytes is None else _config.parse_size(max_cache_bytes),
        format=format,
        shuffle=_checked_bool("shuffle", shuffle),
        seed=_checked_int("seed", seed, minimum=None),
        shuffle_window=_checked_int("shuffle_window", shuffle_window, minimum=1),
        ahead=_ahead(prefetch, remote=resolved.remote),
        verify=_choice("verify", verify, ("digest", "size")),
        options=options,
        format_options=format_options,
        allow_pickle=_checked_bool("allow_pickle", allow_pickle),
        on_error=_choice("on_error", on_error, ("raise", "skip")),
        registrations=_registry.in_process_registrations(),
    )
    return _open(spec, resolved)


def reopen(spec: DatasetSpec, epoch: int, epoch_is_set: bool) -> ChunkedDataset:
    """Open a pickled dataset again, in the process that unpickles it."""
    if spec.registrations:
        _registry.restore_registrations(spec.registrations)
    dataset = _open(spec, _registry.resolve(spec.url, spec.options))
    if epoch_is_set:
        dataset.set_epoch(epoch)
    else:
        dataset._epoch = epoch
    return dataset


def _open(spec: DatasetSpec, resolved: _registry.Resolved) -> ChunkedDataset:
    counters = Counters()
    if resolved.backend.name == "file":
        root = _url.local_path(resolved.url)
        layout = _make_layout(spec, *_local_index(spec, root))
        if layout.index.codec is None:
            return ChunkedDataset(spec, layout, LocalSource(root, layout.index), counters)
    engine = open_engine(spec.cache_dir, max_bytes=spec.max_cache_bytes)
    downloader: Downloader | None = None
    source: ChunkSource | None = None
    try:
        downloader = _registry.make(resolved, str(resolved.url))
        with counters.timed("index"):
            if spec.index is not None:
                found, data = spec.index
            else:
                with _index_reader(resolved, downloader) as reader:
                    found, data = _fetch_index(spec, resolved, engine, reader, counters)
        layout = _make_layout(spec, _registry.format_by_name(found), data)
        codec = None if layout.index.codec is None else _registry.codec_by_name(layout.index.codec)
        source = CachedSource(
            resolved,
            layout.index,
            identity=dataset_identity(resolved, data),
            engine=engine,
            downloader=downloader,
            codec=codec,
            verify=spec.verify,
            counters=counters,
        )
        return ChunkedDataset(_with_index(spec, found, data), layout, source, counters)
    except BaseException:  # nothing opened may stay open, whatever came; it is raised again
        if source is not None:
            source.close()
        else:
            if downloader is not None:
                close_downloader(downloader)
            engine.close()
        raise


def _make_layout(spec: DatasetSpec, layout: FormatSpec, data: bytes) -> DatasetFormat:
    return layout.load()(
        data, url=spec.shown_url, options=dict(spec.format_options or {}), allow_pickle=spec.allow_pickle
    )


def _with_index(spec: DatasetSpec, name: str, data: bytes) -> DatasetSpec:
    return replace(spec, index=(name, data))


def _candidates(name: str | None) -> list[tuple[FormatSpec, str]]:
    specs = _registry.formats() if name is None else [_registry.format_by_name(name)]
    return [(spec, index_name) for spec in specs for index_name in spec.index_names]


def _local_index(spec: DatasetSpec, root: Path) -> tuple[FormatSpec, bytes]:
    candidates = _candidates(spec.format)
    for layout, name in candidates:
        try:
            return layout, (root / name).read_bytes()
        except FileNotFoundError:
            continue
        except NotADirectoryError as exc:
            raise DatasetError(
                f"{root} is a file, not a dataset: give the folder that holds it", url=str(root)
            ) from exc
    if not root.is_dir():
        raise ObjectNotFoundError(f"there is no folder {root}", url=str(root), backend="file")
    raise _no_index(spec, "file", [name for _, name in candidates])


@contextmanager
def _index_reader(resolved: _registry.Resolved, downloader: Downloader) -> Iterator[Downloader]:
    """What reads the index: ``downloader``, or one that leaves nothing behind which a fork would break."""
    options = resolved.cls.index_options(resolved.options)
    if options == resolved.options:
        yield downloader
        return
    reader = _registry.make(replace(resolved, options=dict(options)), str(resolved.url))
    try:
        yield reader
    finally:
        close_downloader(reader)


def _fetch_index(
    spec: DatasetSpec,
    resolved: _registry.Resolved,
    engine: EngineHandle,
    downloader: Downloader,
    counters: Counters,
) -> tuple[str, bytes]:
    """Return the layout's name and the index; another layout's index is tried only where the first is missing."""
    candidates = _candidates(spec.format)
    policy = TransferPolicy.from_options(resolved.options)
    capabilities = probe(downloader)
    missing: Exception | None = None
    for layout, name in candidates:
        source = Source(
            downloader=downloader,
            capabilities=capabilities,
            key=name,
            url=_url.redact(_url.join_url(str(resolved.url), name)),
            backend=resolved.backend.name,
            stored_bytes=None,
            decoded_bytes=None,
            codec=None,
            digest=None,
            standalone=True,
        )
        try:
            data = _read_index(source, resolved, engine, policy, counters)
        except FileNotFoundError as exc:  # ours is one too
            missing = exc
            continue
        if not data:
            raise InvalidIndexError(
                f"the index {source.url} is empty: the store holds 0 bytes under {name!r},"
                f" or the download hook of backend {source.backend} wrote nothing",
                url=source.url,
            )
        return layout.name, data
    raise _no_index(spec, resolved.backend.name, [name for _, name in candidates]) from missing


def _read_index(
    source: Source, resolved: _registry.Resolved, engine: EngineHandle, policy: TransferPolicy, counters: Counters
) -> bytes:
    """Return an index: what an earlier opener on this machine kept, if the store still has the same, else a new one."""
    served, thread = engine.engine(), io_thread()
    kept = KeptIndex(engine.cache.index_path(f"{location(resolved)}\0{source.key}"))
    with kept.alone():
        known = kept.load()
        if known is not None and source.capabilities.stat:
            ask = partial(stat_object, source, pool=served.pool, policy=policy)
            try:
                info = _answer(thread, ask)
            except StorageError as exc:
                if exc.retryable:
                    raise
                # A store may refuse to say what it gives: then it is asked to give.
                logger.debug("%s did not say whether %s changed: %s", source.backend, source.url, exc)
            else:
                if info.etag == known[0]:
                    return known[1]
        read = partial(
            read_object,
            source,
            limiter=served.limiter,
            pool=served.pool,
            policy=policy,
            max_bytes=MAX_INDEX_BYTES,
            tally=counters.tally,
        )
        data, info = _answer(thread, read)
        kept.store(info.etag, data)
    return bytes(data)


def _answer(thread: IOThread, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    future = thread.submit(ask)
    try:
        return wait_for(future, thread)
    except BaseException:  # Ctrl-C too: nobody waits for the request any more; it is raised again
        future.stop()
        raise


def _no_index(spec: DatasetSpec, backend: str, names: list[str]) -> ObjectNotFoundError:
    looked_for = names[0] if len(names) == 1 else f"one of {', '.join(names)}"
    return ObjectNotFoundError(
        f"there is no dataset at {spec.shown_url} ({backend}): it has no {looked_for};"
        " check the URL (it is the folder, not the index in it), or give format= and its options",
        url=spec.shown_url,
        key=names[0] if names else None,
        backend=backend,
    )


def _ahead(prefetch: bool | int | None, *, remote: bool) -> int | None:
    """Chunks to look ahead: None for a number that suits the chunks, 0 for on demand."""
    if prefetch is not None and not isinstance(prefetch, int):
        raise ConfigError(f"prefetch must be None, a bool or an int, not {prefetch!r}", option="prefetch")
    asked = _config.prefetch_override() if prefetch is None else prefetch
    if asked is None:
        asked = remote
    if isinstance(asked, bool):
        return None if asked else 0
    if asked < 0:
        raise ConfigError(f"prefetch must not be negative, as in {asked}", option="prefetch")
    return _raised(asked) if asked else 0


def _raised(asked: int) -> int:
    floor = _config.prefetch_floor()
    if asked < floor:
        _config.log_once(
            f"prefetch={asked} is raised to {floor}: fewer chunks leave nothing to overlap"
            " (FOREBAY_PREFETCH_MIN=0 keeps the number)"
        )
    return max(asked, floor)


def _checked_bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        # "no" is true to Python: what lets a dataset run code, or changes an order, is not guessed.
        raise ConfigError(f"{name} must be True or False, not {value!r}", option=name)
    return value


def _checked_int(name: str, value: object, *, minimum: int | None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be an int, not {value!r}", option=name)
    if minimum is not None and value < minimum:
        raise ConfigError(f"{name} must be at least {minimum}, not {value}", option=name)
    return value


def _choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; it is one of {', '.join(map(repr, choices))}"
        raise ConfigError(f"{name}={value!r} is unknown{hint}", option=name)
    return value
