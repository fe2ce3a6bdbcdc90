"""Each start method, with the backend used in the parent first or not, each driver: items, or an error at once (J)."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from forebay.testing import FaultServer

pytestmark = pytest.mark.slow

KEYS = {"access_key_id": "AKIAEXAMPLEKEY", "secret_access_key": "wJalrXUtnFEMI-example-secret"}
#: What a child's first request has to fail, from its start; measured in the child, so that no process's start counts.
LIMIT = 2.0
PRELUDE = """
import asyncio, json, multiprocessing, os, sys, time
from forebay_s3 import S3Downloader

def sync(one):
    return bytes(one.download_bytes("key.bin", 2, 4))

def native(one):
    async def main():
        data = bytes((await one.aread_range("key.bin", 2, 4)).data)
        await one.aclose()
        return data
    return asyncio.run(main())

def report(how, one, out):
    start = time.monotonic()
    try:
        said = how(one).decode()
    except Exception as exc:
        said = f"{type(exc).__name__}: {exc}"
    out.send((said, time.monotonic() - start))

def child(method, how, one):
    context = multiprocessing.get_context(method)
    answers, out = context.Pipe(duplex=False)
    process = context.Process(target=report, args=(how, one, out))
    process.start()
    out.close()
    said, seconds = answers.recv() if answers.poll(20) else ("hangs", 20.0)
    process.join(5)
    process.kill()
    print(json.dumps({"said": said, "seconds": seconds, "code": process.exitcode}))

if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    one = S3Downloader("s3://bucket", options)
"""


def run(body: str, faults: FaultServer, folder: Path, **options: object) -> list[dict[str, object]]:
    """Run ``body`` as a script, which children of every start method can import again."""
    faults.put("bucket/key.bin", b"0123456789")
    script = folder / "script.py"
    script.write_text(PRELUDE + textwrap.indent(textwrap.dedent(body), "    "))
    given = {"endpoint_url": faults.url(), "timeout": 5.0, **KEYS, **options}
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(given)], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def check(reports: list[dict[str, object]], *, refused: bool = False) -> None:
    assert reports
    for report in reports:
        assert isinstance(report["seconds"], float)
        if refused:
            assert str(report["said"]).startswith("ForkedRuntimeError"), report
            assert "forkserver" in str(report["said"]), "the error names the remedy"
            assert report["seconds"] < LIMIT
        else:
            assert report["said"] == "2345", report
        assert report["code"] == 0, report


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
def test_every_start_method_with_each_driver(
    faults: FaultServer, tmp_path: Path, driver: str, method: str, used: bool
) -> None:
    """J1, J2, J3, J5, J9."""
    body = f"""
    {"print(sync(one))" if used else ""}
    child({method!r}, sync, one)
    child({method!r}, native, one)
    {"print(native(one))" if used else ""}
    one.close()
    """
    reports = run(body, faults, tmp_path, driver=driver)
    assert len(reports) == 2
    check(reports, refused=driver == "obstore" and method == "fork" and used)


def test_child_takes_the_other_driver_where_nobody_asked_for_one(faults: FaultServer, tmp_path: Path) -> None:
    body = """
    sync(one)
    child("fork", sync, one)
    child("fork", native, one)
    one.close()
    """
    check(run(body, faults, tmp_path))


def test_runtime_of_the_users_own_counts(faults: FaultServer, tmp_path: Path) -> None:
    """The user has used obstore in the parent, this backend nobody."""
    body = """
    import obstore
    store = obstore.store.HTTPStore(options["endpoint_url"], client_options={"allow_http": True})
    obstore.get(store, "bucket/key.bin").bytes()
    child("fork", sync, one)
    child("fork", native, one)
    """
    check(run(body, faults, tmp_path, driver="obstore"), refused=True)
    check(run(body, faults, tmp_path))


def test_runtime_that_nobody_could_see_has_two_seconds(faults: FaultServer, tmp_path: Path) -> None:
    """The watchdog: nothing saw the runtime before the fork, as where this backend is first imported in the child."""
    body = """
    import obstore
    from forebay_drivers import fork
    store = obstore.store.HTTPStore(options["endpoint_url"], client_options={"allow_http": True})
    obstore.get(store, "bucket/key.bin").bytes()
    fork._runtime_threads = lambda: False
    child("fork", sync, one)
    child("fork", native, one)
    """
    check(run(body, faults, tmp_path, driver="obstore"), refused=True)
