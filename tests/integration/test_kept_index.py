"""Indexes are fetched once a machine, and never used once the store has another one (issue 5, item 4; risks R1, K7)."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from servers.datasets import ITEMS, expected_items, put_dataset
from servers.readers import send_indices

import forebay
from forebay import exceptions
from forebay._cache import open_cache
from forebay.testing import Fault, FaultServer


def bodies(server: FaultServer) -> int:
    return len(server.requests_for("index.json", "GET"))


def kept_file(cache: Path) -> Path:
    (only,) = (cache / "indexes").iterdir()
    return only


def test_processes_of_a_machine_fetch_one_body(server: FaultServer, tmp_path: Path) -> None:
    put_dataset(server, tmp_path)
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for _ in range(3):
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=send_indices, args=(theirs, None, server.url(), str(tmp_path / "cache")))
        process.start()
        theirs.close()
        pipes.append(mine)
        processes.append(process)
    assert [pipe.recv() for pipe in pipes] == [list(range(ITEMS))] * 3
    for process in processes:
        process.join(60)
    assert bodies(server) == 1


def test_a_rewritten_index_is_fetched_at_once(server: FaultServer, tmp_path: Path) -> None:
    put_dataset(server, tmp_path / "old")
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        assert len(ds) == ITEMS
    put_dataset(server, tmp_path / "new", count=10)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        assert list(ds) == expected_items(10)
    assert bodies(server) == 2


@pytest.mark.parametrize("damage", [b"", b"{}\n", b"not json at all", None])
def test_a_damaged_copy_is_not_used(server: FaultServer, tmp_path: Path, damage: bytes | None) -> None:
    """Risk E5: a copy that was cut or changed on the disk."""
    put_dataset(server, tmp_path)
    for _ in range(2):
        with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
            assert len(ds) == ITEMS
    assert bodies(server) == 1, "the copy would be used, were it whole"
    kept = kept_file(tmp_path / "cache")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1] + b"!" if damage is None else damage)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        assert list(ds) == expected_items()
    assert bodies(server) == 2
    assert kept_file(tmp_path / "cache").read_bytes() == whole


def test_a_weak_validator_proves_nothing(server: FaultServer, tmp_path: Path) -> None:
    """Risk R5: two indexes of one size, written within a second."""
    put_dataset(server, tmp_path)
    data = server.get("index.json")
    assert data is not None
    server.put("index.json", data, etag='W/"weak"')
    for _ in range(2):
        with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
            assert len(ds) == ITEMS
    assert bodies(server) == 2


def test_a_store_that_does_not_say_is_asked_to_give(server: FaultServer, tmp_path: Path) -> None:
    """Risk P7: a link that is signed for GET alone."""
    put_dataset(server, tmp_path)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        assert len(ds) == ITEMS
    server.script("index.json", Fault(status=403), times=None, methods=("HEAD",))
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        assert list(ds) == expected_items()


def test_an_index_that_is_gone_is_not_found(server: FaultServer, tmp_path: Path) -> None:
    put_dataset(server, tmp_path)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        assert len(ds) == ITEMS
    server.delete("index.json")
    with pytest.raises(exceptions.ObjectNotFoundError, match="index"):
        forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache")


def test_a_fetcher_that_takes_too_long_is_not_waited_for(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Risk A7: no wait without an end."""
    from filelock import FileLock

    put_dataset(server, tmp_path)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        assert len(ds) == ITEMS
    monkeypatch.setenv("FOREBAY_WAIT_TIMEOUT", "0.1")
    kept = kept_file(tmp_path / "cache")
    with (
        FileLock(f"{kept}.lock"),
        caplog.at_level(logging.WARNING, "forebay"),
        forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds,
    ):
        assert list(ds) == expected_items()
    assert "too long" in caplog.text or "fetched here as well" in caplog.text


DIE_WHILE_KEEPING = """
import os, signal, sys
import forebay
replace = os.replace
os.replace = lambda a, b: os.kill(os.getpid(), signal.SIGKILL) if str(b).endswith(".json") else replace(a, b)
forebay.open_dataset(sys.argv[1], cache_dir=sys.argv[2])
"""


@pytest.mark.parametrize("how", ["another run", "beside a living one", "gc"])
def test_what_a_killed_process_left_of_an_index_goes_with_the_next_use(
    server: FaultServer, tmp_path: Path, how: str
) -> None:
    """Risk E2, E8: neither its temporary nor its lock stays, and nobody waits for it."""
    put_dataset(server, tmp_path)
    cache = tmp_path / "cache"
    with forebay.ChunkCache(cache), ExitStack() as stack:
        if how == "beside a living one":
            stack.callback(open_cache(cache, max_bytes=None).close)
        command = [sys.executable, "-c", DIE_WHILE_KEEPING, server.url(), str(cache)]
        assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGKILL
        assert sorted(file.suffix for file in (cache / "indexes").iterdir()) == [".lock", ".tmp"]
        if how == "gc":
            stack.enter_context(forebay.ChunkCache(cache)).gc()
            assert not list((cache / "indexes").iterdir())
        else:
            assert len(stack.enter_context(forebay.open_dataset(server.url(), cache_dir=cache))) == ITEMS
            assert kept_file(cache).suffix == ".json"
