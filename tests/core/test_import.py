"""``import forebay`` is nearly free, and its public names are exactly those that were promised."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import forebay

PUBLIC = [
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
HEAVY = {"numpy", "asyncio", "sqlite3", "filelock", "pluggy", "xxhash", "zstandard", "platformdirs", "click", "rich"}
SDKS = {"torch", "obstore", "fsspec", "aiohttp", "boto3", "botocore", "s3fs", "gcsfs", "adlfs", "PIL"}


def _imported_by(statement: str) -> set[str]:
    """Names of all modules that a fresh interpreter holds after ``statement`` and not without it.

    From sys.modules: ``-X importtime`` does not show what importlib.import_module brings.
    """

    def imported(code: str) -> set[str]:
        command = [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"]
        return set(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split())

    return imported(statement) - imported("pass")


def test_public_names_are_exactly_the_promised_ones() -> None:
    assert forebay.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(forebay))


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_loads(name: str) -> None:
    assert getattr(forebay, name) is not None


MODULES = {
    "backend": ["check_range", "environ", "monotonic", "redact", "wall_clock"],
    "codecs": ["Codec"],
    "formats": [
        "ChunkEntry",
        "ChunkReader",
        "DatasetFormat",
        "DatasetIndex",
        "check_options",
        "first_bad_name",
        "name_fault",
    ],
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_for_plugin_authors_have_exactly_the_promised_names(name: str) -> None:
    module = import_module(f"forebay.{name}")
    assert module.__all__ == MODULES[name]
    assert all(getattr(module, each) is not None for each in MODULES[name])


def test_top_level_modules_without_underscore_are_the_documented_ones() -> None:
    folder = Path(forebay.__file__).parent
    found = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    public = {name for name in found if not name.startswith("_")}
    assert public == {"cli", "downloader", "exceptions", "hookspecs", "testing", "torch", "types", *MODULES}


def test_exceptions_is_the_module() -> None:
    assert forebay.exceptions is import_module("forebay.exceptions")


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = forebay.no_such_name


def test_import_brings_nothing_heavy() -> None:
    modules = _imported_by("import forebay")
    assert "forebay" in modules
    assert {name.partition(".")[0] for name in modules} & (HEAVY | SDKS) == set()
    assert {name for name in modules if name.startswith("forebay.")} == set()


def test_loading_plugins_brings_no_sdk() -> None:
    modules = _imported_by("import forebay; forebay.open_downloader('memory://x')")
    assert "forebay._backends.memory" in modules
    assert {name.partition(".")[0] for name in modules} & SDKS == set()
