"""What is in the cache is used again, by the dataset that put it there, and only while it is sound."""

from __future__ import annotations

from pathlib import Path

from servers.datasets import CHUNKS, expected_items, put_dataset

import forebay
from forebay.testing import FaultServer


def test_what_is_cached_is_not_fetched_again(server: FaultServer, tmp_path: Path) -> None:
    put_dataset(server, tmp_path)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        list(ds)
        server.forget_requests()
        list(ds)
        assert server.requests == []
        assert ds.stats().cache_hits == CHUNKS
        assert ds.stats().chunks_fetched == CHUNKS
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        assert list(ds) == expected_items()
    assert [request.key for request in server.requests] == ["index.json"]


def test_a_rewritten_dataset_is_another_dataset(server: FaultServer, tmp_path: Path) -> None:
    """Risk R1: old chunks are never mixed with a new index."""
    put_dataset(server, tmp_path)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        list(ds)
    put_dataset(server, tmp_path / "again", count=20, size=900)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        assert list(ds) == expected_items(20, 900)


def test_equal_names_at_two_places_do_not_meet_in_the_cache(server: FaultServer, tmp_path: Path) -> None:
    """Risk C8: two datasets with equal file names and sizes share one cache directory."""
    put_dataset(server, tmp_path / "one", prefix="a/train/")
    put_dataset(server, tmp_path / "two", prefix="b/train/", size=999, count=39)
    for prefix, expected in (("a/train", expected_items()), ("b/train", expected_items(39, 999))):
        with forebay.open_dataset(server.url(prefix), cache_dir=tmp_path / "cache") as ds:
            assert list(ds) == expected


def test_a_chunk_damaged_on_disk_heals_in_the_next_run(server: FaultServer, tmp_path: Path) -> None:
    """Risk B9, B11: what an earlier run left is checked before it is trusted, and fetched again once."""
    put_dataset(server, tmp_path)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        list(ds)
    victim = sorted((tmp_path / "cache" / "chunks").rglob("*.bin"))[0]
    data = bytearray(victim.read_bytes())
    data[50] ^= 0xFF
    victim.write_bytes(data)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        assert list(ds) == expected_items()
        assert ds.stats().chunks_fetched == 1


def test_a_chunk_file_that_vanished_is_fetched_again(server: FaultServer, tmp_path: Path) -> None:
    """Risk C5, C12: somebody removed files below the cache."""
    put_dataset(server, tmp_path)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        list(ds)
        for victim in (tmp_path / "cache" / "chunks").rglob("*.bin"):
            victim.unlink()
        assert list(ds) == expected_items()
