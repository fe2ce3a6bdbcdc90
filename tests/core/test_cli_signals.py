"""Ctrl-C and kill: the command ends at once and leaves nothing behind (B8, D7, J11)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import forebay
from forebay.testing import Fault, FaultServer

#: Long enough for a loaded machine, far below any network timeout.
AT_ONCE = 25.0


def wait_until(what: Callable[[], bool], deadline: float = 90.0) -> None:
    """Poll with a deadline: what other processes do to the disk sends no event."""
    end = time.monotonic() + deadline
    pause = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    try:
        while not what():
            assert time.monotonic() < end, "it did not happen in time"
            try:
                pause.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
    finally:
        pause.kill()
        pause.communicate()


def start(*arguments: str, tmp: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "forebay", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(tmp), "NO_PROXY": "*", "FOREBAY_CACHE_DIR": str(tmp / "default-cache")},
    )


def interrupt(process: subprocess.Popen[str]) -> None:
    """What Ctrl-C does: the signal goes to the whole foreground group."""
    os.killpg(process.pid, signal.SIGINT)


def end_of(process: subprocess.Popen[str]) -> tuple[int, str, float]:
    """Exit code, stderr, and the seconds that it took."""
    begin = time.monotonic()
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors, time.monotonic() - begin


EARLY = """
import os, signal, sys
moment, sys.argv[1:] = sys.argv[1], ["plugins"]
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from forebay.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("moment", ["click", "forebay.cli._app", "forebay.cli._run", "forebay._config"])
def test_interrupted_while_it_is_imported_there_is_no_traceback(moment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY, moment], capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("key", ["stalled.bin", "silent.bin"])
def test_interrupted_fetch_ends_at_once_without_debris(server: FaultServer, tmp_path: Path, key: str) -> None:
    server.put(key, b"x" * (1 << 20))
    server.script(key, Fault(hang=True, after=1000 if key == "stalled.bin" else None), times=None)
    cache = tmp_path / "cache"
    process = start("fetch", server.url(key), "-o", str(tmp_path / "out"), "--cache-dir", str(cache), tmp=tmp_path)
    server.wait_for_requests(1, key=key, timeout=90)
    interrupt(process)
    code, errors, seconds = end_of(process)
    assert (code, errors) == (130, "interrupted\n")
    assert seconds < AT_ONCE
    assert not [path for path in (cache / "chunks").rglob("*") if path.is_file()]
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    observer = forebay.ChunkCache(cache)
    assert (observer.info().leases, observer.info().bytes) == (0, 0)
    observer.close()


def test_terminated_fetch_cleans_up_too(server: FaultServer, tmp_path: Path) -> None:
    server.put("x", b"x" * (1 << 20))
    server.script("x", Fault(hang=True, after=1000), times=None)
    process = start("fetch", server.url("x"), "--cache-dir", str(tmp_path / "cache"), tmp=tmp_path)
    server.wait_for_requests(1, key="x", timeout=90)
    process.terminate()
    code, errors, seconds = end_of(process)
    assert (code, errors) == (143, "")
    assert seconds < AT_ONCE
    assert not [path for path in (tmp_path / "cache" / "chunks").rglob("*") if path.is_file()]


def test_interrupted_ls_ends_at_once(server: FaultServer, tmp_path: Path) -> None:
    """The blocking call of a native driver does not look at signals; ls must not wait for its timeout."""
    server.script(None, Fault(hang=True), times=None, methods=("GET", "HEAD", "PROPFIND", "OPTIONS"))
    process = start("ls", server.url("data"), tmp=tmp_path)
    server.wait_for_requests(1, timeout=90)
    interrupt(process)
    code, errors, seconds = end_of(process)
    assert (code, errors) == (130, "interrupted\n")
    assert seconds < AT_ONCE
    assert not list(tmp_path.glob("forebay-*"))


def demo_under_way(tmp_path: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A demo that streams, slowly enough to be met in the middle, and its server."""
    process = start("demo", "--size", "64MiB", "--latency", "1", tmp=tmp_path)

    def streams() -> bool:
        if process.poll() is not None:
            pytest.fail(f"the demo ended early: {process.communicate()}")
        return any(path.is_dir() for path in tmp_path.glob("forebay-demo-*/cache/chunks"))

    wait_until(streams)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children, "the server is a process of its own"
    return process, children


def gone(processes: list[psutil.Process]) -> bool:
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


def test_interrupted_demo_leaves_no_server_and_no_files(tmp_path: Path) -> None:
    process, children = demo_under_way(tmp_path)
    interrupt(process)
    code, errors, seconds = end_of(process)
    assert (code, errors) == (130, "interrupted\n")
    assert seconds < AT_ONCE
    assert gone(children)
    assert not list(tmp_path.iterdir())


def test_killed_demo_leaves_no_server_and_no_files(tmp_path: Path) -> None:
    """kill -9 runs no clean-up of ours; the server sees its parent go and does it."""
    process, children = demo_under_way(tmp_path)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    process.communicate()
    wait_until(lambda: gone(children))
    assert not list(tmp_path.iterdir())
