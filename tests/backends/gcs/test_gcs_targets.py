"""One parser for all the ways in which people name a place in Google Cloud Storage, and one for who asks (L, M)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forebay.exceptions import ConfigError, InvalidURLError
from forebay.testing import FaultServer, run_async
from forebay_gcs import GcsDownloader
from forebay_gcs._options import parse_options
from forebay_gcs._target import parse_target

SPELLINGS = {
    "gs://data": ("data", ""),
    "GS://data/": ("data", ""),
    "gcs://data/train/v1/": ("data", "train/v1"),
    "gs://data.example.org/x": ("data.example.org", "x"),
    "gs://my_bucket-1/a%20b#c?d": ("my_bucket-1", "a%20b#c?d"),
    "https://storage.googleapis.com/data/a%20b": ("data", "a b"),
    "https://data.storage.googleapis.com/train": ("data", "train"),
    "https://storage.cloud.google.com/data": ("data", ""),
}


@pytest.mark.parametrize("url", SPELLINGS)
def test_spellings(url: str) -> None:
    target = parse_target(url)
    assert (target.bucket, target.prefix) == SPELLINGS[url]


@pytest.mark.parametrize(
    "url",
    [
        "gs://Data/x",
        "gs://user@data/x",
        "gs://-data",
        "https://data.example.org/bucket/x",
        "https://storage.googleapis.com/",
        "https://storage.googleapis.com/data/x?X-Goog-Signature=secret",
    ],
)
def test_what_names_no_place_is_refused_before_any_request(url: str) -> None:
    with pytest.raises(InvalidURLError) as error:
        parse_target(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "options",
    [
        {"token": "ya29.secret", "anonymous": True},
        {"token": "ya29.secret", "credentials": dict},
        {"token": "a token with spaces: secret"},
        {"token": '{"secret": 1}'},
        {"token": "/no/such/secret.json"},
        {"credentials": "no callable"},
        {"endpoint_url": "ftp://host"},
        {"endpoint_url": "http://user:secret@host"},
        {"user_project": "a\nsecret"},
    ],
)
def test_contradictions_are_errors_before_any_request(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as error:
        parse_options(options)
    assert "secret" not in str(error.value).replace("/no/such/secret.json", "")


def test_the_emulator_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulator asks nobody who he is; an option is stronger."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:4443/")
    found = parse_options({})
    assert (found.endpoint, found.auth.kind) == ("http://127.0.0.1:4443", "anonymous")
    assert parse_options({"endpoint_url": "http://127.0.0.1:1"}).endpoint == "http://127.0.0.1:1"
    assert parse_options({"token": "ya29.x"}).auth.kind == "bearer"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "default")
    assert parse_options({}).endpoint is None


def test_credentials_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What obstore cannot read goes to gcsfs with a reason, wherever it stands."""
    path = tmp_path / "key.json"
    path.write_text(json.dumps({"type": "external_account", "client_secret": "very-secret"}))
    parsed = parse_options({"token": str(path)}).auth
    assert (parsed.kind, parsed.type, parsed.secrets()) == ("key", "external_account", ("very-secret",))
    assert "very-secret" not in repr(parsed)
    assert "external_account" in str(GcsDownloader.probe_driver({"token": path}).reason)
    assert GcsDownloader.probe_driver({"token": path}).driver == "fsspec"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    assert GcsDownloader.probe_driver({}).driver == "fsspec"
    assert GcsDownloader.probe_driver({"token": "ya29.x"}).driver == "obstore"


@pytest.fixture
def faults() -> Iterator[FaultServer]:
    with FaultServer() as server:
        for key in ("bench/key.bin", "download/storage/v1/b/bench/o/key.bin"):
            server.put(key, b"0123456789", headers={"x-goog-generation": "1796048657782722"})
        yield server


def _callable() -> dict[str, object]:
    return {"token": "ya29.from-callable"}


WHO: dict[str, tuple[dict[str, object], str | None]] = {
    "token": ({"token": "ya29.from-option"}, "Bearer ya29.from-option"),
    "callable": ({"credentials": _callable}, "Bearer ya29.from-callable"),
    "anonymous": ({"anonymous": True}, None),
}


@pytest.mark.parametrize("driver", ["obstore", "fsspec"])
@pytest.mark.parametrize("who", WHO)
def test_who_asks_is_what_the_option_says(
    faults: FaultServer, driver: str, who: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """M3: on every path, sync and async, range and stat, whatever the environment holds; the payer is named too."""
    (tmp_path / "around.json").write_text(json.dumps({"type": "authorized_user", "refresh_token": "around"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "around.json"))
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "around")
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    options, wanted = WHO[who]
    downloader = GcsDownloader(
        "gs://bench", {"driver": driver, "endpoint_url": faults.url(), "user_project": "payer", **options}
    )
    read: Callable[[], object] = lambda: downloader.download_bytes("key.bin", 2, 3)  # noqa: E731
    assert read() == b"234"
    assert downloader.download_bytes("key.bin") == b"0123456789"

    async def main() -> None:
        assert bytes((await downloader.aread_range("key.bin", 2, 3)).data) == b"234"
        await downloader.aclose()

    run_async(main())
    downloader.close()
    assert len(faults.requests) == 3, "one request a read: no HEAD, no listing"
    for request in faults.requests:
        assert request.headers.get("authorization") == wanted
        payer = request.headers.get("x-goog-user-project") or request.query
        assert "payer" in payer
