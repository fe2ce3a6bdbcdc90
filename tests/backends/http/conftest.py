"""Servers and downloaders for the tests of the http backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from servers.answers import opening

from forebay_http import HttpDownloader


@pytest.fixture
def opened(driver: str) -> Iterator[Callable[..., HttpDownloader]]:
    """Makes downloaders with the driver under test, and closes them."""
    with opening(lambda root, **options: HttpDownloader(root, {"driver": driver, **options})) as opened:
        yield opened
