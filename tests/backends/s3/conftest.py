"""Servers and downloaders for the tests of the s3 backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from servers.moto import Moto
from servers.store import lasting
from servers.weed import Weed

from forebay.testing import FaultServer
from forebay_s3 import S3Downloader

#: Long enough to be looked for in texts, and telling where they come from.
KEYS = {"access_key_id": "AKIAEXAMPLEKEY", "secret_access_key": "wJalrXUtnFEMI-example-secret"}


@pytest.fixture(scope="session")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weed]:
    with lasting(Weed(tmp_path_factory.mktemp("weed"))) as server:
        yield server


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moto]:
    with lasting(Moto(tmp_path_factory.mktemp("moto"))) as server:
        yield server


@pytest.fixture
def faults() -> Iterator[FaultServer]:
    with FaultServer(writable=True) as server:
        yield server


@pytest.fixture(autouse=True)
def no_aws_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test uses the developer's own account, or asks the network for one."""
    import os

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(params=["obstore", "fsspec"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(driver: str) -> Iterator[Callable[..., S3Downloader]]:
    """Makes downloaders with the driver under test, and closes them."""
    made: list[S3Downloader] = []

    def make(root: str, **options: object) -> S3Downloader:
        made.append(S3Downloader(root, {"driver": driver, **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def faulty(faults: FaultServer, opened: Callable[..., S3Downloader]) -> Callable[..., S3Downloader]:
    """Makes downloaders of a bucket at the server that misbehaves; its keys there begin with ``bucket/``."""

    def make(**options: object) -> S3Downloader:
        given = {"endpoint_url": faults.url(), "timeout": 5.0, **KEYS, **options}
        return opened("s3://bucket", **{name: value for name, value in given.items() if value is not None})

    return make
