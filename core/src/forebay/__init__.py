"""Stream training data from any object store through one bounded, shared, crash-safe cache per machine."""

TYPE_CHECKING = False  # not from typing: `import forebay` imports nothing
if TYPE_CHECKING:
    from forebay import exceptions as exceptions
    from forebay._cache import ChunkCache as ChunkCache
    from forebay._dataset import ChunkedDataset as ChunkedDataset
    from forebay._fetch import afetch as afetch
    from forebay._fetch import fetch as fetch
    from forebay._fetch import release as release
    from forebay._open import open_dataset as open_dataset
    from forebay._pack import PackResult as PackResult
    from forebay._pack import pack as pack
    from forebay._registry import open_downloader as open_downloader
    from forebay._registry import register_downloader as register_downloader
    from forebay._registry import unregister_downloader as unregister_downloader
    from forebay.downloader import Downloader as Downloader
    from forebay.downloader import probe as probe
    from forebay.hookspecs import hookimpl as hookimpl
    from forebay.types import BackendSpec as BackendSpec
    from forebay.types import CacheInfo as CacheInfo
    from forebay.types import Capabilities as Capabilities
    from forebay.types import CodecSpec as CodecSpec
    from forebay.types import FormatSpec as FormatSpec
    from forebay.types import ObjectInfo as ObjectInfo
    from forebay.types import RangeRead as RangeRead
    from forebay.types import StageStats as StageStats
    from forebay.types import Stall as Stall
    from forebay.types import Stats as Stats

__all__ = [
    "BackendSpec",
    "CacheInfo",
    "Capabilities",
    "ChunkCache",
    "ChunkedDataset",
    "CodecSpec",
    "Downloader",
    "FormatSpec",
    "ObjectInfo",
    "PackResult",
    "RangeRead",
    "StageStats",
    "Stall",
    "Stats",
    "afetch",
    "exceptions",
    "fetch",
    "hookimpl",
    "open_dataset",
    "open_downloader",
    "pack",
    "probe",
    "register_downloader",
    "release",
    "unregister_downloader",
]

# Where each public name lives; its module loads at first use (numpy, asyncio and sqlite3 cost a bare script too much).
_HOMES = {
    "BackendSpec": "types",
    "CacheInfo": "types",
    "Capabilities": "types",
    "ChunkCache": "_cache",
    "ChunkedDataset": "_dataset",
    "CodecSpec": "types",
    "Downloader": "downloader",
    "FormatSpec": "types",
    "ObjectInfo": "types",
    "PackResult": "_pack",
    "RangeRead": "types",
    "StageStats": "types",
    "Stall": "types",
    "Stats": "types",
    "afetch": "_fetch",
    "exceptions": "",
    "fetch": "_fetch",
    "hookimpl": "hookspecs",
    "open_dataset": "_open",
    "open_downloader": "_registry",
    "pack": "_pack",
    "probe": "downloader",
    "register_downloader": "_registry",
    "release": "_fetch",
    "unregister_downloader": "_registry",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if not home:
        return import_module(f"{__name__}.{name}")  # a submodule: the import itself sets the attribute
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
