"""What each cloud's backend says of who asks: every place that it looks at, in its order, and no secret."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import forebay
from forebay.types import Access

SECRET = "c2VjcmV0LXNlY3JldC1zZWNyZXQ="
SAS = f"sv=2023-11-03&sp=rl&se=2999-01-01T00:00:00Z&sig={SECRET}"
STATIC = {"access_key_id": "AKIAEXAMPLEKEY", "secret_access_key": SECRET}
Told = Callable[..., Access]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """`describe_access` of a URL with these options and variables; what it says holds no secret."""

    def describe(url: str, options: Mapping[str, object] | None = None, **env: str) -> Access:
        with monkeypatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            downloader = forebay.open_downloader(url, options=dict(options or {}))
            access = downloader.describe_access()
            downloader.close()
        assert access is not None
        assert SECRET not in repr(access)
        assert "AKIAEXAMPLEKEY" not in repr(access)
        return access

    return describe


def used(access: Access) -> list[str]:
    return [step.source for step in access.tried if step.outcome in ("used", "open")]


def outcome(access: Access, start: str) -> str:
    return next(step.outcome for step in access.tried if step.source.startswith(start))


def test_s3(told: Told, isolated_environment: Path) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLEKEY", "AWS_SECRET_ACCESS_KEY": SECRET}
    assert used(told("s3://bucket", {"anonymous": True}, **keys)) == ["option anonymous"]
    assert used(told("s3://bucket", {"credentials": dict}, **keys)) == ["option credentials"]
    assert used(told("s3://bucket", STATIC, **keys)) == ["options access_key_id, secret_access_key"]
    assert used(told("s3://bucket", **keys)) == ["AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"]
    bare = told("s3://bucket")
    assert used(bare) == []
    assert bare.hints, "nothing was found, and the machine is not asked"
    assert used(told("s3://bucket", AWS_EC2_METADATA_DISABLED="false")) == ["the machine's identity"]
    assert outcome(told("s3://bucket", AWS_SECRET_ACCESS_KEY=SECRET), "AWS_ACCESS_KEY_ID") == "passed over"
    folder = isolated_environment / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(
        f"[work]\naws_access_key_id = AKIAEXAMPLEKEY\naws_secret_access_key = {SECRET}\n"
    )
    (folder / "config").write_text("[profile fetched]\nsso_start_url = https://sso.example.org\n")
    by_variable = told("s3://bucket", AWS_PROFILE="work")
    assert used(by_variable) == [f"profile 'work' in {folder / 'credentials'} and {folder / 'config'}"]
    assert used(told("s3://bucket", {"profile": "work"}, **keys)) == ["option profile"]
    fetched = told("s3://bucket", {"profile": "fetched"})
    assert "sso_start_url" in fetched.who
    assert outcome(told("s3://bucket", {**STATIC, "profile": "work"}), "option profile") == "passed over"


def test_gcs(told: Told, isolated_environment: Path, tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    file.write_text(json.dumps({"type": "service_account", "private_key": SECRET, "client_email": "a@example.org"}))
    assert used(told("gs://bucket", {"anonymous": True})) == ["option anonymous"]
    assert used(told("gs://bucket", {"token": SECRET})) == ["option token"]
    assert "service_account" in told("gs://bucket", {"token": str(file)}).who
    assert used(told("gs://bucket", STORAGE_EMULATOR_HOST="127.0.0.1:1")) == ["STORAGE_EMULATOR_HOST"]
    named = told("gs://bucket", GOOGLE_APPLICATION_CREDENTIALS=str(file))
    assert used(named) == ["GOOGLE_APPLICATION_CREDENTIALS"]
    assert str(file) in repr(named)
    gone = told("gs://bucket", GOOGLE_APPLICATION_CREDENTIALS=str(tmp_path / "gone.json"))
    assert outcome(gone, "GOOGLE_APPLICATION_CREDENTIALS") == "passed over"
    assert gone.hints
    folder = isolated_environment / ".config" / "gcloud"
    folder.mkdir(parents=True)
    (folder / "application_default_credentials.json").write_text(file.read_text())
    assert used(told("gs://bucket")) == ["gcloud's file"]
    assert used(told("gs://bucket", {"token": "google_default"})) == ["gcloud's file"]


def test_azure(told: Told) -> None:
    url, mine = "az://container", {"account_name": "lakeaccount"}
    text = f"AccountName=lakeaccount;AccountKey={SECRET};EndpointSuffix=core.windows.net"
    assert used(told(url, {**mine, "account_key": SECRET})) == ["option account_key"]
    assert used(told(url, {**mine, "sas_token": SAS})) == ["option sas_token"]
    assert used(told(url, {"connection_string": text})) == ["option connection_string"]
    web = f"https://lakeaccount.blob.core.windows.net/container?{SAS}"
    assert used(told(web, {"backend": "azure"})) == ["the URL"]
    for name in ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY"):
        assert used(told(url, AZURE_STORAGE_ACCOUNT_NAME="lakeaccount", **{name: SECRET})) == [name]
    assert used(told(url, AZURE_STORAGE_CONNECTION_STRING=text)) == ["AZURE_STORAGE_CONNECTION_STRING"]
    assert used(told(url, AZURE_STORAGE_USE_EMULATOR="true")) == ["AZURE_STORAGE_USE_EMULATOR"]
    assert used(told(url, mine, AZURE_CLIENT_ID="id")) == ["service principal, workload identity"]
    assert used(told(url, mine, AZURE_TOKEN_CREDENTIALS="")) == ["the machine's identity"]
    foreign = told(
        "abfss://container@lakeaccount.dfs.core.windows.net",
        AZURE_STORAGE_CONNECTION_STRING=text.replace("lake", "pond"),
    )
    assert outcome(foreign, "AZURE_STORAGE_CONNECTION_STRING") == "passed over"
    assert "pondaccount" in foreign.hints[0]
    assert "lakeaccount" in foreign.hints[0]
    for terms, words in (
        ("se=2001-01-01", "has ended"),
        ("st=2999-01-01T00:00Z&se=2999-02-01", "begins at"),
        ("se=2999-01-01&sp=w", "no reading"),
    ):
        (hint,) = told(url, {**mine, "sas_token": f"sv=2023-11-03&{terms}&sig={SECRET}"}).hints
        assert words in hint


def test_proxy_and_certificates_are_told(told: Told) -> None:
    assert told("s3://bucket", {**STATIC, "endpoint_url": "http://127.0.0.1:1"}).network == "no proxy"
    words = told(
        "s3://bucket", STATIC, HTTPS_PROXY=f"http://user:{SECRET}@proxy.example.org:3128", SSL_CERT_FILE=""
    ).network
    assert "proxy.example.org:3128" in words
    assert "certificates of the system" in words or "SSL_CERT_DIR" in words
