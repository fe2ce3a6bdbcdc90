"""One dataset, four kinds of store, two drivers each: the same digests, also where one request in twelve goes wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from formats.canon import canon
from formats.folder import FIXTURES
from servers.azurite import Azurite
from servers.datasets import expected_items, put_dataset
from servers.fakegcs import FakeGcs
from servers.nginx import Nginx
from servers.proxy import Plan, Proxy
from servers.weed import Weed

import forebay

pytestmark = pytest.mark.slow

CLOUDS = ("s3", "gcs", "azure", "http")
DRIVERS = ("obstore", "fsspec")
FIXTURE = "litdata-zstd-chunk"
SECRETS = (Weed.SECRET, FakeGcs.TOKEN, Azurite.KEY)


class Place:
    """A store and the ways to it."""

    def __init__(self, store: Weed | FakeGcs | Azurite | Nginx) -> None:
        self.store = store

    @property
    def port(self) -> int:
        return self.store.port

    @property
    def host(self) -> str | None:
        """The one name by which the server knows itself: SeaweedFS needs the client's, which is signed."""
        return None if isinstance(self.store, Weed) else f"127.0.0.1:{self.store.port}"

    def put(self, key: str, data: bytes) -> None:
        self.store.put(key, data)

    def at(self, prefix: str, port: int | None = None) -> tuple[str, dict[str, object]]:
        """URL and options, behind a proxy's port where one is given."""
        if isinstance(self.store, Nginx):
            return f"http://127.0.0.1:{port or self.store.port}/{prefix}", {}
        endpoint = self.store.endpoint
        if port is not None:
            endpoint = endpoint.replace(f":{self.store.port}", f":{port}")
        return f"{self.store.url}/{prefix}", {**self.store.options, "endpoint_url": endpoint}


@pytest.fixture(params=CLOUDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    names = {"s3": "weed", "gcs": "fakegcs", "azure": "azurite"}
    if request.param == "http":
        with Nginx(tmp_path / "nginx") as server:
            yield Place(server)
    else:
        yield Place(request.getfixturevalue(names[request.param]))


def digests(url: str, options: Mapping[str, object], cache: Path) -> list[str]:
    with forebay.open_dataset(url, cache_dir=cache, max_cache_bytes="64MiB", options=options) as dataset:
        return [canon(item) for item in dataset]


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_same_digests_everywhere(place: Place, driver: str, tmp_path: Path) -> None:
    for file in (FIXTURES / FIXTURE).iterdir():
        place.put(f"fixture/{file.name}", file.read_bytes())
    url, options = place.at("fixture")
    expected = json.loads((FIXTURES / FIXTURE / "expected.json").read_text())["sha256"]
    assert digests(url, {**options, "driver": driver}, tmp_path / "cache") == expected


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_same_digests_under_faults(
    place: Place, driver: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the requests 5 % get 503, 2 % a reset, 2 % a cut in the body, 1 % hang: every item comes unbroken (N, S)."""
    put_dataset(place, tmp_path, prefix="faulty/", count=240, size=1000, per_chunk=2)
    expected = [canon(item) for item in expected_items(240)]
    plan = Plan(busy=20, reset=50, cut=49, hang=97)
    caplog.set_level(logging.DEBUG, "forebay")
    with Proxy(place.port, plan, host=place.host) as proxy:
        url, options = place.at("faulty", proxy.port)
        found = digests(url, {**options, "driver": driver, "timeout": 1.0, "max_attempts": 8}, tmp_path / "cache")
        assert found == expected
        assert set(proxy.faults) == {"busy", "reset", "cut", "hang"}, f"{proxy.requests} requests: {proxy.faults}"
        assert proxy.requests <= 121 + 2 * sum(proxy.faults.values()), "one request a chunk beside the retries"
    assert not [secret for secret in SECRETS if secret in caplog.text]


@pytest.mark.parametrize(
    ("url", "variable", "values"),
    [
        ("gs://bench/key.bin", "STORAGE_EMULATOR_HOST", ("http://127.0.0.1:1", "http://127.0.0.1:2")),
        (
            "az://bench/key.bin",
            "AZURE_STORAGE_CONNECTION_STRING",
            tuple(
                f"DefaultEndpointsProtocol=http;AccountName={name};AccountKey=a2V5;BlobEndpoint=http://127.0.0.1:1/{name};"
                for name in ("lakeone", "laketwo")
            ),
        ),
    ],
)
def test_one_url_at_two_stores_of_the_environment_is_cached_apart(
    monkeypatch: pytest.MonkeyPatch, url: str, variable: str, values: tuple[str, str]
) -> None:
    """Risk C8: what came from one store is never served as the other's."""
    from forebay import _registry
    from forebay._source import location

    found = []
    for value in values:
        monkeypatch.setenv(variable, value)
        found.append(location(_registry.resolve(url)))
    assert found[0] != found[1]
    assert "a2V5" not in "".join(found)
