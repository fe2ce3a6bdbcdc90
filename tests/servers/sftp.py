"""An SFTP server on a free port, over a folder: a protocol that blocks and has no etags, for the bridge to fsspec."""

from __future__ import annotations

import os
import socket
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # this file is also the server's process
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from servers.folder import FolderServer
from servers.require import unavailable

__all__ = ["Sftp"]


class Sftp(FolderServer):
    """paramiko's, in a process of its own."""

    SCHEME = "sftp"

    def start(self) -> None:
        """Start it over an empty folder."""
        if find_spec("paramiko") is None:
            unavailable("sftp", "no paramiko in this environment")
        command = [sys.executable, "-W", "ignore", __file__]
        login = [str(self.folder), self.USER, self.PASSWORD]
        self.port = self.own_on_free_port(lambda port: [*command, str(port), *login], self.log)


def _serve(port: int, folder: Path, user: str, password: str) -> None:
    """Answer every connection in threads of its own, until the process is ended."""
    import paramiko

    class Login(paramiko.ServerInterface):  # type: ignore[misc] # paramiko ships no types
        def check_auth_password(self, username: str, given: str) -> Any:
            known = (username, given) == (user, password)
            return paramiko.AUTH_SUCCESSFUL if known else paramiko.AUTH_FAILED

        def check_channel_request(self, kind: str, number: int) -> Any:
            return paramiko.OPEN_SUCCEEDED

        def get_allowed_auths(self, username: str) -> Any:
            return "password"

    class Files(paramiko.SFTPServerInterface):  # type: ignore[misc]
        def _real(self, path: str) -> Any:
            return str(folder) + self.canonicalize(path)

        def _told(self, answer: Any) -> Any:
            try:
                said = answer()
            except OSError as exc:
                return paramiko.SFTPServer.convert_errno(exc.errno or 0)
            return paramiko.SFTP_OK if said is None else said

        def list_folder(self, path: str) -> Any:
            def entries() -> list[Any]:
                found = []
                for one in os.scandir(self._real(path)):
                    found.append(paramiko.SFTPAttributes.from_stat(one.stat(), one.name))
                return found

            return self._told(entries)

        def stat(self, path: str) -> Any:
            return self._told(lambda: paramiko.SFTPAttributes.from_stat(os.stat(self._real(path))))

        lstat = stat

        def open(self, path: str, flags: int, attr: Any) -> Any:
            def handle() -> Any:
                mode = "r+b" if flags & (os.O_WRONLY | os.O_RDWR) else "rb"
                file = os.fdopen(os.open(self._real(path), flags, 0o644), mode)
                opened = paramiko.SFTPHandle(flags)
                opened.readfile = opened.writefile = file
                return opened

            return self._told(handle)

        def remove(self, path: str) -> Any:
            return self._told(lambda: os.unlink(self._real(path)))

        def rename(self, old: str, new: str) -> Any:
            return self._told(lambda: os.rename(self._real(old), self._real(new)))

        posix_rename = rename

        def mkdir(self, path: str, attr: Any) -> Any:
            return self._told(lambda: os.mkdir(self._real(path)))

    key = paramiko.ECDSAKey.generate()
    with socket.create_server(("127.0.0.1", port), backlog=64) as listener:
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_greet, args=(paramiko, client, key, Login(), Files), daemon=True).start()


def _greet(paramiko: Any, client: socket.socket, key: Any, login: Any, files: Any) -> None:
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # small answers would wait 40 ms for company
    transport = paramiko.Transport(client)
    transport.add_server_key(key)
    transport.set_subsystem_handler("sftp", paramiko.SFTPServer, files)
    try:
        transport.start_server(server=login)
    except (paramiko.SSHException, EOFError, OSError):  # a look at the port, no client
        transport.close()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4])
