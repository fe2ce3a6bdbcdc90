"""Compressed chunks of every shape through the whole path: store, engine, cache, reader."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from servers.datasets import expected_items, put_dataset
from servers.watcher import Watcher

import forebay
from forebay.exceptions import ForebayError, IntegrityError
from forebay.testing import FaultServer

Body = Callable[[bytes], bytes]


def plain(stored: bytes) -> bytes:
    return bytes(zstandard.ZstdDecompressor().decompressobj().decompress(stored))


def one(data: bytes, *, checksum: bool = False) -> bytes:
    return bytes(zstandard.ZstdCompressor(write_checksum=checksum).compress(data))


def streamed(data: bytes) -> bytes:
    """A frame that does not say how much it holds."""
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return bytes(compressor.compress(data) + compressor.flush())


def skippable(size: int) -> bytes:
    return (0x184D2A50).to_bytes(4, "little") + size.to_bytes(4, "little") + b"s" * size


SOUND: dict[str, Body] = {
    "several frames": lambda data: b"".join(one(data[at : at + 700]) for at in range(0, len(data), 700)),
    "no size": streamed,
    "mixed frames": lambda data: one(data[:100]) + streamed(data[100:3000]) + one(b"") + one(data[3000:]),
    "skippable frames": lambda data: skippable(40) + one(data) + skippable(3),
    "checksum": lambda data: one(data, checksum=True),
}
BROKEN: dict[str, Body] = {
    "cut": lambda data: one(data)[:-3],
    "cut between frames": lambda data: one(data[:700]),
    "bomb that says so": lambda data: one(b"\0" * (1 << 26)),
    "bomb that does not": lambda data: streamed(b"\0" * (1 << 26)),
    "bomb behind the data": lambda data: one(data) + streamed(b"\0" * (1 << 26)),
    "other data": lambda data: b"<html>not a frame</html>" * 9,
    "flipped": lambda data: one(data, checksum=True)[:-1] + b"\xff",
}


def bend(server: FaultServer, name: str, body: Body) -> None:
    stored = server.get(name)
    assert stored is not None
    server.put(name, body(plain(stored)))


def without_stored_sizes(server: FaultServer) -> None:
    """As other writers' indexes are: they promise what a chunk holds, not how it is stored."""
    found = server.get("index.json")
    assert found is not None
    index = json.loads(found)
    for chunk in index["chunks"]:
        for field in ("stored_bytes", "digest"):
            chunk.pop(field, None)
    server.put("index.json", json.dumps(index).encode())


@pytest.mark.parametrize("form", SOUND)
def test_frames_of_every_form_are_read(server: FaultServer, tmp_path: Path, form: str) -> None:
    """Risk G5, G6: frames with and without a size, several of them, and some that hold nothing."""
    names = put_dataset(server, tmp_path, compression="zstd")
    without_stored_sizes(server)
    for name in names:
        bend(server, name, SOUND[form])
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        assert list(ds) == expected_items()
    with forebay.ChunkCache(tmp_path / "cache") as cache:
        assert cache.verify() == []


@pytest.mark.parametrize("form", BROKEN)
def test_a_broken_chunk_or_a_bomb_is_refused_early_and_its_neighbours_are_read(
    server: FaultServer, tmp_path: Path, form: str
) -> None:
    """Risk G3, G6, B12: the cap comes from the index; nothing is published, and the budget holds all the while."""
    names = put_dataset(server, tmp_path, compression="zstd")
    without_stored_sizes(server)
    bend(server, names[3], BROKEN[form])
    budget = 3 * 5300
    begin = time.monotonic()
    with (
        Watcher(tmp_path / "cache") as watcher,
        forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", max_cache_bytes=budget) as ds,
    ):
        items = iter(ds)
        assert [next(items) for _ in range(15)] == expected_items()[:15]
        with pytest.raises(IntegrityError) as caught:
            next(items)
        assert isinstance(caught.value, ForebayError)
        assert names[3] in str(caught.value)
        assert time.monotonic() - begin < 10
        assert ds.get_batch(range(20, 40)) == expected_items()[20:]
        assert watcher.seen().peak <= budget
    with forebay.ChunkCache(tmp_path / "cache") as cache:
        assert (cache.info().leases, cache.verify()) == (0, [])
    assert not list((tmp_path / "cache").rglob("*.tmp"))
