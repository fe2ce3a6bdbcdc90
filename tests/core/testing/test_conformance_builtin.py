"""The built-in backends pass the suite that third parties get (M11: one contract for all)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import pytest

from forebay._backends.memory import STORE
from forebay._url import join_url
from forebay.testing import DownloaderConformance, memory_put


class FolderRemote:
    """A folder, written with plain ``open``: paths are joined as text, so that the kernel judges a key, not pathlib."""

    options: Mapping[str, object] = {}

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder

    def put(self, key: str, data: bytes) -> None:
        path = f"{self._folder}/{key}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)

    def delete(self, key: str) -> None:
        os.unlink(f"{self._folder}/{key}")

    def object_url(self, key: str) -> str:
        return join_url(self.url, key)


class TestBarePath(DownloaderConformance):
    @pytest.fixture
    def remote(self, tmp_path: Path) -> FolderRemote:
        root = tmp_path / "root with % and # and ?"
        root.mkdir()
        return FolderRemote(str(root), root)


class TestFileURL(DownloaderConformance):
    @pytest.fixture
    def remote(self, tmp_path: Path) -> FolderRemote:
        root = tmp_path / "root with % and # and ?"
        root.mkdir()
        return FolderRemote("file://" + quote(str(root)), root)


class MemoryRemote:
    options: Mapping[str, object] = {}
    url = "memory://conformance/root"

    def put(self, key: str, data: bytes) -> None:
        memory_put(f"{self.url}/{key}", data)

    def delete(self, key: str) -> None:
        STORE.delete(f"{self.url}/{key}")

    def object_url(self, key: str) -> str:
        return f"{self.url}/{key}"


class TestMemory(DownloaderConformance):
    @pytest.fixture
    def remote(self) -> Iterator[MemoryRemote]:
        yield MemoryRemote()
        assert STORE.names("conformance/") == [], "the suite cleans up what it stored"
