"""What a cache of half the dataset fetches an epoch, by eviction, order, look-ahead and readers; what choosing costs.

    python tests/benchmarks/bench_eviction.py [--json] [--chunks 32 64] [--skip-cost]

The first table is the share of the dataset that epochs 2 to 5 fetched in the mean, by ``stats()`` and confirmed by the
server's log; ranks are processes that read one plan in step. The second is one ``Flight.reserve`` that has to evict, in
all: two transactions, the choice, the file; half of the dataset's chunks are in the cache.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from servers.datasets import put_dataset
from servers.readers import send_part

from forebay._cache import ChunkKey, Flight, open_cache
from forebay._cache._layout import chunk_name
from forebay._cache._shared import SharedCache
from forebay.testing import FaultServer

EPOCHS = 5


def shares(chunks: int, *, policy: str, shuffle: bool, ahead: int, ranks: int) -> list[float]:
    """The share of the dataset that each epoch fetched."""
    os.environ |= {"FOREBAY_EVICTION": policy, "FOREBAY_PREFETCH_MIN": "0"}
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(ranks)
    ends = [context.Pipe(duplex=False) for _ in range(ranks)]
    with FaultServer() as server, tempfile.TemporaryDirectory() as folder:
        names = put_dataset(server, Path(folder), count=2 * chunks, per_chunk=2)
        size = (Path(folder) / "dataset" / names[0]).stat().st_size
        arguments = {
            "cache_dir": Path(folder) / "cache",
            "max_cache_bytes": chunks // 2 * size,
            "prefetch": ahead,
            "shuffle": shuffle,
            "shuffle_window": 1,
        }
        processes = [
            context.Process(target=send_part, args=(write, barrier, rank, ranks, EPOCHS, server.url(), arguments))
            for rank, (_, write) in enumerate(ends)
        ]
        for process in processes:
            process.start()
        totals = [sum(read.recv()[1] for read, _ in ends) for _ in range(EPOCHS)]
        for process in processes:
            process.join()
        assert totals[-1] == sum("chunk-" in request.key for request in server.requests)
    return [(after - before) / chunks for before, after in itertools.pairwise([0, *totals])]


def key(number: int) -> ChunkKey:
    return ChunkKey(dataset="be9c", url="", identity=f"chunk-{number}", suffix=".bin", number=number)


def cost(count: int, ranks: int, folder: str) -> dict[str, Any]:
    """Time evictions in a cache of ``count // 2`` chunks of one byte, without their files."""
    cache = open_cache(Path(folder) / "cache", max_bytes=count // 2)
    assert isinstance(cache, SharedCache)
    rows = [(chunk_name(key(number)), number) for number in range(count // 2)]
    cache.member.ledger.write(
        lambda connection: connection.executemany(
            "INSERT INTO chunks (name, url, number, ready, bytes) VALUES (?, '', ?, 1, 1)", rows
        )
    )
    dice = np.random.default_rng(0)
    now, then = dice.permutation(count), dice.permutation(count)
    readers = [cache.plan_reader("be9c") for _ in range(ranks)]
    begin = time.perf_counter()
    for rank, reader in enumerate(readers):
        reader.declare(now[rank::ranks], then[rank::ranks])
    declared, times = time.perf_counter() - begin, []
    for step in range(500):
        for reader in readers:
            reader.reached(step + 1)
        flight = cache.acquire(key(count // 2 + step), hard=True)
        assert isinstance(flight, Flight)
        begin = time.perf_counter()
        assert flight.reserve(1)
        times.append(time.perf_counter() - begin)
        flight.temp.write_bytes(b"x")
        flight.publish(bytes=1, digest="xxh3-64:0")
        cache.release(key(count // 2 + step), hard=True)
    cache.close()
    rest = sorted(times[1:])
    return {
        "chunks": count,
        "readers": ranks,
        "declare_ms": round(declared / ranks * 1e3, 2),
        "first_ms": round(times[0] * 1e3, 1),
        "evict_median_us": round(statistics.median(rest) * 1e6),
        "evict_mean_us": round(statistics.mean(rest) * 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--chunks", type=int, nargs="*", default=[32, 64])
    parser.add_argument("--skip-cost", action="store_true")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for chunks, shuffle, ranks, ahead in itertools.product(options.chunks, (True, False), (1, 4), (0, 3)):
        row: dict[str, Any] = {"chunks": chunks, "shuffle": shuffle, "ranks": ranks, "ahead": ahead}
        for policy in ("clairvoyant", "lru"):
            found = shares(chunks, policy=policy, shuffle=shuffle, ahead=ahead, ranks=ranks)
            row |= {policy: round(statistics.mean(found[1:]), 3), f"{policy}_worst": round(max(found[1:]), 3)}
        rows.append(row)
        _show(row, as_json=options.json)
    for count, ranks in ((1000, 1), (10_000, 4), (100_000, 1), (100_000, 4), (100_000, 32)):
        if not options.skip_cost:
            with tempfile.TemporaryDirectory() as folder:
                rows.append(cost(count, ranks, folder))
            _show(rows[-1], as_json=options.json)
    if options.json:
        print(json.dumps(rows))


def _show(row: dict[str, Any], *, as_json: bool) -> None:
    if not as_json:
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
