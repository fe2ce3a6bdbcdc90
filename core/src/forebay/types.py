"""Values that cross the public surface: frozen, slotted, keyword-only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay._codecs import Codec
    from forebay._formats import DatasetFormat
    from forebay.downloader import Downloader

__all__ = [
    "Access",
    "AccessStep",
    "BackendSpec",
    "CacheInfo",
    "Capabilities",
    "CodecSpec",
    "FormatSpec",
    "ObjectInfo",
    "RangeRead",
    "StageStats",
    "Stall",
    "Stats",
]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store says of one object.

    ``etag`` is the validator as the server spells it, quotes and ``W/`` included; ``version`` is a generation or
    version id. ``checksums`` are the store's own of the whole object as it is stored, each ``"algorithm:hex"``: an
    empty tuple where the store has none. Unknown facts are None.
    """

    key: str
    size: int | None = None
    etag: str | None = None
    version: str | None = None
    last_modified: datetime | None = None
    # What is said of an object in one way and not in another is no difference between two objects.
    checksums: tuple[str, ...] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRead:
    """A piece of an object together with what its response said of the whole object."""

    data: bytes | bytearray | memoryview
    info: ObjectInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a downloader can do in this process.

    ``native_async``: at least one overridden async hook works here. ``checksums``: the algorithms of the store's own
    checksums that bodies are compared with, where the store has one of an object. ``reason``: why this driver was
    taken, in words.
    """

    native_async: bool = False
    ranges: bool = False
    stat: bool = False
    list: bool = False
    fork_safe: bool = True
    checksums: tuple[str, ...] = ()
    driver: str = "python"
    version: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessStep:
    """One place where a backend looks for who asks. Nothing in it is a secret: names, paths and moments only.

    ``outcome``: ``"used"``; ``"absent"``: nothing is there; ``"passed over"``: something is there and does not count,
    ``detail`` says why; ``"not reached"``: a stronger place had some; ``"open"``: only a request tells.
    ``options`` are the names of the options that it is about.
    """

    source: str
    outcome: str
    detail: str = ""
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a downloader says of who asks, where, and how it found out; for `forebay doctor`, so without any secret.

    ``tried`` is in the order in which the places are looked at. ``network`` tells of proxy and certificates. ``hints``
    are what a person should know before anything is asked: a signature that has ended, a key that is passed over.
    """

    who: str
    where: str = ""
    endpoint: str | None = None
    network: str = ""
    tried: tuple[AccessStep, ...] = ()
    hints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """A backend as its plugin announces it. ``load`` imports the SDK and returns the `Downloader` class."""

    name: str
    schemes: tuple[str, ...]
    load: Callable[[], type[Downloader]]
    distribution: str | None = None
    install_hint: str | None = None
    drivers: tuple[str, ...] = ("python",)
    remote: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecSpec:
    """A decompressor as its plugin announces it.

    An index names the codec of its chunks, and the engine goes by that. ``suffixes`` (file endings) and ``magic`` (the
    first bytes of a frame) are for tools that have to recognise an object without one.
    """

    name: str
    suffixes: tuple[str, ...]
    magic: bytes
    load: Callable[[], type[Codec]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatSpec:
    """A dataset layout as its plugin announces it. ``index_names`` are the files that tell it, best first."""

    name: str
    index_names: tuple[str, ...]
    load: Callable[[], type[DatasetFormat]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheInfo:
    """A cache directory at one moment. ``bytes`` counts every file under ``chunks/``, temporary ones included."""

    bytes: int
    max_bytes: int
    chunks: int
    leases: int
    holders: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStats:
    """How often a stage ran and how long it took, in seconds."""

    count: int = 0
    total: float = 0.0

    @property
    def mean(self) -> float:
        """Seconds a run, 0.0 where there was none."""
        return self.total / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A long wait of a reader for one chunk: its URL without secrets, the backend that serves it, and how long."""

    chunk: str
    backend: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Counters of one dataset since it was opened. Times are in seconds.

    ``stages`` has count, total and mean of each stage of the work; ``stalls`` are the longest waits for a chunk.
    """

    items: int = 0
    chunks_fetched: int = 0
    bytes_fetched: int = 0
    requests: int = 0
    cache_hits: int = 0
    retries: int = 0
    wait_seconds: float = 0.0
    evictions: int = 0
    padded: int = 0
    skipped_chunks: int = 0
    stages: Mapping[str, StageStats] = field(default_factory=dict)
    stalls: tuple[Stall, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The counters as plain JSON-able values."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        plain["stages"] = {
            name: {"count": stage.count, "total": stage.total, "mean": stage.mean}
            for name, stage in self.stages.items()
        }
        plain["stalls"] = [asdict(stall) for stall in self.stalls]
        return plain
