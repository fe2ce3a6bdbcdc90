"""A server of somebody else's as a child process on a free port."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["LASTING", "ServerProcess", "free_port", "wait_until"]

#: Servers that a session's fixture owns: they outlive the test that asked for them first.
LASTING: set[int] = set()

_START = 30.0
_STOP = 5.0


def free_port() -> int:
    """A loopback port that nothing listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], *, deadline: float, what: str) -> None:
    """Ask ``condition()`` until it is true; `TimeoutError` past the deadline. For what gives no event: a log file."""
    pause, end = threading.Event(), time.monotonic() + deadline
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not happen within {deadline:g} s")
        pause.wait(0.01)


class ServerProcess:
    """Starts ``command``, waits until ``port`` answers, and ends it again."""

    def __init__(self, command: Sequence[str], port: int, log: Path, env: Mapping[str, str] | None = None) -> None:
        self._log = log
        self.pid = 0
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=None if env is None else dict(env)
            )
        self.pid = self._process.pid
        try:
            wait_until(lambda: self._answers(port), deadline=_START, what=f"the start of {command[0]}")
        except BaseException:
            self.stop()
            raise

    def _answers(self, port: int) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"the server ended at once: {self._log.read_text(errors='replace')[-2000:]}")
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def stop(self) -> None:
        """SIGTERM, then SIGKILL for one that does not listen."""
        self._process.terminate()
        try:
            self._process.wait(_STOP)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
