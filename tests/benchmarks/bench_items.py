"""Items a second from chunks that lie on the local disk already: forebay, and litdata where there is one.

Each measurement is a process of its own that goes through the dataset several times and keeps the best; the two
alternate. ``--litdata`` names a Python that has litdata (``python -m venv v && v/bin/pip install litdata==0.2.76``).
Rows: ``iter`` is a plain loop, ``batch`` batches of 64 in storage order, ``shuffled`` batches of 64 in random order,
``one`` single items. litdata has no call for a batch: its ``batch`` is 64 items of its loop kept in a list.

    python tests/benchmarks/bench_items.py [--litdata v/bin/python] [--rounds 3] [--case small ...]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import forebay

ROWS = ("iter", "batch", "shuffled", "one")

HARNESS = """
import json, random, sys, time
import numpy as np, torch
case, folder = sys.argv[1], sys.argv[2]
np.empty(31 << 20, np.uint8)  # training frees such blocks; without it glibc returns every batch's memory to the system
def best(run, repeats=4):
    rates = []
    for _ in range(repeats):
        begin = time.perf_counter()
        count = run()
        rates.append(count / (time.perf_counter() - begin))
    return max(rates)
"""

OURS = (
    HARNESS
    + """
import forebay
block = {"block_size": 1024} if case == "tokens" else None
ds = forebay.open_dataset(folder, format_options=block)
n = len(ds)
order = list(range(n)); random.Random(0).shuffle(order)
def loop():
    count = 0
    for item in ds: count += 1
    return count
def batch(places):
    for first in range(0, n, 64): items = ds.get_batch(places[first:first + 64])
    return n
def one():
    for place in range(0, n, 7): item = ds[place]
    return len(range(0, n, 7))
rows = {"iter": best(loop), "batch": best(lambda: batch(list(range(n)))), "shuffled": best(lambda: batch(order))}
print(json.dumps(rows | {"one": best(one), "version": "forebay"}))
"""
)

THEIRS = (
    HARNESS
    + """
import litdata
loader = {"item_loader": litdata.TokensLoader(block_size=1024)} if case == "tokens" else {}
ds = litdata.StreamingDataset(folder, shuffle=False, **loader)
n = len(ds)
order = list(range(n)); random.Random(0).shuffle(order)
def loop():
    count = 0
    for item in ds: count += 1
    return count
def batch():
    count, items = 0, []
    for item in ds:
        items.append(item)
        if len(items) == 64: count += 64; items = []
    return count + len(items)
def single(places):
    for place in places: item = ds[place]
    return len(places)
rows = {"iter": best(loop), "batch": best(batch), "version": "litdata " + litdata.__version__}
if case != "tokens":  # random access to its tokens is not measured: it opens a chunk each time
    rows |= {"shuffled": best(lambda: single(order[:4000]), 2), "one": best(lambda: single(list(range(0, n, 7))))}
print(json.dumps(rows))
"""
)


def small() -> Iterator[Any]:
    """2 kB of bytes and two numbers."""
    rng = np.random.default_rng(0)
    for number in range(60_000):
        yield {"index": number, "data": rng.bytes(2000), "label": number % 10}


def mixed() -> Iterator[Any]:
    """Numbers, text and a small array, 150 bytes."""
    rng = np.random.default_rng(0)
    for number in range(60_000):
        vector = rng.normal(size=(3, 4)).astype(np.float32)
        yield {"index": number, "name": f"item {number}", "vec": vector, "score": number / 3, "ok": True}


def tensors() -> Iterator[Any]:
    """A small shaped tensor and a flat one."""
    rng = np.random.default_rng(0)
    for _ in range(40_000):
        yield {"x": torch.from_numpy(rng.normal(size=(16, 16)).astype(np.float32)), "y": torch.arange(10)}


def large() -> Iterator[Any]:
    """100 kB as a tensor."""
    rng = np.random.default_rng(0)
    for number in range(3_000):
        yield {"index": number, "x": torch.from_numpy(rng.integers(0, 255, (100_000,), dtype=np.uint8))}


def blob() -> Iterator[Any]:
    """100 kB as bytes; litdata 0.2.76 gives a memoryview, which no worker can send, we give bytes."""
    rng = np.random.default_rng(0)
    for number in range(3_000):
        yield {"index": number, "x": rng.bytes(100_000)}


def tokens() -> Iterator[Any]:
    """Blocks of 1,024 int64."""
    rng = np.random.default_rng(0)
    for _ in range(2_000):
        yield torch.from_numpy(rng.integers(0, 50_000, 10_000))


CASES: dict[str, Callable[[], Iterator[Any]]] = {
    make.__name__: make for make in (small, mixed, tensors, large, blob, tokens)
}


def run(python: str, program: str, case: str, folder: Path) -> dict[str, Any]:
    """Measure in a fresh process."""
    done = subprocess.run(
        [python, "-W", "ignore", "-c", program, case, str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    rows: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litdata", help="a Python that has litdata")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", action="append", choices=sorted(CASES))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for case in args.case or CASES:
            folder = Path(scratch) / case
            forebay.pack(CASES[case](), folder, tokens=case == "tokens")
            rounds: dict[str, list[dict[str, Any]]] = {}
            for _ in range(args.rounds):
                sides = [(sys.executable, OURS), *([(args.litdata, THEIRS)] if args.litdata else [])]
                for python, program in sides:
                    seen = run(python, program, case, folder)
                    rounds.setdefault(seen["version"], []).append(seen)
            for version, all_seen in rounds.items():
                cells = [
                    f"{row} {statistics.median(seen[row] for seen in all_seen):>10,.0f}"
                    for row in ROWS
                    if row in all_seen[0]
                ]
                print(f"{case:8} {version:15} items/s: {'  '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
