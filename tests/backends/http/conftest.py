"""Servers and downloaders for the tests of the http backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from servers.answers import opening

from forebay.testing import FaultServer
from forebay_http import HttpDownloader


@pytest.fixture
def faults() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server


@pytest.fixture
def opened(driver: str) -> Iterator[Callable[..., HttpDownloader]]:
    """Makes downloaders with the driver under test, and closes them."""
    with opening(lambda root, **options: HttpDownloader(root, {"driver": driver, **options})) as opened:
        yield opened
