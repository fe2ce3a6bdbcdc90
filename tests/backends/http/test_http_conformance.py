"""Both drivers pass the suite that third parties get, on servers of different minds (M11: one contract for all)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from servers.caddy import Caddy
from servers.nginx import Nginx

from forebay._url import join_url
from forebay.testing import DownloaderConformance, FaultServer


class ServerRemote:
    """A section of a server, with the driver under test."""

    def __init__(self, server: FaultServer | Nginx | Caddy, url: str, **options: object) -> None:
        self._server = server
        self.url = url
        self.options: Mapping[str, object] = options

    def put(self, key: str, data: bytes) -> None:
        if not isinstance(self._server, FaultServer) and ("//" in key or key.endswith("/")):
            raise ValueError("a file system has no such name")
        self._server.put(key, data)

    def delete(self, key: str) -> None:
        self._server.delete(key)

    def object_url(self, key: str) -> str:
        return join_url(self.url, key)


class QueryRemote(ServerRemote):
    secrets = ("0123456789secret",)


@pytest.fixture(scope="module")
def caddy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caddy]:
    directory: Path = tmp_path_factory.mktemp("caddy")
    with Caddy(directory) as server:
        yield server


NO_UPLOADS = {"test_async_upload_can_be_read": "caddy's file server takes no PUT"}


class TestObstoreOnNginx(DownloaderConformance):
    @pytest.fixture
    def remote(self, nginx: Nginx) -> ServerRemote:
        return ServerRemote(nginx, nginx.url(section="dav"), driver="obstore")


class TestAiohttpOnNginx(DownloaderConformance):
    @pytest.fixture
    def remote(self, nginx: Nginx) -> ServerRemote:
        return ServerRemote(nginx, nginx.url(section="dav"), driver="fsspec")


class TestObstoreOnCaddy(DownloaderConformance):
    known_gaps = NO_UPLOADS

    @pytest.fixture
    def remote(self, caddy: Caddy) -> ServerRemote:
        return ServerRemote(caddy, caddy.url(), driver="obstore")


class TestAiohttpOnCaddy(DownloaderConformance):
    known_gaps = NO_UPLOADS

    @pytest.fixture
    def remote(self, caddy: Caddy) -> ServerRemote:
        return ServerRemote(caddy, caddy.url(), driver="fsspec")


class TestObstoreOnOurServer(DownloaderConformance):
    @pytest.fixture
    def remote(self) -> Iterator[ServerRemote]:
        with FaultServer(writable=True) as server:
            yield ServerRemote(server, server.url(), driver="obstore")


class TestAiohttpOnOurServer(DownloaderConformance):
    @pytest.fixture
    def remote(self) -> Iterator[ServerRemote]:
        with FaultServer(writable=True) as server:
            yield ServerRemote(server, server.url(), driver="fsspec")


class TestPresigned(DownloaderConformance):
    """The query goes with every key, and is shown nowhere."""

    @pytest.fixture
    def remote(self) -> Iterator[QueryRemote]:
        query = "X-Amz-Signature=0123456789secret"
        with FaultServer(writable=True, require_query=query) as server:
            yield QueryRemote(server, f"{server.url()}?{query}")


class TestBasicAuthentication(DownloaderConformance):
    @pytest.fixture
    def remote(self) -> Iterator[ServerRemote]:
        with FaultServer(writable=True, username="reader", password="open sesame") as server:
            yield ServerRemote(server, server.url(), username="reader", password="open sesame")
