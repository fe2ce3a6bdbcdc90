"""An FTP server on a free port: a protocol that blocks, with one connection a client, for the bridge to fsspec."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from servers.folder import FolderServer
from servers.require import unavailable

__all__ = ["Ftp"]


class Ftp(FolderServer):
    """pyftpdlib's."""

    SCHEME = "ftp"

    def start(self) -> None:
        """Start it over an empty folder."""
        if find_spec("pyftpdlib") is None:
            unavailable("ftp", "no pyftpdlib in this environment")
        command = [sys.executable, "-W", "ignore", "-m", "pyftpdlib", "-i", "127.0.0.1"]
        command += ["-u", self.USER, "-P", self.PASSWORD, "-w", "-d", str(self.folder), "-p"]
        self.port = self.own_on_free_port(lambda port: [*command, str(port)], self.log)
