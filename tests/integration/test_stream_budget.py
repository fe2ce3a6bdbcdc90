"""Any budget that holds the largest chunk makes progress; a smaller one is refused with the arithmetic."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from servers.datasets import CHUNKS, expected_items, put_dataset

import forebay
from forebay import exceptions
from forebay.testing import Fault, FaultServer


def chunk_size(folder: Path) -> int:
    return max(file.stat().st_size for file in (folder / "dataset").glob("chunk-*"))


def used(cache: Path) -> int:
    total = 0
    for file in (cache / "chunks").rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except FileNotFoundError:
            continue
    return total


@pytest.mark.parametrize("prefetch", [0, 1, 2, 4])
@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_any_look_ahead_makes_progress_in_a_cache_of_few_chunks(
    server: FaultServer,
    tmp_path: Path,
    prefetch: int,
    chunks: int,
    compression: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Risk A7, A8, A10: no stall with a look-ahead of one, or none, and not at the second epoch either."""
    monkeypatch.setenv("FOREBAY_PREFETCH_MIN", "0")
    put_dataset(server, tmp_path, compression=compression)
    plain = 5 * 1040 + 60
    with forebay.open_dataset(
        server.url(), cache_dir=tmp_path / "cache", max_cache_bytes=chunks * plain, prefetch=prefetch
    ) as ds:
        for _ in range(3):
            assert list(ds) == expected_items()
        assert ds.stats().evictions > 0


def test_the_directory_never_holds_more_than_the_budget(server: FaultServer, tmp_path: Path) -> None:
    """Risk D1: the watcher counts every file, temporary ones too."""
    put_dataset(server, tmp_path)
    budget = 3 * chunk_size(tmp_path)
    peak, stop = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.wait(0.001):
            peak = max(peak, used(tmp_path / "cache"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", max_cache_bytes=budget) as ds:
            for _ in range(5):
                assert list(ds) == expected_items()
    finally:
        stop.set()
        watcher.join()
    assert 0 < peak <= budget


def test_a_budget_below_one_chunk_is_refused_with_the_arithmetic(server: FaultServer, tmp_path: Path) -> None:
    """Risk D2: a limit below one shard is an error at once, not a freeze."""
    put_dataset(server, tmp_path)
    size = chunk_size(tmp_path)
    with pytest.raises(exceptions.BudgetTooSmallError, match=str(size)) as caught:
        forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", max_cache_bytes=size - 1)
    assert isinstance(caught.value, ValueError)


def test_a_window_that_does_not_fit_names_the_largest_that_does(server: FaultServer, tmp_path: Path) -> None:
    put_dataset(server, tmp_path)
    budget = 3 * chunk_size(tmp_path)
    arguments = {"cache_dir": tmp_path / "cache", "max_cache_bytes": budget, "shuffle": True}
    with pytest.raises(exceptions.BudgetTooSmallError, match="largest window that fits is 3"):
        forebay.open_dataset(server.url(), shuffle_window=4, **arguments)  # type: ignore[arg-type]
    with forebay.open_dataset(server.url(), shuffle_window=3, **arguments) as ds:  # type: ignore[arg-type]
        assert sorted(item["index"] for item in ds) == list(range(40))


def test_a_window_is_no_larger_than_the_dataset(server: FaultServer, tmp_path: Path) -> None:
    put_dataset(server, tmp_path)
    budget = CHUNKS * chunk_size(tmp_path)
    with forebay.open_dataset(
        server.url(), cache_dir=tmp_path / "cache", max_cache_bytes=budget, shuffle=True, shuffle_window=100
    ) as ds:
        assert sorted(item["index"] for item in ds) == list(range(40))


def test_windows_of_two_readers_have_to_fit_together(server: FaultServer, tmp_path: Path) -> None:
    """Risk C2: each would hold what the other waits for; the second is refused, and goes when the first has ended."""
    put_dataset(server, tmp_path)
    arguments = {
        "cache_dir": tmp_path / "cache",
        "max_cache_bytes": 4 * chunk_size(tmp_path),
        "shuffle": True,
        "shuffle_window": 3,
    }
    with (
        forebay.open_dataset(server.url(), **arguments) as one,  # type: ignore[arg-type]
        forebay.open_dataset(server.url(), **arguments) as two,  # type: ignore[arg-type]
    ):
        first = iter(one)
        next(first)
        with pytest.raises(exceptions.BudgetTooSmallError, match=r"other readers keep.*window that fits is 2"):
            next(iter(two))
        assert two[3] == expected_items()[3]
        assert len(list(first)) == 39
        assert sorted(item["index"] for item in two) == list(range(40))


def test_a_reader_of_larger_chunks_does_not_wait_for_windows_that_never_leave_it_room(
    server: FaultServer, tmp_path: Path
) -> None:
    """Risk C2: an unshuffled reader keeps nothing, and still needs room beside what a shuffled one keeps."""
    put_dataset(server, tmp_path)
    put_dataset(server, tmp_path / "large", prefix="large/", size=2100)
    budget = 3 * chunk_size(tmp_path)
    with (
        forebay.open_dataset(
            server.url(), cache_dir=tmp_path / "cache", max_cache_bytes=budget, shuffle=True, shuffle_window=3
        ) as shuffled,
        forebay.open_dataset(server.url("large"), cache_dir=tmp_path / "cache", max_cache_bytes=budget) as plain,
    ):
        first = iter(shuffled)
        next(first)
        with pytest.raises(exceptions.BudgetTooSmallError, match=r"other readers keep.*wait until they have ended"):
            next(iter(plain))
        assert len(list(first)) == 39
        assert len(list(plain)) == 40


def test_a_reader_closed_in_its_iteration_keeps_no_window(server: FaultServer, tmp_path: Path) -> None:
    """Risk C4: what a reader claimed goes with it, also while another dataset keeps the cache open."""
    put_dataset(server, tmp_path)
    arguments = {"cache_dir": tmp_path / "cache", "max_cache_bytes": 3 * chunk_size(tmp_path)}
    with forebay.open_dataset(server.url(), **arguments) as other:  # type: ignore[arg-type]
        other[0]
        for _ in range(3):
            shuffled = forebay.open_dataset(server.url(), shuffle=True, shuffle_window=3, **arguments)  # type: ignore[arg-type]
            iterator = iter(shuffled)
            next(iterator)
            shuffled.close()
            del iterator


def test_a_smaller_budget_that_came_while_chunks_were_held_holds_once_they_are_let_go(
    server: FaultServer, tmp_path: Path
) -> None:
    """Risk D8: nobody has to ask for room, or to collect, before the directory is as small as it was told to be."""
    put_dataset(server, tmp_path, count=20)
    size, cache = chunk_size(tmp_path), tmp_path / "cache"
    with forebay.open_dataset(
        server.url(), cache_dir=cache, max_cache_bytes=4 * size, shuffle=True, shuffle_window=4, prefetch=0
    ) as large:
        iterator = iter(large)
        got = [next(iterator) for _ in range(15)]
        assert used(cache) > 2 * size
        with forebay.open_dataset(server.url(), cache_dir=cache, max_cache_bytes=2 * size):
            got += list(iterator)
            assert len(got) == 20
            assert used(cache) <= 2 * size


WINDOW_AND_DIE = """
import os, sys
import forebay
ds = forebay.open_dataset(
    sys.argv[1], cache_dir=sys.argv[2], max_cache_bytes=int(sys.argv[3]), shuffle=True, shuffle_window=3)
next(iter(ds))
os.kill(os.getpid(), 9)
"""


def test_the_window_of_a_killed_reader_counts_no_more(server: FaultServer, tmp_path: Path) -> None:
    """Risk E8: a claim without a living process is none."""
    put_dataset(server, tmp_path)
    budget = 3 * chunk_size(tmp_path)
    code = [sys.executable, "-c", WINDOW_AND_DIE, server.url(), str(tmp_path / "cache"), str(budget)]
    assert subprocess.run(code, timeout=60).returncode == -9
    with forebay.open_dataset(
        server.url(), cache_dir=tmp_path / "cache", max_cache_bytes=budget, shuffle=True, shuffle_window=3
    ) as ds:
        assert sorted(item["index"] for item in ds) == list(range(40))


def test_two_readers_take_turns_in_room_for_one_chunk(server: FaultServer, tmp_path: Path) -> None:
    put_dataset(server, tmp_path)
    budget = chunk_size(tmp_path)
    results: list[list[object]] = []

    def read() -> None:
        with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", max_cache_bytes=budget) as ds:
            results.append(list(ds))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    assert results == [expected_items()] * 3


@pytest.mark.parametrize("prefetch", [1, 3])
def test_readers_side_by_side_do_not_evict_what_others_fetched_ahead(
    server: FaultServer, tmp_path: Path, prefetch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Risk C1: room for a chunk each; nobody fills the room that another frees between two chunks."""
    monkeypatch.setenv("FOREBAY_PREFETCH_MIN", "0")
    folders = [f"set{number}/" for number in range(3)]
    names = [prefix + name for prefix in folders for name in put_dataset(server, tmp_path / prefix, prefix=prefix)]
    server.script(None, Fault(drip=(2000, 0.002)), times=None)
    budget = len(folders) * (5 * 1040 + 60)

    def read(prefix: str) -> None:
        with forebay.open_dataset(
            server.url(prefix.strip("/")), cache_dir=tmp_path / "cache", max_cache_bytes=budget, prefetch=prefetch
        ) as ds:
            for item, expected in zip(ds, expected_items(), strict=True):
                assert item == expected
                threading.Event().wait(0.001)

    with ThreadPoolExecutor(len(folders)) as pool:
        list(pool.map(read, folders))
    assert {name: len(server.requests_for(name)) for name in names} == dict.fromkeys(names, 1)


def test_a_reader_that_never_lets_go_is_named(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No wait without a deadline: the error says who holds what."""
    monkeypatch.setenv("FOREBAY_WAIT_TIMEOUT", "0.5")
    put_dataset(server, tmp_path)
    arguments = {"cache_dir": tmp_path / "cache", "max_cache_bytes": chunk_size(tmp_path), "prefetch": 0}
    with (
        forebay.open_dataset(server.url(), **arguments) as slow,  # type: ignore[arg-type]
        forebay.open_dataset(server.url(), **arguments) as blocked,  # type: ignore[arg-type]
    ):
        holding = slow._source.session([0], ahead=0)
        holding.take(0)  # and does not say that it needs the file no more
        with pytest.raises(exceptions.CacheFullError, match=r"chunk-.* holds 1 chunks"):
            blocked[39]
        holding.close()
        assert blocked[39] == expected_items()[39]


@pytest.mark.parametrize("shuffle", [False, True])
def test_one_pass_fetches_each_chunk_once_however_tight_the_budget(
    server: FaultServer, tmp_path: Path, shuffle: bool
) -> None:
    """A look-ahead larger than the room must not fill the room of the chunk that is read next."""
    names = put_dataset(server, tmp_path)
    budget = 3 * chunk_size(tmp_path)
    with forebay.open_dataset(
        server.url(),
        cache_dir=tmp_path / "cache",
        max_cache_bytes=budget,
        prefetch=8,
        shuffle=shuffle,
        shuffle_window=2,
    ) as ds:
        assert len(list(ds)) == 40
    assert [len(server.requests_for(name)) for name in names] == [1] * CHUNKS
