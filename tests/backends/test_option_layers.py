"""Credentials of several places: the strongest that says who asks wins, whatever kind the others have (M1, M2, M3).

``options=`` is stronger than the alias's table, which is stronger than ``FOREBAY_…`` variables, which are stronger than
what the clouds' SDKs read by themselves.
"""

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
from forebay import _registry
from forebay.exceptions import ConfigError
from forebay.testing import FaultServer, run_async

KEY, OTHER_KEY = "c2VjcmV0LWtleS1vZi1hLXRlc3Q=", "b3RoZXI="
SAS = "sv=2023-11-03&sr=c&sp=rl&sig=c2VjcmV0%2B"
TEXT = f"AccountName=lake;AccountKey={OTHER_KEY};BlobEndpoint=http://127.0.0.1:10000/lake"
PERSON = '{"type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "c"}'


def call() -> Mapping[str, object]:
    """A credentials callable."""
    return {"token": "from-a-callable", "access_key_id": "k", "secret_access_key": "s", "account_key": KEY}


class Layers:
    """Puts options where people put them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch
        self._backend = backend

    def opened(
        self,
        rest: str,
        explicit: Mapping[str, object],
        table: Mapping[str, object],
        variables: Mapping[str, object],
        sdk: Mapping[str, str],
    ) -> forebay.Downloader:
        lines = [f"{name} = {json.dumps(value)}" for name, value in table.items() if not isinstance(value, dict)]
        for name, value in table.items():
            if isinstance(value, dict):
                lines += [f"[scheme.mine.{name}]", *(f"{one} = {json.dumps(text)}" for one, text in value.items())]
        path = self._folder / "forebay.toml"
        path.write_text("\n".join(["[scheme.mine]", f'backend = "{self._backend}"', *lines]))
        self._monkeypatch.setenv("FOREBAY_CONFIG", str(path))
        for name, value in variables.items():
            self._monkeypatch.setenv(f"FOREBAY_{self._backend.upper()}_{name.upper()}", str(value))
        for name, value in sdk.items():
            self._monkeypatch.setenv(name, value)
        url = rest if "://" in rest else f"mine://{rest}"
        options = {**explicit, "backend": self._backend} if url.startswith("http") else explicit
        return forebay.open_downloader(url, options=options)


Row = tuple[dict[str, object], dict[str, object], dict[str, object], dict[str, str], object]

# options=, [scheme.mine], FOREBAY_S3_*, the SDK's own variables; who asks: (key, secret, session token), or a word
S3: dict[str, Row] = {
    "keys over a profile": (
        {"access_key_id": "A", "secret_access_key": "B"}, {"profile": "gone"}, {}, {}, ("A", "B", None),
    ),
    "keys over anonymous": (
        {"access_key_id": "A", "secret_access_key": "B"}, {"anonymous": True}, {}, {}, ("A", "B", None),
    ),
    "anonymous over keys": ({"anonymous": True}, {"access_key_id": "A", "secret_access_key": "B"}, {}, {}, "anonymous"),
    "callable over keys": ({"credentials": call}, {"access_key_id": "A", "secret_access_key": "B"}, {}, {}, "callable"),
    "table over variables": (
        {}, {"access_key_id": "A", "secret_access_key": "B"}, {"anonymous": "true"}, {}, ("A", "B", None),
    ),
    "no token of another place": (
        {"access_key_id": "A", "secret_access_key": "B"}, {}, {"session_token": "T"}, {"AWS_SESSION_TOKEN": "U"},
        ("A", "B", None),
    ),
    "no token of a table": (
        {"access_key_id": "A", "secret_access_key": "B"}, {"session_token": "T"}, {}, {}, ("A", "B", None),
    ),
    "token beside its key": (
        {}, {"access_key_id": "A", "secret_access_key": "B", "session_token": "T"}, {"session_token": "U"}, {},
        ("A", "B", "T"),
    ),
    "key and secret of two places": ({}, {"access_key_id": "A"}, {"secret_access_key": "B"}, {}, ("A", "B", None)),
    "with the token of the key": (
        {}, {"secret_access_key": "B"}, {"access_key_id": "A", "session_token": "T"}, {}, ("A", "B", "T"),
    ),
    "no half of another pair": (
        {"access_key_id": "A"}, {}, {"access_key_id": "C", "secret_access_key": "D"}, {}, ConfigError,
    ),
    "variables over the SDK's": (
        {}, {}, {"access_key_id": "A", "secret_access_key": "B"},
        {"AWS_ACCESS_KEY_ID": "C", "AWS_SECRET_ACCESS_KEY": "D", "AWS_SESSION_TOKEN": "U"}, ("A", "B", None),
    ),
    "false says nothing": (
        {"anonymous": False}, {"access_key_id": "A", "secret_access_key": "B"}, {}, {}, ("A", "B", None),
    ),
    "no more than the table's": ({}, {"anonymous": True}, {"profile": "gone"}, {}, "anonymous"),
}  # fmt: skip

GCS: dict[str, Row] = {
    "token over callable's place": ({"token": "T"}, {"anonymous": True}, {}, {}, ("bearer", "T")),
    "token over a variable's file": ({"token": "T"}, {}, {"token": PERSON}, {}, ("bearer", "T")),
    "anonymous over token": ({"anonymous": True}, {"token": "T"}, {"token": "U"}, {}, ("anonymous", "")),
    "callable over token": ({"credentials": call}, {"token": "T"}, {}, {}, ("callable", "")),
    "callable over anonymous variable": ({"credentials": call}, {}, {"anonymous": "true"}, {}, ("callable", "")),
    "table over variable": ({}, {"token": "T"}, {"anonymous": "true"}, {}, ("bearer", "T")),
    "variable over the SDK's": (
        {}, {}, {"token": "T"}, {"GOOGLE_APPLICATION_CREDENTIALS": "/no/such/file"}, ("bearer", "T"),
    ),
    "over an emulator's nobody": (
        {"token": "T"}, {}, {}, {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:1"}, ("bearer", "T"),
    ),
    "false says nothing": ({"anonymous": False}, {"token": "T"}, {}, {}, ("bearer", "T")),
    "false hides a weaker true": ({"anonymous": False}, {"anonymous": True}, {"token": "T"}, {}, ("chain", "")),
    "two in one place": ({"anonymous": True, "token": "T"}, {}, {}, {}, ConfigError),
    "two in the table": ({}, {"anonymous": True, "token": "T"}, {}, {}, ConfigError),
    "two in the table, and none meant": ({"token": "U"}, {"anonymous": True, "token": "T"}, {}, {}, ("bearer", "U")),
}  # fmt: skip

LAKE: dict[str, object] = {"account_name": "lake"}
AZURE: dict[str, tuple[str, *Row]] = {
    "key over signature": ("data", {**LAKE, "account_key": KEY}, {"sas_token": SAS}, {}, {}, ("key", KEY)),
    "signature over key": ("data", {**LAKE, "sas_token": SAS}, {"account_key": KEY}, {}, {}, ("sas", SAS)),
    "anonymous over key": ("data", {**LAKE, "anonymous": True}, {"account_key": KEY}, {}, {}, ("anonymous", "")),
    "callable over text": ("data", {"credentials": call}, {"connection_string": TEXT}, {}, {}, ("callable", "")),
    "key over text": ("data", {"account_key": KEY}, {"connection_string": TEXT}, {}, {}, ("key", KEY)),
    "key over a variable's text": ("data", {"account_key": KEY}, {}, {"connection_string": TEXT}, {}, ("key", KEY)),
    "text over key": ("data", {"connection_string": TEXT}, {"account_key": KEY}, {}, {}, ("key", OTHER_KEY)),
    "table over variable": ("data", {}, {**LAKE, "sas_token": SAS}, {"account_key": KEY}, {}, ("sas", SAS)),
    "variable over the SDK's": (
        "data", {}, {}, {**LAKE, "sas_token": SAS}, {"AZURE_STORAGE_ACCOUNT_KEY": KEY}, ("sas", SAS),
    ),
    "another kind in each place": (
        "data", {**LAKE, "sas_token": SAS}, {"account_key": KEY}, {"anonymous": "true"},
        {"AZURE_STORAGE_CONNECTION_STRING": TEXT}, ("sas", SAS),
    ),
    "the URL's signature": (
        f"https://lake.blob.core.windows.net/data?{SAS}", {}, {}, {"account_key": KEY}, {}, ("sas", SAS),
    ),
    "and nothing beside it": (
        f"https://lake.blob.core.windows.net/data?{SAS}", {"account_key": KEY}, {}, {}, {}, ConfigError,
    ),
    "two in one place": ("data", {**LAKE, "account_key": KEY, "sas_token": SAS}, {}, {}, {}, ConfigError),
    "two in the table": ("data", LAKE, {"account_key": KEY, "sas_token": SAS}, {}, {}, ConfigError),
    "no key of another account": (
        "data", {**LAKE}, {"account_name": "pond", "account_key": KEY}, {}, {}, ("chain", ""),
    ),
    "nor a text of another account": (
        "data", {**LAKE, "account_key": KEY}, {"connection_string": TEXT.replace("lake", "pond")}, {}, {}, ("key", KEY),
    ),
    "nor one against the URL's": (
        "mine://data@lake.dfs.core.windows.net", {"account_key": KEY}, {"account_name": "pond"}, {}, {}, ("key", KEY),
    ),
    "an unreadable one that is not meant": (
        "data", {**LAKE, "account_key": KEY}, {"connection_string": "what"}, {}, {}, ("key", KEY),
    ),
}  # fmt: skip


HTTP: dict[str, Row] = {
    "token over user": (
        {"bearer_token": "T"}, {"username": "u", "password": "p"}, {}, {}, {"Authorization": "Bearer T"},
    ),
    "user over token": (
        {"username": "u", "password": "p"}, {"bearer_token": "T"}, {}, {}, {"Authorization": "Basic dTpw"},
    ),
    "header over token": (
        {"headers": {"authorization": "Mine"}}, {}, {"bearer_token": "T"}, {}, {"authorization": "Mine"},
    ),
    "token over header": (
        {"bearer_token": "T"}, {"headers": {"authorization": "Mine", "X-A": "b"}}, {}, {},
        {"X-A": "b", "Authorization": "Bearer T"},
    ),
    "user and password of two places": (
        {}, {"username": "u"}, {"password": "p"}, {}, {"Authorization": "Basic dTpw"},
    ),
    "two in one place": ({"bearer_token": "T", "username": "u"}, {}, {}, {}, ConfigError),
}  # fmt: skip


@pytest.mark.parametrize("case", HTTP)
def test_who_asks_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    explicit, table, variables, sdk, wanted = HTTP[case]

    def opened() -> object:
        one = Layers(tmp_path, monkeypatch, "http").opened("127.0.0.1:1/data", explicit, table, variables, sdk)
        return one._settings.headers  # type: ignore[attr-defined]

    if wanted is ConfigError:
        with pytest.raises(ConfigError):
            opened()
    else:
        assert opened() == wanted


@pytest.mark.parametrize("case", S3)
def test_who_asks_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    *layers, wanted = S3[case]
    explicit, table, variables, sdk = layers

    def opened() -> object:
        settings = Layers(tmp_path, monkeypatch, "s3").opened("bucket", explicit, table, variables, sdk)._settings  # type: ignore[attr-defined, arg-type]
        keys = settings.keys
        if keys is not None:
            return (keys.access_key_id, keys.secret_access_key, keys.session_token)
        return "anonymous" if settings.anonymous else "callable" if settings.callable_credentials else "chain"

    if wanted is ConfigError:
        with pytest.raises(ConfigError):
            opened()
    else:
        assert opened() == wanted


@pytest.mark.parametrize("case", GCS)
def test_who_asks_gcs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    explicit, table, variables, sdk, wanted = GCS[case]

    def opened() -> object:
        one = Layers(tmp_path, monkeypatch, "gcs").opened("bucket", explicit, table, variables, sdk)
        auth = one._settings.auth  # type: ignore[attr-defined]
        return (auth.kind, auth.text)

    if wanted is ConfigError:
        with pytest.raises(ConfigError, match="exclude each other"):
            opened()
    else:
        assert opened() == wanted


@pytest.mark.parametrize("case", AZURE)
def test_who_asks_azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """What a weaker connection string says of the place is kept, where it is of the same account."""
    rest, explicit, table, variables, sdk, wanted = AZURE[case]

    def opened() -> object:
        access = Layers(tmp_path, monkeypatch, "azure").opened(rest, explicit, table, variables, sdk)._access  # type: ignore[attr-defined]
        assert access.account == "lake"
        local = any(TEXT in layer.values() for layer in (explicit, table, variables))
        assert access.endpoint == ("http://127.0.0.1:10000/lake" if local else "https://lake.blob.core.windows.net")
        return (access.auth.kind, access.auth.text)

    if wanted is ConfigError:
        with pytest.raises(ConfigError, match="exclude each other"):
            opened()
    else:
        assert opened() == wanted


def test_what_is_hidden_may_be_wrong_and_what_counts_names_its_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    """M12: of a value that no one uses nobody hears; the option that is used says where it came from."""
    monkeypatch.setenv("FOREBAY_S3_ANONYMOUS", "perhaps")
    monkeypatch.setenv("FOREBAY_S3_REGION", "eu-north-1")
    resolved = _registry.resolve("s3://bucket", {"anonymous": True})
    assert resolved.options == {"anonymous": True, "region": "eu-north-1"}
    assert resolved.origins == {"anonymous": "options=", "region": "FOREBAY_S3_REGION"}
    with pytest.raises(ConfigError, match="FOREBAY_S3_ANONYMOUS"):
        _registry.resolve("s3://bucket")


# -- and on every path, at real servers -------------------------------------------------------------------------------

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
