"""Disks that are full, or may only be read: what can be given back is, the error is clear, and then all goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from servers.cache_actor import key, put
from servers.crash_reader import items_of
from servers.disk import fill, mounted

import forebay
from forebay._cache import open_cache
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


def test_readers_begin_on_a_disk_that_has_no_room_for_what_the_ledger_notes_of_them(
    server: FaultServer, disk: Path
) -> None:
    """Risk D6: each pass claims its window; the ledger's log found no room for that, with chunks to give back."""
    with forebay.open_dataset(server.url("plain"), cache_dir=disk / "cache", max_cache_bytes="1GiB") as ds:
        assert list(ds) == items("plain")
        fill(disk / "ballast", 0)
        for _ in range(60):
            assert next(iter(ds)) == items("plain")[0]
        assert ds.stats().evictions > 0
    with forebay.ChunkCache(disk / "cache") as cache:
        assert cache.verify() == []
        assert cache.info().leases == 0


def test_room_is_made_although_the_first_chunks_to_go_are_open_somewhere(disk: Path) -> None:
    """Risk D6: their blocks stay taken; the second try removed the same ones again, and gave up."""
    cache = open_cache(disk / "cache", max_bytes=1 << 30)
    with ExitStack() as stack:
        stack.callback(cache.close)
        for number in range(4):
            put(cache, number, 100_000, lease=False)
        for file in (disk / "cache" / "chunks").rglob("*.bin"):
            if file.read_bytes()[0] < 2:  # chunks 0 and 1
                stack.enter_context(file.open("rb"))
        fill(disk / "ballast", 0)
        with pytest.raises(CacheFullError):
            cache.declare([key(number) for number in range(100, 10_000)])
        assert cache.relieve(1) > 0
        assert cache.info().chunks < 3


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


@pytest.mark.parametrize("how", ["lost", "killed"])
def test_a_read_only_cache_is_read_where_no_digest_can_be(
    server: FaultServer, disk: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Risk F1, F6: an index like litdata's own promises no digest, and the ledger cannot be read."""
    index = json.loads(server.get("plain/index.json") or b"")
    for chunk in index["chunks"]:
        del chunk["digest"]
    server.put("plain/index.json", json.dumps(index).encode())
    code = [sys.executable, "-c", LEAVE_FULL, server.url("plain"), str(disk / "cache"), how]
    subprocess.run(code, stdout=subprocess.DEVNULL, timeout=60, check=False)
    if how == "lost":
        for file in (disk / "cache").glob("ledger*"):
            file.unlink()
    path = next((disk / "cache" / "chunks").rglob("*.bin"))
    for harmed in (False, True):
        if harmed:
            path.write_bytes(path.read_bytes()[:-1])
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with forebay.open_dataset(server.url("plain"), cache_dir=disk / "cache") as ds:
            if harmed:
                with pytest.raises(CacheError, match="damaged in the cache"):
                    list(ds)
            else:
                assert list(ds) == items("plain")
                assert ds.stats().chunks_fetched == 0
        assert "sizes are compared" in caplog.text
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_chunk_cut_short_is_found_by_its_size_where_the_ledger_is_lost(
    server: FaultServer, disk: Path, read_only: bool
) -> None:
    """Risk B9: a ledger made from the files knows their sizes as they are; the index knows what they should be."""
    arguments: dict[str, Any] = {"cache_dir": disk / "cache", "verify": "size"}
    with forebay.open_dataset(server.url("plain"), max_cache_bytes="1GiB", **arguments) as ds:
        assert list(ds) == items("plain")
    for file in (disk / "cache").glob("ledger*"):
        file.unlink()
    path = next((disk / "cache" / "chunks").rglob("*.bin"))
    path.write_bytes(path.read_bytes()[:-1])
    if read_only:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with forebay.open_dataset(server.url("plain"), **arguments) as ds:
        if read_only:
            with pytest.raises(CacheError, match="damaged in the cache"):
                list(ds)
        else:
            assert list(ds) == items("plain")
            assert ds.stats().chunks_fetched == 1


def forebay_cache(what: str, directory: Path) -> subprocess.CompletedProcess[str]:
    code = [sys.executable, "-m", "forebay", "cache", what, "--cache-dir", str(directory)]
    return subprocess.run(code, capture_output=True, text=True, timeout=60, check=False)


LEAVE_FULL = """
import os, sys
import forebay
with forebay.open_dataset(sys.argv[1], cache_dir=sys.argv[2], max_cache_bytes="1GiB", prefetch=0) as ds:
    reading = iter(ds)
    for _ in range(len(ds) - 1):
        next(reading)
    print("read", flush=True)
    if sys.argv[3] == "killed":
        os.kill(os.getpid(), 9)
    if sys.argv[3] == "alive":
        sys.stdin.read()
"""


@contextmanager
def left_by_a_run(server: FaultServer, disk: Path, how: str) -> Iterator[None]:
    """A cache that a run has filled, which has closed it, was killed in its last chunk, or is there still."""
    code = [sys.executable, "-c", LEAVE_FULL, server.url("plain"), str(disk / "cache"), how]
    with subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline() == "read\n"
            if how != "alive":
                run.communicate(timeout=30)
            fill(disk / "ballast", 0)
            yield
        finally:
            run.kill()


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_cache_is_cleared_on_a_disk_without_any_room(server: FaultServer, disk: Path, how: str) -> None:
    """Risk D6: to remove chunks takes a ledger, and to open that takes room; clearing is what makes it."""
    with left_by_a_run(server, disk, how):
        seen = forebay_cache("gc" if how == "killed" else "info", disk / "cache")
        assert seen.returncode == 1
        assert "disk is full" in seen.stderr
        assert "forebay cache clear" in seen.stderr
        assert "FOREBAY_CACHE_DIR" not in seen.stderr
        done = forebay_cache("clear", disk / "cache")
        assert done.returncode == 0, done.stderr
        assert "0 chunks and 0 leases left" in done.stdout
        assert not [file for file in (disk / "cache" / "chunks").rglob("*") if file.is_file()]
        assert forebay_cache("info", disk / "cache").returncode == 0
    with forebay.open_dataset(server.url("plain"), cache_dir=disk / "cache", max_cache_bytes="1GiB") as ds:
        assert list(ds) == items("plain")


def test_looking_at_a_full_disk_shows_the_living_without_the_dead(server: FaultServer, disk: Path) -> None:
    """Risk D6: the dead cannot be buried for want of room; whoever looks on is told of the living all the same."""
    with (
        forebay.open_dataset(server.url("plain"), cache_dir=disk / "cache", prefetch=0) as ds,
        left_by_a_run(server, disk, "killed"),
        forebay.ChunkCache(disk / "cache") as cache,
    ):
        chunks = len(list((disk / "cache" / "chunks").rglob("*.bin")))
        for _ in range(2):  # looking changes nothing
            info = cache.info()
            assert (info.chunks, info.leases, info.holders) == (chunks, 0, 1)
        assert cache.refcount(server.url("plain/chunk-0-9.bin")) == 0
        report = cache.report()
        assert (report.dead, [process.pid for process in report.processes]) == (1, [os.getpid()])
        assert cache.verify() == []
        seen = forebay_cache("info", disk / "cache")
        assert seen.returncode == 0, seen.stderr
        assert "1, what they held is given back" in seen.stdout
        (disk / "ballast").unlink()
        assert list(ds) == items("plain")
        assert cache.info().leases == 0


def test_clearing_what_is_empty_on_a_full_disk_does_not_send_in_circles(disk: Path) -> None:
    """Risk D6: the remedy is not the command that just failed."""
    with forebay.ChunkCache(disk / "cache", max_bytes="1GiB"):
        pass
    fill(disk / "ballast", 0)
    done = forebay_cache("clear", disk / "cache")
    assert done.returncode == 1
    assert "free some space on that disk" in done.stderr
    assert "forebay cache clear" not in done.stderr


def test_what_a_living_reader_holds_stays_when_a_full_disk_is_cleared(server: FaultServer, disk: Path) -> None:
    """Risk D6, C2: room is not made out of what is in use."""
    with left_by_a_run(server, disk, "alive"):
        done = forebay_cache("clear", disk / "cache")
        assert done.returncode == 1
        assert "1 chunks are in use" in done.stderr
        left = [file for file in (disk / "cache" / "chunks").rglob("*") if file.is_file()]
        assert [file.stat().st_size <= CHUNK_BYTES for file in left] == [True]
        with forebay.ChunkCache(disk / "cache") as cache:
            assert cache.info().chunks == 1
            assert cache.verify() == []


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_run_on_a_disk_that_an_earlier_cache_filled_makes_its_own_room(
    server: FaultServer, disk: Path, how: str
) -> None:
    """Risk D6, E7: chunks that an earlier run left give way to the ledger of the next."""
    with (
        left_by_a_run(server, disk, how),
        forebay.open_dataset(server.url("zstd"), cache_dir=disk / "cache", max_cache_bytes="1GiB") as ds,
    ):
        assert list(ds) == items("zstd")
    with forebay.ChunkCache(disk / "cache") as cache:
        assert cache.verify() == []
