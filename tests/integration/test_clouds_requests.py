"""What 64 MiB cost in requests, counted by a proxy before the store: one GET a part, and one more at most."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from servers.azurite import Azurite
from servers.datasets import expected_items, put_dataset
from servers.fakegcs import FakeGcs
from servers.nginx import Nginx
from servers.proxy import Plan, Proxy, Seen
from servers.weed import Weed

import forebay
from forebay._transfer import TransferPolicy

pytestmark = pytest.mark.slow

MIB = 1 << 20
ITEMS = 4
SERVERS = {"s3": "weed", "gcs": "fakegcs", "azure": "azurite"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A store that holds a dataset of one chunk of 64 MiB."""

    store: Weed | FakeGcs | Azurite | Nginx = field(repr=False)
    chunk: str
    size: int

    def at(self, proxy: Proxy) -> tuple[str, dict[str, object]]:
        """The dataset behind a proxy: URL and options."""
        if isinstance(self.store, Nginx):
            return f"{proxy.endpoint}/large", {}
        endpoint = self.store.endpoint.replace(str(self.store.port), str(proxy.port))
        return f"{self.store.url}/large", {**self.store.options, "endpoint_url": endpoint}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in (*SERVERS, "http")]
)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("large")
    if request.param == "http":
        with Nginx(folder / "nginx") as server:
            yield filled(server, folder)
    else:
        yield filled(request.getfixturevalue(SERVERS[request.param]), folder)


def filled(store: Weed | FakeGcs | Azurite | Nginx, folder: Path) -> Place:
    (chunk,) = put_dataset(store, folder, prefix="large/", count=ITEMS, size=64 * MIB // ITEMS, per_chunk=ITEMS)
    return Place(store=store, chunk=chunk, size=(folder / "large" / chunk).stat().st_size)


@pytest.fixture
def proxy(place: Place) -> Iterator[Proxy]:
    host = f"127.0.0.1:{place.store.port}" if isinstance(place.store, FakeGcs | Azurite) else None
    with Proxy(place.store.port, Plan(), host=host) as one:
        yield one


def cost(proxy: Proxy, place: Place) -> tuple[int, int]:
    """How many requests the chunk took, and how many the rest. Every byte of the chunk was asked for once."""
    asked = [one for one in proxy.seen if unquote(one.target.partition("?")[0]).endswith(place.chunk)]
    pieces = sorted(span for one in asked if one.method == "GET" and (span := _range(one, place.size)))
    assert [start for start, _ in pieces] == [0, *(stop for _, stop in pieces[:-1])], "neither a gap nor an overlap"
    assert pieces[-1][1] >= place.size
    return len(asked), len(proxy.seen) - len(asked)


def _range(seen: Seen, size: int) -> tuple[int, int]:
    told = seen.headers.get("range") or seen.headers.get("x-ms-range")
    if told is None:
        return 0, size
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", told)
    assert match, told
    return int(match[1]), int(match[2]) + 1 if match[2] else size


@pytest.mark.parametrize("driver", ["obstore", "fsspec"])
def test_fetch_asks_once_a_part(place: Place, proxy: Proxy, driver: str, tmp_path: Path) -> None:
    """Risk R6: no HEAD before the first part; the second fetch of the process asks nobody."""
    parts = -(-place.size // TransferPolicy().part_size)
    url, options = place.at(proxy)
    given: Mapping[str, Any] = {"cache_dir": tmp_path / "cache", "options": {**options, "driver": driver}}
    path = forebay.fetch(f"{url}/{place.chunk}", **given)
    assert path.stat().st_size == place.size
    requests, others = cost(proxy, place)
    assert requests <= parts + 1, [(one.method, one.headers.get("range")) for one in proxy.seen]
    assert others == 0
    forebay.release(path)
    forebay.release(forebay.fetch(f"{url}/{place.chunk}", **given))
    assert len(proxy.seen) == requests


@pytest.mark.parametrize("driver", ["obstore", "fsspec"])
def test_dataset_asks_once_a_part_and_for_its_index(place: Place, proxy: Proxy, driver: str, tmp_path: Path) -> None:
    """Risk R6: the index says how large the chunk is, so nothing is asked but its parts."""
    parts = -(-place.size // TransferPolicy().part_size)
    url, options = place.at(proxy)
    with forebay.open_dataset(url, cache_dir=tmp_path / "cache", options={**options, "driver": driver}) as dataset:
        for item, expected in zip(dataset, expected_items(ITEMS, 64 * MIB // ITEMS), strict=True):
            assert bytes(item["blob"]) == expected["blob"], expected["index"]
    requests, others = cost(proxy, place)
    assert requests <= parts + 1, [(one.method, one.headers.get("range")) for one in proxy.seen]
    assert others == 1, "the index"
