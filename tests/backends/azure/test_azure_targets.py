"""One parser for all the ways in which people name a place in Azure, and one for who asks (L1-L6, M1-M8)."""

from __future__ import annotations

import pytest
from servers.azurite import Azurite

import forebay
from forebay.exceptions import ConfigError, InvalidURLError
from forebay.testing import FaultServer, run_async
from forebay_azure._options import AzureAccess, access
from forebay_azure._target import parse_target

BLOB = "https://lake.blob.core.windows.net"
KEY = "c2VjcmV0LWtleS1vZi1hLXRlc3Q="
SAS = "sv=2023-11-03&sr=c&sp=rl&sig=c2VjcmV0%2B"
EMULATOR = "http://127.0.0.1:10000/devstoreaccount1"

SPELLINGS = {
    "az://data": (None, "data", "", None),
    "AZ://data/": (None, "data", "", None),
    "az://data/train/v1": (None, "data", "train/v1", None),
    "azure://data/train/v1/": (None, "data", "train/v1", None),
    "abfs://data/train": (None, "data", "train", None),
    "abfss://data/train": (None, "data", "train", None),
    "abfss://data@lake.dfs.core.windows.net/train": ("lake", "data", "train", BLOB),
    "abfs://data@lake.blob.core.windows.net": ("lake", "data", "", BLOB),
    "az://data@lake.dfs.core.windows.net/a%20b#c?d": ("lake", "data", "a%20b#c?d", BLOB),
    "az://data@LAKE.dfs.core.windows.net/x": ("lake", "data", "x", BLOB),
    "abfss://data@lake.dfs.core.chinacloudapi.cn/x": ("lake", "data", "x", "https://lake.blob.core.chinacloudapi.cn"),
    "abfss://data@lake.z12.blob.storage.azure.net/x": ("lake", "data", "x", "https://lake.z12.blob.storage.azure.net"),
    "az://$web/x": (None, "$web", "x", None),
    f"{BLOB}/data": ("lake", "data", "", BLOB),
    f"{BLOB}/data/train/v1/": ("lake", "data", "train/v1", BLOB),
    f"{BLOB}/data/a%20b%2Fc": ("lake", "data", "a b/c", BLOB),
    "https://lake.dfs.core.windows.net/data/x": ("lake", "data", "x", BLOB),
    f"{BLOB}/data/x?{SAS}": ("lake", "data", "x", BLOB),
    f"{EMULATOR}/data/x": ("devstoreaccount1", "data", "x", EMULATOR),
    "http://localhost:10000/devstoreaccount1/data": (
        "devstoreaccount1", "data", "", "http://localhost:10000/devstoreaccount1",
    ),
    "https://data.example.org/data/x": (None, "data", "x", "https://data.example.org"),
}  # fmt: skip


@pytest.mark.parametrize("url", SPELLINGS)
def test_spellings(url: str) -> None:
    target = parse_target(url)
    assert (target.account, target.container, target.prefix, target.endpoint) == SPELLINGS[url]
    assert target.sas == (SAS if SAS in url else None)
    assert SAS not in repr(target)


@pytest.mark.parametrize(
    "url",
    [
        "az://Data/x",  # capitals
        "az://da/x",  # too short
        "az://a--b/x",
        "az://data_1/x",
        "az://lake.blob.core.windows.net/data",  # the account where the container stands
        "abfss://data@lake.example.org/x",
        "abfss://data@/x",
        f"{BLOB}/",
        f"{BLOB}/data?comp=list",
        "https://user:secret@lake.blob.core.windows.net/data",
        "http://127.0.0.1:10000/data",
    ],
)
def test_what_names_no_place_is_refused_before_any_request(url: str) -> None:
    with pytest.raises(InvalidURLError) as error:
        parse_target(url)
    assert "secret" not in str(error.value)


def found(url: str, **options: object) -> AzureAccess:
    return access(parse_target(url), options)


def test_a_way_to_authenticate_is_taken_from_one_place() -> None:
    assert found("az://data", account_name="lake", account_key=KEY).auth.kind == "key"
    assert found(f"{BLOB}/data?{SAS}").auth.kind == "sas"
    assert found(f"{BLOB}/data", sas_token=f"?{SAS}").auth.text == SAS
    assert found(f"{BLOB}/data", anonymous=True).auth.kind == "anonymous"
    assert found(f"{BLOB}/data").auth.kind == "chain"
    text = f"DefaultEndpointsProtocol=https;AccountName=lake;AccountKey={KEY};EndpointSuffix=core.windows.net"
    by_text = found("az://data", connection_string=text)
    assert (by_text.account, by_text.endpoint, by_text.auth.text) == ("lake", BLOB, KEY)
    assert found("az://data", connection_string="UseDevelopmentStorage=true").endpoint == EMULATOR
    for secret in (KEY, SAS):
        assert secret not in repr(by_text) + repr(found(f"{BLOB}/data?{SAS}"))


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("az://data", {}),  # no account
        (f"{BLOB}/data", {"account_name": "other", "account_key": KEY}),  # a key would go to somebody else
        (f"{BLOB}/data", {"account_key": KEY, "sas_token": SAS}),
        (f"{BLOB}/data?{SAS}", {"account_key": KEY}),
        (f"{BLOB}/data", {"anonymous": True, "account_key": KEY}),
        (f"{BLOB}/data", {"account_key": "no base64!"}),
        (f"{BLOB}/data", {"sas_token": "sv=1"}),
        (f"{BLOB}/data", {"credentials": "no callable"}),
        ("az://data", {"connection_string": f"AccountKey={KEY}"}),
        ("az://data", {"account_name": "lake", "endpoint_url": "ftp://host"}),
        ("az://data", {"account_name": "lake", "endpoint_url": "https://host/?x=1"}),
    ],
)
def test_contradictions_are_errors_before_any_request(url: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as error:
        found(url, **options)
    assert KEY not in str(error.value)


def test_an_option_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """M3: a key in the environment is not looked at once an option says who asks."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "around")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    assert (found("az://data").account, found("az://data").auth.kind) == ("around", "key")
    assert found("az://data", sas_token=SAS).auth.kind == "sas"
    assert found("az://data", anonymous=True).auth.kind == "anonymous"
    assert found(f"{BLOB}/data").auth.kind == "chain", "the environment's key is another account's"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"AccountName=stranger;AccountKey={KEY}")
    assert found("az://data", account_name="lake", account_key="b3RoZXI=").auth.text == "b3RoZXI="


LOCAL = "http://127.0.0.1:9/lake"


@pytest.mark.parametrize("url", ["abfss://data@lake.dfs.core.windows.net/x", f"{BLOB}/data/x", "az://data/x"])
@pytest.mark.parametrize("around", [{}, {"ACCOUNT_KEY": KEY, "ACCOUNT_NAME": "lake"}, {"CONNECTION_STRING": "other"}])
def test_an_endpoint_in_the_options_is_where_the_account_is(
    monkeypatch: pytest.MonkeyPatch, url: str, around: dict[str, str]
) -> None:
    """M1, M3: whoever says who asks, the URL's host names the account, and a key in the environment changes nothing."""
    for name, value in around.items():
        text = f"AccountName=lake;AccountKey={KEY};BlobEndpoint=http://127.0.0.1:8/lake"
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", text if name == "CONNECTION_STRING" else value)
    assert found(url, account_name="lake", endpoint_url=LOCAL).endpoint == LOCAL
    assert found(url, account_name="lake", endpoint_url=LOCAL, account_key=KEY).endpoint == LOCAL
    text = f"AccountName=lake;AccountKey={KEY}"
    assert found(url, connection_string=f"{text};BlobEndpoint={LOCAL}").endpoint == LOCAL
    assert found(url, connection_string=text).endpoint == BLOB, "nobody wrote another one"


@pytest.mark.xdist_group("azure")
@pytest.mark.parametrize("driver", ["obstore", "fsspec"])
def test_every_way_to_authenticate_reads(azurite: Azurite, driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """M1, M2: keys, signatures, connection strings, callables, public containers, whatever the environment holds."""
    for name, value in (
        ("ACCOUNT_KEY", KEY),
        ("SAS_TOKEN", SAS),
        ("CONNECTION_STRING", f"AccountName=x;AccountKey={KEY}"),
    ):
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
    azurite.put("who/a b.bin", b"bytes")
    where = {"endpoint_url": azurite.endpoint, "driver": driver}
    web = f"{azurite.endpoint}/{azurite.BUCKET}/who"
    ways: list[tuple[str, dict[str, object]]] = [
        (f"{azurite.url}/who", {**where, "account_key": azurite.KEY}),
        (f"{azurite.url}/who", {**where, "sas_token": azurite.sas()}),
        (f"{azurite.url}/who", {"driver": driver, "connection_string": azurite.connection_string}),
        (f"{azurite.url}/who", {**where, "credentials": lambda: {"account_key": azurite.KEY}}),
        (f"{azurite.url}/who", {**where, "credentials": lambda: {"sas_token": "?" + azurite.sas()}}),
        (f"{web}?{azurite.sas()}", {"driver": driver, "backend": "azure"}),
        (web, {"driver": driver, "backend": "azure", "account_key": azurite.KEY}),
    ]
    for url, options in ways:
        downloader = forebay.open_downloader(url, options=options)
        assert downloader.download_bytes("a b.bin") == b"bytes"
        assert [info.key for info in downloader.list()] == ["a b.bin"]
        downloader.close()


@pytest.mark.xdist_group("azure")
@pytest.mark.parametrize("driver", ["obstore", "fsspec"])
def test_a_public_container_is_read_without_credentials(azurite: Azurite, driver: str) -> None:
    name = f"public-{driver}"
    azurite.make_bucket(name, public=True)
    azurite.put("a.bin", b"bytes", name)
    options = {"endpoint_url": azurite.endpoint, "driver": driver, "anonymous": True}
    downloader = forebay.open_downloader(f"az://{name}", options=options)
    assert downloader.download_bytes("a.bin") == b"bytes"
    downloader.close()


@pytest.mark.parametrize("driver", ["obstore", "fsspec"])
def test_one_request_a_read(driver: str) -> None:
    """No HEAD, no listing: not for a part, not for a whole object."""
    with FaultServer() as faults:
        faults.put("lake1/data/key.bin", b"0123456789")
        options = {
            "driver": driver,
            "endpoint_url": f"{faults.url()}/lake1",
            "account_name": "lake1",
            "account_key": KEY,
        }
        downloader = forebay.open_downloader("az://data", options=options)
        assert downloader.download_bytes("key.bin", 2, 3) == b"234"
        assert downloader.download_bytes("key.bin") == b"0123456789"

        async def main() -> None:
            assert bytes((await downloader.aread_range("key.bin", 2, 3)).data) == b"234"  # type: ignore[attr-defined]
            await downloader.aclose()

        run_async(main())
        downloader.close()
        assert [request.method for request in faults.requests] == ["GET"] * 3
        assert all(request.headers["authorization"].startswith("SharedKey lake1:") for request in faults.requests)


@pytest.mark.xdist_group("azure")
def test_fetch_of_a_https_url(azurite: Azurite, tmp_path: object) -> None:
    """The last part of the path is the key, decoded; a signature goes with it and is no part of its identity."""
    azurite.put("fetch/a b.bin", b"bytes")
    url = f"{azurite.endpoint}/{azurite.BUCKET}/fetch/a%20b.bin?{azurite.sas()}"
    path = forebay.fetch(url, cache_dir=str(tmp_path), options={"backend": "azure"})
    assert path.read_bytes() == b"bytes"
    forebay.release(path)
