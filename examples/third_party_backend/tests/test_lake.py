"""Forebay's conformance suite over the lake, and a dataset that streams from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from forebay_lake.server import LakeServer, lake_server

import forebay
from forebay.testing import DownloaderConformance

TOKEN = "a-secret-token"


class LakeRemote:
    def __init__(self, server: LakeServer) -> None:
        self.server = server
        self.url = f"lake://127.0.0.1:{server.server_port}/fish"
        self.options = {"token": TOKEN}

    def put(self, key: str, data: bytes) -> None:
        self.server.objects["fish", key] = data

    def delete(self, key: str) -> None:
        del self.server.objects["fish", key]

    def object_url(self, key: str) -> str:
        return f"{self.url}/{key}"


@pytest.fixture
def server() -> Iterator[LakeServer]:
    with lake_server(TOKEN) as running:
        yield running


class TestLake(DownloaderConformance):
    @pytest.fixture
    def remote(self, server: LakeServer) -> LakeRemote:
        return LakeRemote(server)


@pytest.fixture
def dataset(server: LakeServer, tmp_path: Path) -> LakeRemote:
    remote = LakeRemote(server)
    forebay.pack(({"n": n, "square": n * n} for n in range(1000)), str(tmp_path / "fish"), chunk_bytes="2KiB")
    for path in (tmp_path / "fish").iterdir():
        remote.put(path.name, path.read_bytes())
    return remote


def test_dataset_streams_although_the_lake_stumbles(dataset: LakeRemote, tmp_path: Path) -> None:
    dataset.server.failures = 2
    with forebay.open_dataset(dataset.url, cache_dir=str(tmp_path / "cache"), options=dataset.options) as items:
        assert [item["square"] for item in items] == [n * n for n in range(1000)]
    assert dataset.server.failures == 0, "two answers were 503, and somebody asked again"


def test_wrong_token_is_said(dataset: LakeRemote, tmp_path: Path) -> None:
    with pytest.raises(forebay.exceptions.AccessDeniedError):
        forebay.open_dataset(dataset.url, cache_dir=str(tmp_path / "cache"), options={"token": "wrong"})
