"""The bridge passes the suite that third parties get, over file systems that block and that are async (M11)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest
from servers.folder import put_file
from servers.ftp import Ftp
from servers.nginx import Nginx
from servers.sftp import Sftp

from forebay.testing import DownloaderConformance, FaultServer


class MemoryRemote:
    """fsspec's own memory, written to through fsspec."""

    def __init__(self) -> None:
        self.folder = f"/{uuid4().hex}/data"
        self.url = f"fsspec+memory:/{self.folder}"
        self.options: Mapping[str, object] = {}
        self._fs = fsspec.filesystem("memory")
        self._fs.makedirs(self.folder)

    def put(self, key: str, data: bytes) -> None:
        if key.endswith("/"):
            raise ValueError("fsspec's memory drops a slash at the end")
        self._fs.pipe_file(f"{self.folder}/{key}", data)

    def delete(self, key: str) -> None:
        self._fs.rm_file(f"{self.folder}/{key}")


class FolderRemote:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = f"fsspec+file://{folder}"
        self.options: Mapping[str, object] = {}

    def put(self, key: str, data: bytes) -> None:
        put_file(self._folder, key, data)

    def delete(self, key: str) -> None:
        (self._folder / key).unlink()


class HttpRemote:
    def __init__(self, server: FaultServer | Nginx, url: str) -> None:
        self._server = server
        self.url = "fsspec+" + url
        self.options: Mapping[str, object] = {}

    def put(self, key: str, data: bytes) -> None:
        if not isinstance(self._server, FaultServer) and ("//" in key or key.endswith("/")):
            raise ValueError("a file system has no such name")
        self._server.put(key, data)

    def delete(self, key: str) -> None:
        self._server.delete(key)


class FtpRemote:
    secrets = (Ftp.PASSWORD,)

    def __init__(self, server: Ftp) -> None:
        self.url = f"fsspec+{server.url}"
        self.options: Mapping[str, object] = {"encoding": "utf-8"}
        self.put, self.delete = server.put, server.delete


class SftpRemote:
    secrets = (Sftp.PASSWORD,)

    def __init__(self, server: Sftp) -> None:
        self.url = f"fsspec+{server.url}"
        self.options: Mapping[str, object] = {}
        self.put, self.delete = server.put, server.delete

    def object_url(self, key: str) -> str:
        return f"{self.url}/{key}"


class TestMemory(DownloaderConformance):
    @pytest.fixture
    def remote(self) -> MemoryRemote:
        return MemoryRemote()


class TestLocalFiles(DownloaderConformance):
    @pytest.fixture
    def remote(self, tmp_path: Path) -> FolderRemote:
        (tmp_path / "data").mkdir()
        return FolderRemote(tmp_path / "data")


class TestHttpOnOurServer(DownloaderConformance):
    @pytest.fixture
    def remote(self) -> Iterator[HttpRemote]:
        with FaultServer(writable=True) as server:
            yield HttpRemote(server, server.url())


class TestHttpOnNginx(DownloaderConformance):
    @pytest.fixture
    def remote(self, nginx: Nginx) -> HttpRemote:
        return HttpRemote(nginx, nginx.url(section="dav"))


class TestFtp(DownloaderConformance):
    @pytest.fixture
    def remote(self, ftp: Ftp) -> FtpRemote:
        return FtpRemote(ftp)


class TestSftp(DownloaderConformance):
    @pytest.fixture
    def remote(self, sftp: Sftp) -> SftpRemote:
        return SftpRemote(sftp)
