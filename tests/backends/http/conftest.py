"""Servers and downloaders for the tests of the http backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers.nginx import Nginx

from forebay.testing import FaultServer
from forebay_http import HttpDownloader


@pytest.fixture(scope="session")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    directory: Path = tmp_path_factory.mktemp("nginx")
    with Nginx(directory) as server:
        yield server


@pytest.fixture
def faults() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server


@pytest.fixture(params=["obstore", "fsspec"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(driver: str) -> Iterator[Callable[..., HttpDownloader]]:
    """Makes downloaders with the driver under test, and closes them."""
    made: list[HttpDownloader] = []

    def make(root: str, **options: object) -> HttpDownloader:
        made.append(HttpDownloader(root, {"driver": driver, **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()
