"""Credentials of several places: the strongest that says who asks wins, whatever kind the others have (M1, M2, M3).

``options=`` is stronger than the alias's table, which is stronger than ``FOREBAY_…`` variables, which are stronger than
what the clouds' SDKs read by themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import forebay
from forebay import _registry
from forebay.exceptions import ConfigError

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
