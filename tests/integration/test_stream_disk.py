"""Disks that are full, or may only be read: what can be given back is, the error is clear, and then all goes on."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.crash_reader import items_of
from servers.disk import fill, mounted

import forebay
from forebay.exceptions import CacheError, CacheFullError
from forebay.testing import FaultServer

PER_CHUNK, SIZE = 4, 60_000
CHUNK_BYTES = PER_CHUNK * (SIZE + 40) + 60


def items(name: str) -> list[dict[str, Any]]:
    return items_of(name, size=SIZE)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultServer]:
    with FaultServer() as running:
        for name, compression in (("plain", None), ("zstd", "zstd")):
            forebay.pack(items(name), tmp_path / name, chunk_bytes=CHUNK_BYTES, compression=compression)
            for file in (tmp_path / name).iterdir():
                running.put(f"{name}/{file.name}", file.read_bytes())
        yield running


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of eight megabytes."""
    with mounted(tmp_path / "disk", "size=8m") as folder:
        yield folder


def test_a_disk_without_room_for_the_ledgers_index_is_full_and_not_broken(disk: Path) -> None:
    """Risk D6: SQLite calls it an I/O error; the remedy is room, not another disk. The crash campaign met that."""
    forebay.ChunkCache(disk / "cache").close()
    fill(disk / "ballast", 0)
    with pytest.raises(CacheFullError, match="free some space"):
        forebay.ChunkCache(disk / "cache").info()
    (disk / "ballast").unlink()
    with forebay.ChunkCache(disk / "cache") as cache:
        assert cache.info().chunks == 0


@pytest.mark.parametrize("prefetch", [0, 4])
@pytest.mark.parametrize("name", ["plain", "zstd"])
def test_a_full_disk_takes_back_what_nobody_reads_and_reading_goes_on(
    server: FaultServer, disk: Path, monkeypatch: pytest.MonkeyPatch, name: str, prefetch: int
) -> None:
    """Risk D6, B16: the budget has room, the disk has not; chunks that were read make it."""
    monkeypatch.setenv("FOREBAY_PREFETCH_MIN", "0")
    with forebay.open_dataset(
        server.url(name), cache_dir=disk / "cache", max_cache_bytes="1GiB", prefetch=prefetch
    ) as ds:
        reading = iter(ds)
        found = [next(reading) for _ in range(3 * PER_CHUNK)]
        fill(disk / "ballast", CHUNK_BYTES // 2)
        found += list(reading)
        assert found == items(name)
        assert ds.stats().evictions > 0
        assert list(ds) == items(name)
    with forebay.ChunkCache(disk / "cache") as cache:
        assert cache.verify() == []
        assert cache.info().leases == 0
    assert not list((disk / "cache").rglob("*.tmp"))


def test_a_disk_without_any_room_is_a_clear_error_and_no_end(
    server: FaultServer, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Risk D6, B16: nothing can be given back; the reader is told at once, and goes on when there is room again."""
    monkeypatch.setenv("FOREBAY_PREFETCH_MIN", "0")
    with forebay.open_dataset(server.url("plain"), cache_dir=disk / "cache", max_cache_bytes="1GiB", prefetch=2) as ds:
        fill(disk / "ballast", CHUNK_BYTES // 2)
        with pytest.raises(CacheFullError, match=r"No space left on device.*free some space|disk is full") as caught:
            list(ds)
        assert "chunk-" in str(caught.value) or "ledger" in str(caught.value)
        with forebay.ChunkCache(disk / "cache") as cache:
            assert cache.info().bytes == 0
            assert cache.info().leases == 0
        (disk / "ballast").unlink()
        assert list(ds) == items("plain")
    with forebay.ChunkCache(disk / "cache") as cache:
        assert cache.verify() == []
        assert cache.info().leases == 0


def test_a_look_ahead_into_a_full_disk_does_not_fail_the_reader_behind_it(
    server: FaultServer, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only who waits for a chunk hears of a full disk; by then there may be room."""
    monkeypatch.setenv("FOREBAY_PREFETCH_MIN", "0")
    with forebay.open_dataset(server.url("plain"), cache_dir=disk / "cache", max_cache_bytes="1GiB", prefetch=1) as ds:
        reading = iter(ds)
        found = [next(reading)]
        server.wait_for_requests(3)
        fill(disk / "ballast", CHUNK_BYTES // 2)
        found += [next(reading) for _ in range(PER_CHUNK - 1)]
        threading.Event().wait(0.2)
        (disk / "ballast").unlink()
        found += list(reading)
        assert found == items("plain")


def test_a_cache_cannot_be_made_on_a_full_disk_and_says_so(server: FaultServer, disk: Path) -> None:
    fill(disk / "ballast", 0)
    with pytest.raises(CacheError, match=r"No space left|disk is full|cannot be used"):
        forebay.open_dataset(server.url("plain"), cache_dir=disk / "cache", max_cache_bytes="1GiB")
    (disk / "ballast").unlink()
    with forebay.open_dataset(server.url("plain"), cache_dir=disk / "cache", max_cache_bytes="1GiB") as ds:
        assert list(ds) == items("plain")


def test_a_full_cache_on_a_disk_mounted_read_only_is_read(
    server: FaultServer, disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Risk F1, F2: EROFS is no PermissionError, and root is stopped by it too."""
    with forebay.open_dataset(server.url("plain"), cache_dir=disk / "cache", max_cache_bytes="1GiB") as ds:
        assert list(ds) == items("plain")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    server.forget_requests()
    with forebay.open_dataset(server.url("plain"), cache_dir=disk / "cache") as ds:
        assert list(ds) == items("plain")
        assert ds.stats().chunks_fetched == 0
    assert "read-only" in caplog.text
    assert [request.key for request in server.requests] == ["plain/index.json"]
    with (
        forebay.open_dataset(server.url("zstd"), cache_dir=disk / "cache") as ds,
        pytest.raises(CacheError, match="may only read there"),
    ):
        list(ds)
