"""pandas, pyarrow and dask read the clouds through ``forebay://URL`` and ``forebay::URL``, each object once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import dask
import dask.dataframe
import fsspec
import pandas
import pyarrow.dataset
import pyarrow.parquet
import pytest
from pyarrow.fs import FSSpecHandler, PyFileSystem
from servers.azurite import Azurite
from servers.fakegcs import FakeGcs
from servers.proxy import Plan, Proxy
from servers.weed import Weed

from forebay_fsspec import ForebayFileSystem

pytestmark = [
    pytest.mark.usefixtures("cache"),
    # pyarrow leaves files to the collector, which closes them and lets go of the lease.
    pytest.mark.filterwarnings("ignore:unclosed file <CachedFile:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*unclosed file <CachedFile:pytest.PytestUnraisableExceptionWarning"),
]
ROWS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """Tables in one cloud, and how their readers write them."""

    url: str
    chained: bool
    storage: dict[str, Any] = field(repr=False)
    proxy: Proxy = field(repr=False)

    def __call__(self, key: str) -> str:
        return f"forebay{'::' if self.chained else '://'}{self.url}/{key}"

    def gets(self, key: str) -> int:
        """How often the object itself was asked for."""
        seen = [unquote(one.target.partition("?")[0]) for one in self.proxy.seen if one.method == "GET"]
        return sum(target.endswith(f"bench/{key}") for target in seen)

    def files(self) -> tuple[ForebayFileSystem, str]:
        """As a file system, for libraries that take one."""
        fs, path = fsspec.url_to_fs(self("tables"), **self.storage)
        assert isinstance(fs, ForebayFileSystem)
        return fs, path


def frame(number: int) -> Any:
    return pandas.DataFrame({"n": range(number * ROWS, (number + 1) * ROWS), "text": ["pond"] * ROWS})


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(cloud, marks=pytest.mark.xdist_group(group))
        for cloud, group in (("weed", "s3"), ("fakegcs", "gcs"), ("azurite", "azure"))
    ],
)
def store(request: pytest.FixtureRequest) -> Weed | FakeGcs | Azurite:
    server: Weed | FakeGcs | Azurite = request.getfixturevalue(request.param)
    for number in range(2):
        server.put(f"tables/{number}.csv", frame(number).to_csv(index=False).encode())
        server.put(f"tables/{number}.parquet", frame(number).to_parquet(index=False))
    return server


@pytest.fixture(params=["direct", "chained"])
def lake(request: pytest.FixtureRequest, store: Weed | FakeGcs | Azurite) -> Iterator[Lake]:
    chained = request.param == "chained"
    host = None if isinstance(store, Weed) else f"127.0.0.1:{store.port}"
    with Proxy(store.port, Plan(), host=host) as proxy:
        endpoint = store.endpoint.replace(str(store.port), str(proxy.port))
        ours: Mapping[str, object] = {**store.options, "endpoint_url": endpoint}
        theirs = fsspec_words(store, endpoint)
        storage = theirs if chained else {"options": ours}
        yield Lake(url=store.url, chained=chained, storage=storage, proxy=proxy)
    ForebayFileSystem.clear_instance_cache()


def fsspec_words(store: Weed | FakeGcs | Azurite, endpoint: str) -> dict[str, Any]:
    """The options of fsspec's own file system for the store, as its users have them already."""
    if isinstance(store, Weed):
        client = {"region_name": store.REGION}
        return {"s3": {"key": store.KEY, "secret": store.SECRET, "endpoint_url": endpoint, "client_kwargs": client}}
    if isinstance(store, FakeGcs):
        return {"gs": {"token": "anon", "project": "test", "endpoint_url": endpoint}}
    text = store.connection_string.replace(store.endpoint, endpoint)
    return {"az": {"connection_string": text}}


def test_pandas(lake: Lake) -> None:
    for _ in range(2):
        assert pandas.read_csv(lake("tables/0.csv"), storage_options=lake.storage).equals(frame(0))
        assert pandas.read_parquet(lake("tables/1.parquet"), storage_options=lake.storage).equals(frame(1))
    assert (lake.gets("tables/0.csv"), lake.gets("tables/1.parquet")) == (1, 1)


def test_pyarrow(lake: Lake) -> None:
    fs, path = lake.files()
    wrapped = PyFileSystem(FSSpecHandler(fs))
    table = pyarrow.dataset.dataset(
        [f"{path}/0.parquet", f"{path}/1.parquet"], filesystem=wrapped, format="parquet"
    ).to_table(columns=["n"])
    assert table.column("n").to_pylist() == list(range(2 * ROWS))
    assert pyarrow.parquet.read_table(f"{path}/0.parquet", filesystem=wrapped).num_rows == ROWS
    assert (lake.gets("tables/0.parquet"), lake.gets("tables/1.parquet")) == (1, 1)


@pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")  # dask's use of pandas
def test_dask(lake: Lake) -> None:
    """A pattern, whose files are listed by our driver and read in threads."""
    with ThreadPoolExecutor(2) as pool, dask.config.set(pool=pool):
        read = dask.dataframe.read_csv(lake("tables/*.csv"), storage_options=lake.storage)
        assert list(read["n"].compute()) == list(range(2 * ROWS))
        parquet = dask.dataframe.read_parquet(
            [lake("tables/0.parquet"), lake("tables/1.parquet")], storage_options=lake.storage
        )
        assert int(parquet["n"].sum().compute()) == sum(range(2 * ROWS))
    assert lake.gets("tables/0.csv") == lake.gets("tables/1.parquet") == 1
