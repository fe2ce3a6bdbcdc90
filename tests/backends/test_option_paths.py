"""The right explicit credential among wrong ones, on every path and at real servers (M1, M2, M3)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from servers.azurite import Azurite
from servers.datasets import expected_items, put_dataset
from servers.moto import Moto
from servers.weed import Weed

import forebay
from forebay.exceptions import ConfigError
from forebay.testing import FaultServer, run_async

OTHER_KEY = "b3RoZXI="
SAS = "sv=2023-11-03&sr=c&sp=rl&sig=c2VjcmV0%2B"
TEXT = f"AccountName=lake;AccountKey={OTHER_KEY};BlobEndpoint=http://127.0.0.1:10000/lake"


def call() -> Mapping[str, object]:
    """A credentials callable."""
    return {"token": "from-a-callable"}


WRONG = {
    "s3": {
        "FOREBAY_S3_ANONYMOUS": "true",
        "FOREBAY_S3_SESSION_TOKEN": "wrong-token",
        "AWS_ACCESS_KEY_ID": "AKIAWRONG",
        "AWS_SECRET_ACCESS_KEY": "wrong-secret",
        "AWS_SESSION_TOKEN": "wrong-token",
        "AWS_PROFILE": "wrong",
    },
    "gcs": {
        "FOREBAY_GCS_ANONYMOUS": "true",
        "GOOGLE_APPLICATION_CREDENTIALS": "/no/such/file.json",
        "GOOGLE_SERVICE_ACCOUNT": "/no/such/file.json",
    },
    "azure": {
        "FOREBAY_AZURE_SAS_TOKEN": SAS,
        "AZURE_STORAGE_ACCOUNT_KEY": OTHER_KEY,
        "AZURE_STORAGE_ACCOUNT_NAME": "wrong",
        "AZURE_STORAGE_CONNECTION_STRING": TEXT,
        "AZURE_STORAGE_SAS_TOKEN": SAS,
    },
}


class GcsThatAsks:
    """Google's two APIs as far as reads go, with a token that has to be the right one. fake-gcs-server asks nobody."""

    TOKEN = "ya29.the-right-one-0123456789"
    url = "gs://bench"

    def __init__(self, faults: FaultServer) -> None:
        self._faults = faults
        self.options: dict[str, object] = {"endpoint_url": faults.url(), "token": self.TOKEN}
        self._keys: dict[str, bytes] = {}

    def put(self, key: str, data: bytes) -> None:
        self._keys[key] = data
        name = key.replace("/", "%2F")
        resource = {"name": key, "size": str(len(data)), "generation": "1", "updated": "2026-01-01T00:00:00Z"}
        self._faults.put(f"bench/{key}", data)
        for place in (key, name):  # as the client sends it, and as it is decoded
            self._faults.put(f"download/storage/v1/b/bench/o/{place}", data, headers={"x-goog-generation": "1"})
            self._faults.put(f"storage/v1/b/bench/o/{place}", json.dumps(resource).encode())
        items = [{**resource, "name": one, "size": str(len(self._keys[one]))} for one in self._keys]
        self._faults.put("storage/v1/b/bench/o", json.dumps({"items": items}).encode())
        rows = "".join(
            f"<Contents><Key>{one}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;e&quot;</ETag><Size>{len(self._keys[one])}</Size></Contents>"
            for one in self._keys
        )
        self._faults.put(
            "bench",
            f"<ListBucketResult><Name>bench</Name><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode(),
        )


@pytest.fixture
def asking() -> Iterator[GcsThatAsks]:
    with FaultServer(bearer_token=GcsThatAsks.TOKEN) as server:
        yield GcsThatAsks(server)


@pytest.mark.parametrize("driver", ["obstore", "fsspec"])
@pytest.mark.parametrize("server", ["weed", "moto", "asking", "azurite"])
def test_the_right_explicit_credential_is_used_on_every_path(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: str, driver: str
) -> None:
    """M1, M2, M3: sync and async, whole and range, stat, listing, index and chunks, with wrong ones all around."""
    store: Weed | Moto | GcsThatAsks | Azurite = request.getfixturevalue(server)
    backend = {"weed": "s3", "moto": "s3", "asking": "gcs", "azurite": "azure"}[server]
    put_dataset(store, tmp_path, prefix="layers/")
    store.put("layers-key.bin", b"0123456789")
    for name, value in WRONG[backend].items():
        monkeypatch.setenv(name, value)
    options = {**store.options, "driver": driver}
    downloader = forebay.open_downloader(store.url, options=options)

    async def main() -> None:
        assert await downloader.adownload_bytes("layers-key.bin") == b"0123456789"
        assert await downloader.adownload_bytes("layers-key.bin", 2, 3) == b"234"
        assert bytes((await downloader.aread_range("layers-key.bin", 2, 3)).data) == b"234"  # type: ignore[attr-defined]
        assert (await downloader.astat("layers-key.bin")).size == 10
        await downloader.aclose()

    assert downloader.download_bytes("layers-key.bin") == b"0123456789"
    assert downloader.download_bytes("layers-key.bin", 2, 3) == b"234"
    assert downloader.stat("layers-key.bin").size == 10
    assert "layers-key.bin" in [info.key for info in downloader.list("layers-")]
    run_async(main())
    downloader.close()
    path = forebay.fetch(f"{store.url}/layers-key.bin", cache_dir=tmp_path / "cache", options=options)
    assert path.read_bytes() == b"0123456789"
    forebay.release(path)
    with forebay.open_dataset(f"{store.url}/layers", cache_dir=tmp_path / "cache", options=options) as dataset:
        assert list(dataset) == expected_items()


PRIVATE = {"type": "service_account", "client_email": "a@b", "private_key": "", "private_key_id": ""}
VARIABLES = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY")


@pytest.mark.parametrize(
    "given",
    [{"token": GcsThatAsks.TOKEN}, {"credentials": call}, {"anonymous": True}],
    ids=lambda given: next(iter(given)),
)
@pytest.mark.parametrize("variable", VARIABLES)
def test_obstores_own_variables_are_hidden_by_an_option(
    monkeypatch: pytest.MonkeyPatch, variable: str, given: Mapping[str, object]
) -> None:
    """M3: it reads them whoever asks, and fails where they cannot be read."""
    monkeypatch.setenv(variable, "{}")
    with FaultServer() as server:
        server.put("bench/key.bin", b"0123456789")
        options = {"endpoint_url": server.url(), "driver": "obstore", **given}
        downloader = forebay.open_downloader("gs://bench", options=options)
        assert downloader.download_bytes("key.bin") == b"0123456789"
        downloader.close()
        said = server.requests[0].headers.get("authorization")
    wanted = {"token": f"Bearer {GcsThatAsks.TOKEN}", "credentials": "Bearer from-a-callable", "anonymous": None}
    assert said == wanted[next(iter(given))]


def test_where_obstore_cannot_hide_its_variables_the_other_driver_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", "/no/such/file.json")
    downloader = forebay.open_downloader("gs://bench", options={"token": PRIVATE})
    said = forebay.probe(downloader)
    assert (said.driver, "GOOGLE_SERVICE_ACCOUNT" in said.reason) == ("fsspec", True)
    downloader.close()
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", "{}")
    downloader = forebay.open_downloader("gs://bench", options={"anonymous": True})
    assert forebay.probe(downloader).driver == "fsspec"
    downloader.close()


def test_what_obstore_reads_and_cannot_use_is_a_mistake_of_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an error of obstore's own class, and not one that is tried again."""
    monkeypatch.setenv("AWS_CHECKSUM_ALGORITHM", "bad")
    downloader = forebay.open_downloader("s3://bench", options={"driver": "obstore", "anonymous": True})
    with pytest.raises(ConfigError, match="checksum algorithm"):
        downloader.download_bytes("key.bin")
    downloader.close()
