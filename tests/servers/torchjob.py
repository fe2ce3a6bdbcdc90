"""What the processes of a distributed job run; a module of its own, since they import it by name."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed
from servers.streams import as_list

from forebay.torch import StreamingDataLoader, StreamingDataset

__all__ = ["late_group"]


def late_group(connection: Any, store: str, rank: int, ranks: int, url: str, order: dict[str, Any]) -> None:
    """Make dataset and loader, then the process group; send the length before, and what was read after."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)  # of the test that happened to start the fork server
    with StreamingDataset(url, **order) as dataset:
        loaders = [
            StreamingDataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=as_list) for workers in (0, 2)
        ]
        before = len(dataset)
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
        try:
            dataset.set_epoch(0)
            found = [[item for batch in loader for item in batch] for loader in loaders]
            torch.distributed.barrier()
        finally:
            torch.distributed.destroy_process_group()
        connection.send((before, *found))


def main() -> None:
    """One process of ``torchrun``: read epochs, and write what was read, and counted, to a file of this rank."""
    arguments = json.loads(sys.argv[1])
    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    machines = arguments["machines"]
    cache = Path(arguments["folder"]) / f"cache{rank * machines // ranks}"
    report: dict[str, Any] = {"batches": [], "fetched": [], "lengths": []}
    with StreamingDataset(
        arguments["url"], cache_dir=cache, shuffle=True, seed=3, shuffle_window=2, partitions=machines
    ) as dataset:
        for workers in arguments["workers"]:
            loader = StreamingDataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=as_list)
            for _ in range(arguments["epochs"]):
                batches = list(loader)
                report["batches"].append(batches)
                report["lengths"].append(len(loader))
                report["fetched"].append(loader.stats().chunks_fetched)
                # A collective after each epoch: ranks with unequal numbers of batches would not get here together.
                total = torch.tensor([sum(map(len, batches))])
                torch.distributed.all_reduce(total)
                report.setdefault("totals", []).append(int(total))
    (Path(arguments["folder"]) / f"rank{rank}.json").write_text(json.dumps(report))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
