"""The machine's own identity in Google's cloud: asked for once, with patience where the service is busy (L7)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import forebay
from forebay.exceptions import AuthenticationError, ThrottledError
from forebay.testing import Fault, FaultServer

TOKEN = "ya29.of-the-machine-0123456789"
ACCOUNT = "computeMetadata/v1/instance/service-accounts/default/"
OBJECTS = 12


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    flavour = {"Metadata-Flavor": "Google"}
    with FaultServer() as server:
        for key, said in (
            (f"{ACCOUNT}token", {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}),
            (ACCOUNT, {"email": "pond@example.org", "scopes": [], "aliases": ["default"]}),
        ):
            server.put(key, json.dumps(said).encode(), headers={**flavour, "Content-Type": "application/json"})
        for key, text in (("", b""), ("computeMetadata/v1/project/project-id", b"pond")):
            server.put(key, text, headers=flavour)
        monkeypatch.delenv("NO_GCE_CHECK")
        for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
            monkeypatch.setenv(name, server.url().removeprefix("http://"))
        yield server


@pytest.fixture
def store() -> Iterator[FaultServer]:
    with FaultServer() as server:
        for number in range(OBJECTS):
            for place in (f"bench/{number}.bin", f"download/storage/v1/b/bench/o/{number}.bin"):
                server.put(place, str(number).encode())
        yield server


@pytest.fixture
def driver() -> str:
    """gcsfs asks through google-auth, which has its own patience and reads these variables when it is imported."""
    return "obstore"


def tokens(metadata: FaultServer) -> int:
    return len(metadata.requests_for(f"{ACCOUNT}token"))


def test_one_token_for_all_threads_and_objects(
    store: FaultServer, metadata: FaultServer, driver: str, tmp_path: Path
) -> None:
    """Risk L7: not one for each request."""
    options = {"endpoint_url": store.url(), "driver": driver}

    def read(number: int) -> bytes:
        path = forebay.fetch(f"gs://bench/{number}.bin", cache_dir=tmp_path, options=options)
        try:
            return path.read_bytes()
        finally:
            forebay.release(path)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(OBJECTS))) == [str(number).encode() for number in range(OBJECTS)]
    assert {one.headers["authorization"] for one in store.requests} == {f"Bearer {TOKEN}"}
    assert tokens(metadata) == 1


def test_a_busy_service_is_asked_again(store: FaultServer, metadata: FaultServer, driver: str, tmp_path: Path) -> None:
    """Risk L7: its 503 passes."""
    metadata.script(f"{ACCOUNT}token", Fault(status=503), times=2)
    options = {"endpoint_url": store.url(), "driver": driver}
    path = forebay.fetch("gs://bench/0.bin", cache_dir=tmp_path, options=options)
    assert path.read_bytes() == b"0"
    forebay.release(path)
    assert tokens(metadata) == 3


def test_a_service_that_stays_busy_is_an_error_that_says_so(
    store: FaultServer, metadata: FaultServer, driver: str, tmp_path: Path
) -> None:
    """Risk L7, U3: it is not the bucket that is busy."""
    metadata.script(None, Fault(status=503), times=None)
    options = {"endpoint_url": store.url(), "driver": driver, "max_attempts": 2}
    with pytest.raises(ThrottledError, match="metadata service") as caught:
        forebay.fetch("gs://bench/0.bin", cache_dir=tmp_path, options=options)
    assert "0.bin" in str(caught.value)
    assert caught.value.attempts == 2
    assert store.requests == []


@pytest.mark.parametrize("status", [403, 404])
def test_a_machine_without_an_account_has_no_credentials(
    store: FaultServer, metadata: FaultServer, driver: str, tmp_path: Path, status: int
) -> None:
    """Risk L4, L11: the service's 404 is no missing object."""
    metadata.script(None, Fault(status=status), times=None)
    with pytest.raises(AuthenticationError, match="no credentials") as caught:
        forebay.fetch("gs://bench/0.bin", cache_dir=tmp_path, options={"endpoint_url": store.url(), "driver": driver})
    assert "token" in str(caught.value)
    assert caught.value.attempts == 1
