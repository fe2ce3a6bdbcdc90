"""What `loader.stats()` tells: every stage of every process, once, and who was waited for (issue 5, item 6)."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers.datasets import CHUNKS, ITEMS, put_dataset
from servers.streams import as_list

from forebay.testing import Fault, FaultServer
from forebay.torch import StreamingDataLoader, StreamingDataset

BATCH = 4


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_every_stage_counts_once_over_epochs_and_processes(
    server: FaultServer, tmp_path: Path, workers: int, persistent: bool
) -> None:
    """Reports of workers are sums: neither those that live on nor those that were replaced count twice, or are lost."""
    put_dataset(server, tmp_path, compression="zstd")
    with StreamingDataset(server.url(), cache_dir=tmp_path / "cache") as dataset:
        loader = StreamingDataLoader(
            dataset, batch_size=BATCH, num_workers=workers, persistent_workers=persistent, collate_fn=as_list
        )
        for epoch in range(1, 4):
            assert sum(len(batch) for batch in loader) == ITEMS
            stats = loader.stats()
            counts = {name: stage.count for name, stage in stats.stages.items()}
            assert (stats.items, stats.chunks_fetched) == (epoch * ITEMS, CHUNKS)
            assert counts["collate"] == counts["yield"] == epoch * ITEMS // BATCH
            assert counts["loop"] == epoch * ITEMS // BATCH
            assert counts.get("start", 0) == (epoch if workers else 0), "short epochs wait for little else"
            assert counts["download"] == counts["decompress"] == CHUNKS
            assert counts["index"] >= 1
            assert counts["decode"] >= epoch
        assert all(stage.total >= 0 for stage in stats.stages.values())
        del loader


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stall_names_the_chunk_and_its_backend(server: FaultServer, tmp_path: Path, workers: int) -> None:
    names = put_dataset(server, tmp_path)
    server.script(names[3], Fault(delay=0.7), times=1)
    with StreamingDataset(server.url(), cache_dir=tmp_path / "cache") as dataset:
        loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=as_list)
        list(loader)
        longest = loader.stats().stalls[0]
    assert (longest.chunk, longest.backend) == (server.url(names[3]), "http")
    assert longest.seconds > 0.2
    assert loader.stats().wait_seconds >= longest.seconds


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_switched_off_nothing_is_timed_or_sent(server: FaultServer, tmp_path: Path, workers: int) -> None:
    put_dataset(server, tmp_path)
    with StreamingDataset(server.url(), cache_dir=tmp_path / "cache") as dataset:
        loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=as_list, timing=False)
        assert sum(len(batch) for batch in loader) == ITEMS
        stats = loader.stats()
    assert not {"collate", "yield", "loop"} & set(stats.stages)
    assert stats.items == (0 if workers else ITEMS)
