"""The look-ahead: when it is on, that it holds nothing back, and that it hides the distance to the store."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers.cache_actor import until
from servers.datasets import CHUNKS, ITEMS, expected_items, put_dataset

import forebay
from forebay._backends.file import FileDownloader
from forebay._backends.memory import MemoryDownloader
from forebay.testing import Fault, FaultServer, Gate, memory_put


def test_the_first_item_comes_after_the_first_chunk(server: FaultServer, tmp_path: Path) -> None:
    """Risk A15: a look-ahead does not hold the first item back."""
    names = put_dataset(server, tmp_path)
    gate = Gate()
    for name in names[1:]:
        server.script(name, Fault(gate=gate), times=None)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", prefetch=8) as ds:
        iterator = iter(ds)
        assert next(iterator) == expected_items()[0]
        gate.open()
        assert len(list(iterator)) == 39


def test_the_look_ahead_fetches_before_the_reader_asks(server: FaultServer, tmp_path: Path) -> None:
    put_dataset(server, tmp_path)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", prefetch=4) as ds:
        iterator = iter(ds)
        next(iterator)
        server.wait_for_requests(1 + 5)  # the index, the first chunk and four ahead of it
        assert len(server.requests) == 6
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "other", prefetch=0) as ds:
        server.forget_requests()
        next(iter(ds))
        assert len(server.requests) == 1


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_prefetch_is_off_for_memory_and_local_files_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """What lies in this machine comes as fast on demand; compressed, so that files go through the cache as well."""
    asked: set[str] = set()

    class Memory:
        def put(self, key: str, data: bytes) -> None:
            memory_put(f"memory://prefetch/{key}", data)

    names = put_dataset(Memory(), tmp_path, compression="zstd")
    url = "memory://prefetch" if scheme == "memory" else str(tmp_path / "dataset")
    cls = MemoryDownloader if scheme == "memory" else FileDownloader

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def count(self: object, key: str, *arguments: Any, **named: Any) -> Any:
            asked.add(key)
            return method(self, key, *arguments, **named)

        return count

    for name, value in list(vars(cls).items()):
        if inspect.isfunction(value) and name.removeprefix("a").startswith(("download_", "read_range")):
            monkeypatch.setattr(cls, name, counted(value))

    def most_ahead(cache: str, **arguments: object) -> int:
        """The most chunks that were asked for and not read yet, over one pass."""
        asked.clear()
        most = 0
        with forebay.open_dataset(url, cache_dir=tmp_path / cache, **arguments) as ds:  # type: ignore[arg-type]
            for number, _ in enumerate(ds):
                if number == 0 and arguments:
                    until(lambda: len(asked & set(names)) > 1, "a chunk ahead")
                most = max(most, len(asked & set(names)) - (number // (ITEMS // CHUNKS) + 1))
        assert asked >= set(names)
        return most

    assert most_ahead("off") == 0
    assert most_ahead("on", prefetch=True) > 0


def test_prefetch_is_on_for_remote_and_the_variable_decides_else(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_dataset(server, tmp_path)

    def requests_at_first_item(**arguments: object) -> int:
        server.forget_requests()
        cache = tmp_path / f"cache-{time.monotonic_ns()}"
        with forebay.open_dataset(server.url(), cache_dir=cache, **arguments) as ds:  # type: ignore[arg-type]
            next(iter(ds))
        return len(server.requests)

    assert requests_at_first_item(prefetch=0) == 2
    monkeypatch.setenv("FOREBAY_PREFETCH", "0")
    assert requests_at_first_item() == 2
    monkeypatch.delenv("FOREBAY_PREFETCH")
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "auto") as ds:
        iterator = iter(ds)
        next(iterator)
        server.wait_for_requests(2 + 1 + CHUNKS)


def test_many_small_chunks_are_fetched_side_by_side(server: FaultServer, tmp_path: Path) -> None:
    """Risk Q6: at some distance each request is nearly all latency; one after the other, the link stays empty."""
    names = put_dataset(server, tmp_path, count=200, size=100, per_chunk=1)
    assert len(names) >= 100
    server.latency = 0.02
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", prefetch=16) as ds:
        assert list(ds) == expected_items(200, 100)
        assert ds.stats().chunks_fetched == len(names)
    assert sorted(request.key for request in server.requests) == sorted(["index.json", *names])
    assert server.peak >= 4
