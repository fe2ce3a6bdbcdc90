"""Workers, ranks and datasets that a loop reads in step go on in any budget that their windows fit in."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from servers.streams import Job, flat, serve_numbers

from forebay.exceptions import BudgetTooSmallError
from forebay.torch import ParallelStreamingDataset, StreamingDataset

#: Chunks of seven and batches of four: a worker rests between two batches with a chunk that it has begun.
COUNT, PER_CHUNK, BATCH = 84, 7, 4


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that waits for room for ever ends with another error than these tests expect."""
    monkeypatch.setenv("FOREBAY_WAIT_TIMEOUT", "10")


@pytest.mark.parametrize(("ranks", "workers", "window"), [(1, 2, 0), (2, 0, 0), (1, 2, 2), (2, 2, 0)])
def test_workers_and_ranks_in_step_share_the_room_of_their_windows(
    tmp_path: Path, ranks: int, workers: int, window: int
) -> None:
    """Risk A7: one waits for room, the loop for it, and the one that has the room for the loop."""
    readers = ranks * max(workers, 1)
    shuffle: dict[str, Any] = {"shuffle": window > 0, "shuffle_window": max(window, 1), "prefetch": 0}
    with serve_numbers(tmp_path / "data", COUNT, PER_CHUNK) as (server, chunks):
        size = len(server.get(f"data/{chunks[0]}") or b"")

        def job(chunks: int) -> Job:
            def make(**numbers: Any) -> StreamingDataset:
                return StreamingDataset(
                    server.url("data"),
                    cache_dir=tmp_path / f"cache{chunks}",
                    max_cache_bytes=chunks * size,
                    **shuffle,
                    **numbers,
                )

            return Job(make, ranks=ranks, workers=workers, whole=BATCH * ranks)

        # Each keeps all of its window but one while it waits, and one of them gets what it waits for.
        need = readers * (max(window, 1) - 1) + 1
        with job(need) as enough:
            assert sorted(flat(enough.epoch())) == list(range(COUNT))
        if need > 1:
            with job(need - 1) as short, pytest.raises(BudgetTooSmallError, match="together with what other readers"):
                short.epoch()


def test_a_refused_window_says_what_fits_for_all_workers(tmp_path: Path) -> None:
    """A newcomer's risk: who takes what fits beside one worker is refused by the next worker, and so on."""
    readers, room = 4, 6
    with serve_numbers(tmp_path / "data", COUNT, PER_CHUNK) as (server, chunks):
        size = len(server.get(f"data/{chunks[0]}") or b"")

        def dataset(window: int) -> StreamingDataset:
            cache: dict[str, Any] = {"cache_dir": tmp_path / "cache", "max_cache_bytes": room * size}
            return StreamingDataset(server.url("data"), shuffle=True, shuffle_window=window, prefetch=0, **cache)

        with ExitStack() as begun:

            def begin(window: int) -> None:
                items: Any = iter(begun.enter_context(dataset(window)))
                begun.callback(items.close)
                next(items)

            begin(4)
            with pytest.raises(BudgetTooSmallError, match=r"each worker.*1 \+ 5 // R") as caught:
                begin(4)
            assert "largest window that fits is 3" in str(caught.value)
        with ExitStack() as begun:
            for _ in range(readers):
                begin(1 + (room - 1) // readers)


def test_datasets_that_are_read_side_by_side_share_the_room_of_one_chunk(tmp_path: Path) -> None:
    """Risk A7: each keeps its chunk while the next dataset waits for one."""
    with serve_numbers(tmp_path / "data", COUNT, PER_CHUNK) as (server, chunks):
        for file in (tmp_path / "data").iterdir():
            server.put(f"more/{file.name}", file.read_bytes())
        size = len(server.get(f"data/{chunks[0]}") or b"")
        options: dict[str, Any] = {"cache_dir": tmp_path / "cache", "max_cache_bytes": size}
        members = [StreamingDataset(server.url(name), prefetch=0, **options) for name in ("data", "more")]
        with Job(lambda **numbers: ParallelStreamingDataset(members, **numbers)) as job:
            assert flat(job.epoch()) == [(number, number) for number in range(COUNT)]
        for member in members:
            member.close()
