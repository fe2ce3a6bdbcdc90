"""The contract of a backend: `Downloader`, and `probe`, which says what one can do here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from forebay._options import strongest
from forebay._url import redact, trim_root
from forebay.exceptions import InvalidRangeError, UnsupportedOperationError
from forebay.types import Access, Capabilities, ObjectInfo, RangeRead

__all__ = ["ASYNC_HOOKS", "Downloader", "SupportsRangeRead", "SupportsWrite", "overrides", "probe"]

#: The optional async hooks, in the engine's order of preference.
ASYNC_HOOKS = ("adownload_file", "adownload_fileobj", "adownload_bytes", "astat", "aupload_file")


#: Options that say where a store is in every backend that has them.
_LOCATING = ("endpoint_url", "account_name", "connection_string")


class SupportsWrite(Protocol):
    """All that a ``fileobj`` promises to a hook."""

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        """Take all of ``data`` and return its length in bytes."""
        ...


@runtime_checkable
class SupportsRangeRead(Protocol):
    """An optional richer range read, which lets the engine pin all parts of an object to one version.

    A downloader that has it is asked for parts through it instead of ``adownload_bytes``.
    """

    async def aread_range(self, key: str, offset: int, length: int, *, if_match: str | None = None) -> RangeRead:
        """Read ``length`` bytes from ``offset``, with what the response says of the whole object.

        A range that runs past the end is cut; one that starts at or past the end of a non-empty object is an
        `InvalidRangeError`; an empty object gives ``b""``. ``if_match`` is an etag as `ObjectInfo` holds it: where the
        object has another one now, `ObjectChangedError`. ``info.size`` is the size of the whole object.
        """
        ...


class Downloader(ABC):
    """One remote root as a source of objects and byte ranges.

    A subclass implements ``download_fileobj`` and moves bytes, nothing else: temporary files, atomic publish, retry,
    verification and decompression belong to the engine. Every other method has a correct default, or says that it is
    not supported. Methods may be called from several threads at once.

    A key is relative to the root, separated by ``/`` and taken literally: ``a%20b`` is five characters. A missing
    object is `ObjectNotFoundError` or the builtin `FileNotFoundError`. Only `TransientError`, `ConnectionError` and
    `TimeoutError` are tried again; anything else reaches the reader as it is.

    Args:
        root: The URL of the root without a trailing slash. It may hold secrets and is never logged.
        options: What the user configured for the scheme, already checked against ``option_types``.
    """

    #: Option name to type (``str``, ``int``, ``float``, ``bool``, ``dict`` or ``object``). None takes any option.
    option_types: ClassVar[Mapping[str, type] | None] = None

    #: Whether range reads give up by themselves once no byte has come for ``options["timeout"]`` seconds. Where they do
    #: not, the engine bounds the time of the whole call, because a range read shows no progress from outside.
    detects_stalls: ClassVar[bool] = False

    def __init__(self, root: str, options: Mapping[str, object] | None = None) -> None:
        self.root = trim_root(root)
        self.options: Mapping[str, object] = dict(options or {})

    @classmethod
    def probe_driver(cls, options: Mapping[str, object]) -> Capabilities:
        """What the backend itself says of its driver in this process; `probe` joins it with the overridden hooks.

        The default answers for a backend without a native library: nothing stands in the way of its hooks.
        """
        return Capabilities(native_async=True, driver="python")

    @classmethod
    def join_options(cls, root: str, layers: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
        """Join what was said in several places, the strongest first: ``options=``, ``forebay.toml``, the environment.

        The default takes each option from the first place that has it. A backend overrides it where options belong
        together, as a key and its secret do, or exclude each other.
        """
        return strongest(layers)

    @classmethod
    def location_options(cls, options: Mapping[str, object]) -> Mapping[str, object]:
        """Of ``options``, those that say where the store is: the same URL with others of these is another store.

        What is cached from one is never served for the other. The values are compared as text.
        """
        return {name: options[name] for name in _LOCATING if name in options}

    @classmethod
    def index_options(cls, options: Mapping[str, object]) -> Mapping[str, object]:
        """What an index is read with, where that is not ``options``; with all the same access.

        A process that opens a dataset may fork its workers afterwards. A backend whose library starts threads that no
        fork survives names another way here, if it has one. It is asked before each such read.
        """
        return options

    def describe_access(self) -> Access | None:
        """Who asks, where, and which places were looked at for that; without a secret, for `forebay doctor`.

        Makes no request. None: this backend tells nothing of it.
        """
        return None

    @abstractmethod
    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        """Write the whole object to ``fileobj``, in order, in pieces of any size.

        ``fileobj`` promises ``write(bytes-like) -> int`` and nothing else. A retry gets a fresh one that starts at 0.
        An empty object writes nothing, or ``b""``.

        Raises:
            ObjectNotFoundError: There is no such object (`FileNotFoundError` is as good).
        """

    def download_file(self, key: str, path: Path) -> None:
        """Write the whole object to ``path``, which is made or replaced."""
        with open(path, "wb") as file:
            self.download_fileobj(key, file)

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return ``length`` bytes from ``offset``, or all from there on.

        A range that runs past the end is cut; ``length=0`` gives ``b""``; a start past the end gives
        `InvalidRangeError`; an empty object gives ``b""`` for ``offset=0``. The default reads the whole body and
        keeps the slice.
        """
        check_range(key, offset, length)
        if length == 0:
            return b""
        window = _Window(offset, length)
        self.download_fileobj(key, window)
        if offset > window.seen or (offset == window.seen and offset > 0):
            raise InvalidRangeError(f"range starts at byte {offset} of {key!r}, which has {window.seen} bytes", key=key)
        return bytes(window.kept)

    def stat(self, key: str) -> ObjectInfo:
        """Return what is known of the object. The default reads the whole body and counts it."""
        window = _Window(0, 0)
        self.download_fileobj(key, window)
        return ObjectInfo(key, size=window.seen)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object whose key starts with ``prefix``, recursively, in any order."""
        raise UnsupportedOperationError(f"{type(self).__name__} cannot list objects", key=prefix)

    def upload_file(self, key: str, path: Path) -> None:
        """Store the file's bytes under ``key``, whole or not at all."""
        raise UnsupportedOperationError(f"{type(self).__name__} cannot upload objects", key=key)

    def close(self) -> None:
        """Let go of connections. Called once; the downloader is not used afterwards."""

    async def adownload_file(self, key: str, path: Path) -> None:
        """Async twin of ``download_file``; native only where a subclass overrides it."""
        raise UnsupportedOperationError(f"{type(self).__name__} has no native adownload_file", key=key)

    async def adownload_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        """Async twin of ``download_fileobj``. ``fileobj.write`` does not block for long and is not awaited."""
        raise UnsupportedOperationError(f"{type(self).__name__} has no native adownload_fileobj", key=key)

    async def adownload_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Async twin of ``download_bytes``."""
        raise UnsupportedOperationError(f"{type(self).__name__} has no native adownload_bytes", key=key)

    async def astat(self, key: str) -> ObjectInfo:
        """Async twin of ``stat``."""
        raise UnsupportedOperationError(f"{type(self).__name__} has no native astat", key=key)

    async def aupload_file(self, key: str, path: Path) -> None:
        """Async twin of ``upload_file``."""
        raise UnsupportedOperationError(f"{type(self).__name__} has no native aupload_file", key=key)

    async def aclose(self) -> None:
        """Let go of what belongs to the running event loop. The engine calls it before ``close``."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {redact(self.root)}>"


def overrides(downloader: Downloader | type[Downloader], hook: str) -> bool:
    """Whether the class replaces the base implementation of ``hook``."""
    cls = downloader if isinstance(downloader, type) else type(downloader)
    return getattr(cls, hook) is not getattr(Downloader, hook)


def probe(downloader: Downloader) -> Capabilities:
    """Say what ``downloader`` can do in this process.

    A hook counts as native when the subclass overrides it and the backend's own probe agrees.
    """
    return probe_class(type(downloader), downloader.options)


def probe_class(cls: type[Downloader], options: Mapping[str, object]) -> Capabilities:
    """What `probe` says of every downloader of ``cls`` with these options; makes none."""
    said = cls.probe_driver(options)
    ranged = issubclass(cls, SupportsRangeRead)
    hooks: Iterable[str] = [hook for hook in ASYNC_HOOKS if overrides(cls, hook)]
    return Capabilities(
        native_async=said.native_async and (ranged or any(hook.startswith("adownload") for hook in hooks)),
        ranges=said.ranges or ranged or overrides(cls, "download_bytes") or "adownload_bytes" in hooks,
        stat=said.stat or overrides(cls, "stat") or "astat" in hooks,
        list=said.list or overrides(cls, "list"),
        fork_safe=said.fork_safe,
        checksums=said.checksums,
        driver=said.driver,
        version=said.version,
        reason=said.reason,
    )


def check_range(key: str, offset: int, length: int | None) -> None:
    """Raise `InvalidRangeError` for a negative offset or length."""
    if offset < 0 or (length is not None and length < 0):
        raise InvalidRangeError(f"negative range ({offset}, {length}) of {key!r}", key=key)


class _Window:
    """A write target that keeps one slice of what passes and counts the rest."""

    def __init__(self, offset: int, length: int | None) -> None:
        self._start = offset
        self._stop = None if length is None else offset + length
        self.kept = bytearray()
        self.seen = 0

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        begin = max(self._start - self.seen, 0)
        end = len(view) if self._stop is None else max(min(self._stop - self.seen, len(view)), 0)
        if begin < end:
            self.kept += view[begin:end]
        self.seen += len(view)
        return len(view)
