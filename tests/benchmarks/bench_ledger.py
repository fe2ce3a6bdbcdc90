"""How fast the ledger is: acquire+release pairs with 1, 4 and 32 processes, and opening a cache of 100,000 chunks.

Run it by itself: ``python tests/benchmarks/bench_ledger.py [--json]``. It prints, for each number of processes, pairs a
second over all of them, and how long one call took: median, 99 %, longest.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from forebay._cache import ChunkKey, Flight, Ready, open_cache
from forebay._cache._layout import Layout, chunk_name

CHUNKS = 64


def key(number: int) -> ChunkKey:
    return ChunkKey(dataset="be9c", url=f"http://host/chunk-{number}", identity=f"chunk-{number}", suffix=".bin")


def fill(directory: Path, count: int) -> None:
    cache = open_cache(directory, max_bytes=1 << 40)
    for number in range(count):
        flight = cache.acquire(key(number), hard=True)
        assert isinstance(flight, Flight)
        assert flight.reserve(1)
        flight.temp.write_bytes(b"x")
        flight.publish(bytes=1, digest="xxh3-64:0")
        cache.release(key(number), hard=True)
    cache.close()


def one_process(directory: Path, seconds: float, start: Any, results: Any) -> None:
    cache = open_cache(directory, max_bytes=None)
    keys, latencies = [key(number) for number in range(CHUNKS)], []
    start.wait()
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        chunk = random.choice(keys)
        assert isinstance(cache.acquire(chunk, hard=True), Ready)
        middle = time.perf_counter()
        cache.release(chunk, hard=True)
        latencies += [middle - begin, time.perf_counter() - middle]
    results.put(latencies)
    cache.close()


def pairs(directory: Path, processes: int, seconds: float) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(processes), context.Queue()
    running = [
        context.Process(target=one_process, args=(directory, seconds, start, results), daemon=True)
        for _ in range(processes)
    ]
    for process in running:
        process.start()
    latencies = sorted(latency for _ in running for latency in results.get(timeout=120))
    for process in running:
        process.join()
    return {
        "processes": processes,
        "pairs_per_second": round(len(latencies) / 2 / seconds),
        "median_us": round(latencies[len(latencies) // 2] * 1e6, 1),
        "p99_ms": round(latencies[int(len(latencies) * 0.99)] * 1e3, 2),
        "max_ms": round(latencies[-1] * 1e3, 1),
    }


def opening(directory: Path, count: int) -> dict[str, float]:
    """Make a big cache the fast way, files first, and let the ledger take them in; then open it again."""
    cache = open_cache(directory, max_bytes=1 << 40)
    cache.close()
    layout = Layout(directory)
    layout.make_dataset_folder(chunk_name(key(0)))
    for number in range(count):
        Path(layout.final(chunk_name(key(number)))).write_bytes(b"x")
    begin = time.perf_counter()
    cache = open_cache(directory, max_bytes=None)
    adopted = time.perf_counter() - begin
    assert cache.info().chunks == count
    cache.close()
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        cache = open_cache(directory, max_bytes=None)
        times.append(time.perf_counter() - begin)
        cache.close()
    return {"chunks": count, "rebuild_s": round(adopted, 3), "open_s": round(sorted(times)[1], 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 4, 32])
    parser.add_argument("--chunks", type=int, default=100_000)
    options = parser.parse_args()
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder) / "pairs", CHUNKS)
        rows += [pairs(Path(folder) / "pairs", count, options.seconds) for count in options.processes]
        rows.append(opening(Path(folder) / "big", options.chunks))
    if options.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print("  ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
