"""An FTP server on a free port: a protocol that blocks, with one connection a client, for the bridge to fsspec."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from servers.process import ServerProcess, free_port
from servers.require import unavailable
from servers.store import ServerContext

__all__ = ["Ftp"]


class Ftp(ServerContext):
    """A context manager. ``put`` and ``delete`` work on the files themselves."""

    USER, PASSWORD = "reader", "open-sesame"

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.folder = directory / "ftp"
        self._log = directory / "ftp.out"
        self.port = 0

    @property
    def url(self) -> str:
        """The root, with user and password."""
        return f"ftp://{self.USER}:{self.PASSWORD}@127.0.0.1:{self.port}"

    def put(self, key: str, data: bytes) -> None:
        """Make or replace a file, whole."""
        if "//" in key or key.endswith("/"):
            raise ValueError("a file system has no such name")
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def delete(self, key: str) -> None:
        """Remove a file."""
        (self.folder / key).unlink()

    def start(self) -> None:
        """Start it over an empty folder."""
        if find_spec("pyftpdlib") is None:
            unavailable("ftp", "no pyftpdlib in this environment")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        command = [sys.executable, "-W", "ignore", "-m", "pyftpdlib", "-i", "127.0.0.1", "-p", str(self.port)]
        login = ["-u", self.USER, "-P", self.PASSWORD, "-w", "-d", str(self.folder)]
        self.own(ServerProcess([*command, *login], self.port, self._log))
