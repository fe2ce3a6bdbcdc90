"""Instances of file systems: one a loop, renewed without breaking what is under way, never left open (J1, J7, L1)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from servers.ftp import Ftp

import forebay
from forebay.exceptions import StorageError, TransientError
from forebay.testing import Fault, FaultServer, Gate, run_async
from forebay_drivers.errors import Subject
from forebay_drivers.fsspec import BlockingDriver, HttpDialect, NativeDriver

DATA = bytes(range(200))


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        running.put("key.bin", DATA)
        yield running


class Counted:
    """A driver over fsspec's http file system, and the file systems that it made."""

    def __init__(self, server: FaultServer) -> None:
        self.made: list[Any] = []
        self.driver = NativeDriver(self._make, self._subject, prefix=server.url() + "/", dialect=HttpDialect())

    def _make(self) -> Any:
        fs = fsspec.get_filesystem_class("http")(encoded=True, asynchronous=True, skip_instance_cache=True)
        self.made.append(fs)
        return fs

    @staticmethod
    def _subject(key: str) -> Subject:
        return Subject(key, "fsspec", "test", lambda name: f"http://place/{name}")

    @property
    def open_sessions(self) -> int:
        return sum(fs._session is not None and not fs._session.closed for fs in self.made)


@pytest.fixture
def counted(server: FaultServer) -> Iterator[Counted]:
    one = Counted(server)
    yield one
    one.driver.close()
    assert one.open_sessions == 0


def test_requests_of_one_loop_share_a_session(counted: Counted) -> None:
    async def main() -> None:
        reads = (counted.driver.aread("key.bin", n, 2, None) for n in range(20))
        got = await asyncio.gather(*reads)
        assert [bytes(read.data) for read in got] == [DATA[n : n + 2] for n in range(20)]
        assert (len(counted.made), counted.open_sessions) == (1, 1)
        await counted.driver.aclose()
        assert counted.open_sessions == 0

    run_async(main())
    run_async(main_again(counted))


async def main_again(counted: Counted) -> None:
    assert bytes((await counted.driver.aread("key.bin", 5, 2, None)).data) == DATA[5:7]
    assert len(counted.made) == 2, "another loop, another session"
    await counted.driver.aclose()


def test_renewal_lets_requests_under_way_end(server: FaultServer, counted: Counted) -> None:
    """L1: new credentials mean a new session; a body that moves keeps the old one until it is whole."""
    gate = Gate()
    server.script("key.bin", Fault(gate=gate), times=1, methods=("GET",))

    async def main() -> None:
        slow = asyncio.create_task(counted.driver.aread("key.bin", 3, 4, None))
        await asyncio.to_thread(server.wait_for_requests, 2, key="key.bin")  # a question, then the gated body
        counted.driver.renew()
        assert bytes((await counted.driver.aread("key.bin", 0, 3, None)).data) == DATA[:3]
        assert (len(counted.made), counted.open_sessions) == (2, 2)
        gate.open()
        assert bytes((await slow).data) == DATA[3:7]
        assert counted.open_sessions == 1, "the old session ends with its last request"
        await counted.driver.aclose()

    run_async(main())


def test_connections_that_broke_while_idle_cost_one_try(ftp: Ftp, tmp_path: Path) -> None:
    """A server that hangs up on idle clients: one failure, and all that lay idle as long are gone with it."""
    ftp.put("idle.bin", DATA)
    url = f"fsspec+{ftp.url}/idle.bin"
    one: Any = forebay.open_downloader(f"fsspec+{ftp.url}", options={"encoding": "utf-8"})
    assert one.download_bytes("idle.bin", 0, 2) == DATA[:2]
    driver = next(iter(one._drivers.values()))
    driver._idle.extend(driver._make() for _ in range(3))
    for fs in driver._idle:
        fs.ftp.sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(TransientError):
        one.download_bytes("idle.bin", 0, 2)
    assert one.download_bytes("idle.bin", 0, 2) == DATA[:2]
    one.close()
    # And the engine tries again by itself.
    local = forebay.fetch(url, cache_dir=tmp_path / "cache")
    assert local.read_bytes() == DATA
    forebay.release(local)


class Late(LocalFileSystem):  # type: ignore[misc] # fsspec ships no types
    """Somebody else makes the folder after the file system has looked; SFTP's word for that is Failure."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        super().makedirs(path, exist_ok=exist_ok)
        raise OSError("Failure")


def test_folder_that_another_upload_makes_at_the_same_time(tmp_path: Path) -> None:
    """Many ranks store into one new folder at once, and none of them fails for that."""
    (tmp_path / "local").write_bytes(DATA)
    driver = BlockingDriver(lambda: Late(skip_instance_cache=True), Counted._subject, prefix=f"{tmp_path}/")
    driver.upload("new/key.bin", tmp_path / "local")
    assert (tmp_path / "new" / "key.bin").read_bytes() == DATA
    with pytest.raises(StorageError, match="the file system failed"):
        driver.upload("local/key.bin", tmp_path / "local")
