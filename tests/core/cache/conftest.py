"""A cache of a thousand bytes for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay._cache import Cache, open_cache


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(directory: Path) -> Iterator[Cache]:
    opened = open_cache(directory, max_bytes=1000)
    yield opened
    opened.close()
