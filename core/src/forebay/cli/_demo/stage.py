"""Where the demo takes place: a temporary directory and the server that outlives nobody."""

from __future__ import annotations

import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forebay.exceptions import ForebayError

__all__ = ["Stage", "stage"]

_START_DEADLINE = 15.0
_END_DEADLINE = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The places of one demo."""

    data: Path
    cache: Path
    url: str


@contextmanager
def stage(*, needed_bytes: int, latency: float) -> Iterator[Stage]:
    """Make the directories, serve ``data`` over HTTP, and leave nothing behind.

    The server runs before anything large is written: if this process is killed, the server sees its standard input end
    and removes the directory.
    """
    root = Path(tempfile.mkdtemp(prefix="forebay-demo-"))
    server: subprocess.Popen[bytes] | None = None
    try:
        free = shutil.disk_usage(root).free
        if free < needed_bytes:
            raise ForebayError(
                f"the demo needs {needed_bytes >> 20} MiB in {root.parent} and {free >> 20} MiB are free: "
                "give it a smaller --size, or another place with TMPDIR"
            )
        (root / "data").mkdir()
        server = _start(root, latency)
        yield Stage(data=root / "data", cache=root / "cache", url=f"http://127.0.0.1:{_port(server)}")
    finally:
        shutil.rmtree(root, ignore_errors=True)
        if server is not None:
            _end(server)


def _start(root: Path, latency: float) -> subprocess.Popen[bytes]:
    script = Path(__file__).with_name("server.py")
    return subprocess.Popen(
        [sys.executable, "-I", str(script), str(root / "data"), str(root), str(latency)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Ctrl-C goes to the whole foreground group; the server has to stay until its clients have let go.
        start_new_session=True,
    )


def _port(server: subprocess.Popen[bytes]) -> int:
    assert server.stdout is not None
    ready, _, _ = select.select([server.stdout], [], [], _START_DEADLINE)
    line = server.stdout.readline() if ready else b""
    if not line.strip().isdigit():
        raise ForebayError(f"the demo's server did not start (exit code {server.poll()})")
    return int(line)


def _end(server: subprocess.Popen[bytes]) -> None:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.close()
    try:
        server.wait(_END_DEADLINE)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    server.stdout.close()
