"""gcs and azure used in the parent, then in a child of every start method: bytes, or an error at once (J)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.testing import FaultServer

pytestmark = pytest.mark.slow

#: What a child's first request has to fail, from its start; measured in the child, so that no process's start counts.
LIMIT = 2.0
SCRIPT = """
import asyncio, json, multiprocessing, sys, time
import forebay

def native(one):
    async def main():
        data = bytes((await one.aread_range("key.bin", 2, 4)).data)
        await one.aclose()
        return data
    return asyncio.run(main())

def report(one, out):
    for how in (lambda: bytes(one.download_bytes("key.bin", 2, 4)), lambda: native(one)):
        start = time.monotonic()
        try:
            said = how().decode()
        except Exception as exc:
            said = f"{type(exc).__name__}: {exc}"
        out.send((said, time.monotonic() - start))
    one.close()

if __name__ == "__main__":
    url, options, method = json.loads(sys.argv[1])
    one = forebay.open_downloader(url, options=options)
    assert one.download_bytes("key.bin", 2, 4) == b"2345"
    context = multiprocessing.get_context(method)
    answers, out = context.Pipe(duplex=False)
    process = context.Process(target=report, args=(one, out))
    process.start()
    out.close()
    told = [answers.recv() if answers.poll(20) else ("hangs", 20.0) for _ in range(2)]
    process.join(10)
    code = process.exitcode
    process.kill()
    assert native(one) == b"2345"
    one.close()
    print(json.dumps([told, code]))
"""


@pytest.fixture
def faults() -> Iterator[FaultServer]:
    with FaultServer() as server:
        for key in ("bench/key.bin", "download/storage/v1/b/bench/o/key.bin", "devstoreaccount1/bench/key.bin"):
            server.put(key, b"0123456789")
        yield server


@pytest.mark.parametrize(
    ("driver", "method"),
    [(driver, method) for driver in ("obstore", "fsspec") for method in ("fork", "forkserver", "spawn")]
    + [(None, "fork")],
)
@pytest.mark.parametrize("cloud", ["gcs", "azure"])
def test_every_start_method(faults: FaultServer, tmp_path: Path, cloud: str, driver: str | None, method: str) -> None:
    url, who = {
        "gcs": ("gs://bench", {"token": "ya29.example-token"}),
        "azure": ("az://bench", {"account_name": "devstoreaccount1", "account_key": "c2VjcmV0LWtleQ=="}),
    }[cloud]
    options = {"endpoint_url": faults.url(), "timeout": 5.0, **who, **({"driver": driver} if driver else {})}
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), json.dumps([url, options, method])],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told, code = json.loads(done.stdout)
    assert code == 0, done.stderr
    for said, seconds in told:
        if driver == "obstore" and method == "fork":
            assert said.startswith("ForkedRuntimeError"), said
            assert "forkserver" in said, "the error names the remedy"
            assert seconds < LIMIT, said
        else:
            assert said == "2345"
