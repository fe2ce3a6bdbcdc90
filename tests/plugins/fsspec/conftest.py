"""Servers for the tests of the bridge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.ftp import Ftp
from servers.nginx import Nginx
from servers.sftp import Sftp
from servers.store import lasting


@pytest.fixture(scope="session")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with Nginx(tmp_path_factory.mktemp("nginx")) as server:
        yield server


@pytest.fixture(scope="session")
def ftp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ftp]:
    with lasting(Ftp(tmp_path_factory.mktemp("ftp"))) as server:
        yield server


@pytest.fixture(scope="session")
def sftp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sftp]:
    with lasting(Sftp(tmp_path_factory.mktemp("sftp"))) as server:
        yield server


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache directory of the test, configured as users do."""
    monkeypatch.setenv("FOREBAY_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"
