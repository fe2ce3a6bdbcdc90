"""Jobs that ``torchrun`` starts, on gloo: every sample once over all ranks, each chunk once a machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from servers.streams import flat, serve_numbers

pytestmark = pytest.mark.slow

COUNT, PER_CHUNK = 96, 8
TESTS = Path(__file__).parents[1]


def torchrun(folder: Path, processes: int, **arguments: Any) -> list[dict[str, Any]]:
    """Run the job, and return what each rank wrote."""
    given = {"folder": str(folder), **arguments}
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [*run, f"--log-dir={folder}", "-m", "servers.torchjob", json.dumps(given)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(processes)]


def check_epochs(ranks: list[dict[str, Any]], epochs: int) -> None:
    for epoch in range(epochs):
        assert sorted(flat(flat(rank["batches"][epoch] for rank in ranks))) == list(range(COUNT))
        counts = [len(rank["batches"][epoch]) for rank in ranks]
        assert counts == [rank["lengths"][epoch] for rank in ranks]
        assert len(set(counts)) == 1
        assert {rank["totals"][epoch] for rank in ranks} == {COUNT}


@pytest.mark.parametrize("processes", [2, 4])
def test_ranks_of_a_machine_read_each_sample_once_and_fetch_each_chunk_once(tmp_path: Path, processes: int) -> None:
    """Risk I1, I2: without workers and with two each; the ranks of one machine share the cache."""
    with serve_numbers(tmp_path / "data", COUNT, PER_CHUNK) as (server, chunks):
        ranks = torchrun(tmp_path, processes, url=server.url("data"), machines=1, workers=[0, 2], epochs=1)
        fetched = [len(server.requests_for(f"data/{chunk}", "GET")) for chunk in chunks]
    check_epochs(ranks, 2)
    assert fetched == [1] * len(chunks)


def test_two_machines_of_two_ranks_fetch_a_half_each_and_keep_it(tmp_path: Path) -> None:
    """Two caches, canonical partitions for two machines; without workers and with two each, two epochs of both."""
    with serve_numbers(tmp_path / "data", COUNT, PER_CHUNK) as (server, chunks):
        ranks = torchrun(tmp_path, 4, url=server.url("data"), machines=2, workers=[0, 2], epochs=2)
        fetched = [len(server.requests_for(f"data/{chunk}", "GET")) for chunk in chunks]
    check_epochs(ranks, 4)
    halves = []
    for machine in (ranks[:2], ranks[2:]):
        samples = [set(flat(flat(rank["batches"][epoch] for rank in machine))) for epoch in range(4)]
        assert all(each == samples[0] for each in samples), "a machine reads the same samples in every epoch"
        halves.append({number // PER_CHUNK for number in samples[0]})
        assert sum(rank["fetched"][0] for rank in machine) == len(halves[-1])
    # Twelve chunks in two parts of forty-eight samples: six each, and no chunk on a border.
    assert [len(half) for half in halves] == [6, 6]
    assert halves[0] | halves[1] == set(range(len(chunks)))
    assert fetched == [1] * len(chunks)
    orders = [flat(flat(rank["batches"][epoch] for rank in ranks)) for epoch in range(4)]
    assert len({tuple(order) for order in orders}) == 4, "each epoch has an order of its own"
