"""What the tests of the bridge get."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache directory of the test, configured as users do."""
    monkeypatch.setenv("FOREBAY_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"
