"""Servers and downloaders for the tests of the s3 backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from servers.answers import opening

from forebay.testing import FaultServer
from forebay_s3 import S3Downloader

#: Long enough to be looked for in texts, and telling where they come from.
KEYS = {"access_key_id": "AKIAEXAMPLEKEY", "secret_access_key": "wJalrXUtnFEMI-example-secret"}


@pytest.fixture
def faults() -> Iterator[FaultServer]:
    with FaultServer(writable=True) as server:
        yield server


@pytest.fixture
def opened(driver: str) -> Iterator[Callable[..., S3Downloader]]:
    """Makes downloaders with the driver under test, and closes them."""
    with opening(lambda root, **options: S3Downloader(root, {"driver": driver, **options})) as opened:
        yield opened


@pytest.fixture
def faulty(faults: FaultServer, opened: Callable[..., S3Downloader]) -> Callable[..., S3Downloader]:
    """Makes downloaders of a bucket at the server that misbehaves; its keys there begin with ``bucket/``."""

    def make(**options: object) -> S3Downloader:
        given = {"endpoint_url": faults.url(), "timeout": 5.0, **KEYS, **options}
        return opened("s3://bucket", **{name: value for name, value in given.items() if value is not None})

    return make
