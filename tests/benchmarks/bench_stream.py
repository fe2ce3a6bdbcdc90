"""Streaming throughput against the limit, side by side in one run.

The limit is bare obstore: 16 GETs in flight, each body streamed in 8 MiB pieces to the same tmpfs, and no more. The
product opens the dataset, reads every item and counts its bytes. Each measurement is a process of its own with a fresh
cache; the two alternate, so that a noisy moment hits both.

    python tests/benchmarks/bench_stream.py [--mib 2048] [--rounds 3] [--store near|far|both] [--case big|zstd|small]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.stores import stores

LIMIT = """
import asyncio, json, os, resource, sys, time
import obstore
from obstore.store import HTTPStore
url, names, target, extra = sys.argv[1], sys.argv[2].split(","), sys.argv[3], None
async def one(store, name, gate):
    async with gate:
        response = await obstore.get_async(store, name)
        with open(os.path.join(target, name), "wb", buffering=0) as file:
            async for piece in response.stream(min_chunk_size=8 << 20):
                file.write(piece)
async def main():
    store = HTTPStore.from_url(url, client_options={"allow_http": True})
    gate = asyncio.Semaphore(16)
    begin = time.perf_counter()
    await asyncio.gather(*[one(store, name, gate) for name in names])
    passed = time.perf_counter() - begin
    await asyncio.sleep(0.05)
    return passed
passed = asyncio.run(main())
size = sum(os.path.getsize(os.path.join(target, name)) for name in names)
usage = resource.getrusage(resource.RUSAGE_SELF)
cpu, rss = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
print(json.dumps({"seconds": passed, "bytes": size, "cpu": cpu, "rss": rss}))
"""

PRODUCT = """
import json, resource, sys, time
import forebay, obstore
import forebay_http._downloader
url, cache, prefetch = sys.argv[1], sys.argv[3], sys.argv[4]
forebay.open_dataset  # resolve the lazy name, as a program that has imported it
from forebay._registry import resolve
resolve(url)
begin = time.perf_counter()
first = None
count = size = 0
with forebay.open_dataset(url, cache_dir=cache, max_cache_bytes="64GiB") as ds:
    for item in ds:
        if first is None:
            first = time.perf_counter() - begin
        count += 1
        size += len(item["blob"])
    passed = time.perf_counter() - begin
    stats = ds.stats().to_dict()
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"seconds": passed, "first": first, "items": count, "bytes": stats["bytes_fetched"],
    "cpu": usage.ru_utime + usage.ru_stime, "rss": usage.ru_maxrss / 1024, "requests": stats["requests"],
    "stages": {k: round(v["total"], 3) for k, v in stats["stages"].items()}}))
"""

CASES = {"big": (64 << 20, 100_000, None), "small": (64 << 20, 2_000, None), "zstd": (64 << 20, 100_000, "zstd")}


def make(root: Path, case: str, total: int) -> list[str]:
    """Pack a dataset of ``total`` bytes and return its chunks' names."""
    import numpy as np

    import forebay

    chunk_bytes, item_bytes, compression = CASES[case]
    block = np.random.default_rng(0).integers(0, 256 if compression is None else 32, item_bytes, np.uint8).tobytes()
    items = ({"index": i, "blob": block} for i in range(total // item_bytes))
    forebay.pack(items, str(root / case), chunk_bytes=chunk_bytes, compression=compression)
    index = json.loads((root / case / "index.json").read_text())
    return [chunk["filename"] for chunk in index["chunks"]]


def run(code: str, *args: str) -> dict[str, float]:
    """Run a measurement in a process and a directory of its own."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as target:
        done = subprocess.run(
            [sys.executable, "-c", code, args[0], args[1], target, *args[2:]],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=600,
        )
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", choices=["near", "far", "both"], default="both")
    parser.add_argument("--case", choices=sorted(CASES), default="big")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        names = make(root, options.case, options.mib << 20)
        with stores(root) as served:
            for store in ("near", "far") if options.store == "both" else (options.store,):
                url = f"{getattr(served, store)}/{options.case}"
                limits, products = [], []
                for _ in range(options.rounds):
                    limits.append(run(LIMIT, url, ",".join(names)))
                    products.append(run(PRODUCT, url, "", "auto"))
                report(store, limits, products)
    finally:
        shutil.rmtree(root)


def report(store: str, limits: list[dict[str, float]], products: list[dict[str, float]]) -> None:
    """Print the medians and their ratio."""

    def rate(results: list[dict[str, float]]) -> float:
        return statistics.median(result["bytes"] / result["seconds"] / 1e6 for result in results)

    def median(results: list[dict[str, float]], name: str) -> float:
        return statistics.median(result[name] for result in results)

    print(f"{store}: limit {rate(limits):.0f} MB/s, forebay {rate(products):.0f} MB/s,", end=" ")
    print(f"ratio {rate(products) / rate(limits):.2f}, first item {median(products, 'first'):.3f} s,", end=" ")
    print(f"CPU {median(limits, 'cpu'):.1f} / {median(products, 'cpu'):.1f} s,", end=" ")
    print(f"peak RSS {median(limits, 'rss'):.0f} / {median(products, 'rss'):.0f} MiB,", end=" ")
    print(f"requests {median(products, 'requests'):.0f}; stages {products[-1]['stages']}")


if __name__ == "__main__":
    main()
