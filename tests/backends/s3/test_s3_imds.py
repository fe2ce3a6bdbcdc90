"""The machine's own identity: its metadata service is asked once a process, with patience where it is busy (L7)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.imds import Imds

import forebay
from forebay.exceptions import AuthenticationError, StorageError, ThrottledError
from forebay.testing import FaultServer

PROCESSES, THREADS, OBJECTS = 2, 4, 12
SCRIPT = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
import forebay

def read(number):
    path = forebay.fetch(f"s3://bucket/{number}.bin", cache_dir=cache, options=options)
    try:
        return path.read_bytes() == str(number).encode()
    finally:
        forebay.release(path)

cache, options, objects, threads = json.loads(sys.argv[1])
with ThreadPoolExecutor(threads) as pool:
    assert all(pool.map(read, range(objects)))
one = forebay.open_downloader("s3://bucket", options=options)
assert one.download_bytes("0.bin") == b"0"
one.close()
"""


@pytest.fixture
def imds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Imds]:
    with Imds() as service:
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.endpoint)
        yield service


@pytest.fixture
def store(faults: FaultServer) -> FaultServer:
    for number in range(OBJECTS):
        faults.put(f"bucket/{number}.bin", str(number).encode())
    return faults


def test_processes_ask_once_each(store: FaultServer, imds: Imds, driver: str, tmp_path: Path) -> None:
    """Risk L7: not once a request, thread, object or downloader; by the second version of the service alone."""
    options = {"endpoint_url": store.url(), "driver": driver}
    running = []
    for number in range(PROCESSES):
        told = json.dumps([str(tmp_path / f"cache{number}"), options, OBJECTS, THREADS])
        running.append(subprocess.Popen([sys.executable, "-c", SCRIPT, told], stderr=subprocess.PIPE, text=True))
    for process in running:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert imds.hits == dict.fromkeys(("token", "role", "keys"), PROCESSES)
    for request in store.requests:
        assert f"Credential={Imds.KEY}/" in request.headers["authorization"]
        assert request.headers["x-amz-security-token"] == Imds.SESSION


def test_a_busy_service_is_asked_again_after_pauses(
    store: FaultServer, imds: Imds, driver: str, tmp_path: Path
) -> None:
    """Risk L7, N10: its 503 passes."""
    imds.busy = 2
    path = forebay.fetch(
        "s3://bucket/0.bin", cache_dir=tmp_path, options={"endpoint_url": store.url(), "driver": driver}
    )
    assert path.read_bytes() == b"0"
    forebay.release(path)
    assert imds.hits["refused"] == 2
    assert imds.hits["keys"] == 1, imds.hits


def test_a_service_that_stays_busy_is_an_error_that_says_so(
    store: FaultServer, imds: Imds, driver: str, tmp_path: Path
) -> None:
    imds.busy = 10**6
    given = {"endpoint_url": store.url(), "driver": driver, "max_attempts": 3}
    with pytest.raises(StorageError) as caught:
        forebay.fetch("s3://bucket/0.bin", cache_dir=tmp_path, options=given)
    assert isinstance(caught.value, ThrottledError)
    assert "metadata service" in str(caught.value), "it is not the bucket that is busy"
    assert "0.bin" in str(caught.value)
    assert (imds.hits["refused"], caught.value.attempts) == (3, 3)
    assert store.requests == []


@pytest.mark.parametrize("role", ["none", "no keys", "no service"])
def test_a_machine_without_an_identity_says_so_at_once(
    store: FaultServer,
    imds: Imds,
    driver: str,
    role: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Risk L4, L6: what nobody offers is not waited for, nothing is sent unsigned, and the error says it all."""
    imds.role = "" if role == "none" else imds.role
    imds.fails = role == "no keys"
    if role == "no service":
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(AuthenticationError, match="there are no credentials") as caught:
        forebay.fetch("s3://bucket/0.bin", cache_dir=tmp_path, options={"endpoint_url": store.url(), "driver": driver})
    assert caught.value.attempts == 1
    assert store.requests == []
    for word in ("0.bin", "s3 backend", "access_key_id", "anonymous", "forebay doctor"):
        assert word in str(caught.value)
    assert not [one for one in caplog.records if one.levelname == "WARNING"], "no word of a refresh: there was none"


def test_a_service_of_the_first_version_is_asked_without_a_token(
    store: FaultServer, imds: Imds, driver: str, tmp_path: Path
) -> None:
    """Risk L7: and its answers are as good."""
    imds.version = 1
    path = forebay.fetch(
        "s3://bucket/0.bin", cache_dir=tmp_path, options={"endpoint_url": store.url(), "driver": driver}
    )
    assert path.read_bytes() == b"0"
    forebay.release(path)
    assert imds.hits == {"refused": 1, "role": 1, "keys": 1}
