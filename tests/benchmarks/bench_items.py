"""Items a second from chunks that lie on the local disk already, in one process: forebay, and litdata where there is one.

Each measurement is a process of its own: it goes through the dataset once to warm up, then some times more, and keeps
the best; the two sides alternate, and the table gives the medians and their ratio. ``--litdata`` (or
``FOREBAY_TEST_LITDATA``) names a Python that has litdata (``python -m venv v && v/bin/pip install litdata==0.2.76``).

Columns: ``iterate`` is a plain loop, ``shuffled`` a shuffled one (ours with a window of 8 chunks; litdata shuffles
chunks, then the items of one chunk, which is our window of 1), ``batch`` is ``ds.get_batch`` of 64 random items out of
4 neighbouring chunks (litdata has no call for a batch: 64 single items by number), ``eight`` is 8 random items of one
chunk in one call of its reader, which is what a shuffled batch over 8 chunks is made of (litdata: ``batch`` again).
For bytes there is a second line: litdata hands out a memoryview, which can be neither sent by a worker nor collated,
so there its side makes bytes of it, as every user of a worker has to.

    python tests/benchmarks/bench_items.py [--litdata v/bin/python] [--rounds 3] [--case bytes2k ...]
"""

from __future__ import annotations

import argparse
import json
import os
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

COLUMNS = ("iterate", "shuffled", "batch", "eight")
TOKENS = 2048
CHUNKS = 16

HARNESS = """
import json, random, sys, time
import numpy as np, torch
case, folder, as_bytes, tokens = sys.argv[1], sys.argv[2], sys.argv[3] == "bytes", int(sys.argv[4])
np.empty(31 << 20, np.uint8)  # training frees such blocks; without it glibc returns every batch's memory to the system
def best(run, repeats=4):
    run()
    rates = []
    for _ in range(repeats):
        begin = time.perf_counter()
        count = run()
        rates.append(count / (time.perf_counter() - begin))
    return max(rates)
def loop(ds):
    count = 0
    for item in ds: count += 1
    return count
def batches(n, sizes, most):
    "Batches of 64 random items, each out of 4 neighbouring chunks."
    rng, starts, made = random.Random(0), [0], []
    for size in sizes: starts.append(starts[-1] + size)
    first = 0
    while len(made) * 64 < min(n, most):
        low, high = starts[first], starts[min(first + 4, len(sizes))]
        for _ in range(max((high - low) // 64, 1)): made.append([rng.randrange(low, high) for _ in range(64)])
        first = (first + 4) % len(sizes)
    return made[:most // 64]
"""

OURS = (
    HARNESS
    + """
import forebay, pathlib
options = {"block_size": tokens} if tokens else None
ds = forebay.open_dataset(folder, format_options=options)
mixed = forebay.open_dataset(folder, format_options=options, shuffle=True, shuffle_window=8)
sizes = ds._index.item_counts.tolist()
plan = batches(len(ds), sizes, 20_000)
def batch():
    for places in plan: items = ds.get_batch(places)
    return 64 * len(plan)
readers = [ds._layout.open_chunk(pathlib.Path(folder) / name, n) for n, name in enumerate(ds._index.names)]
rng = np.random.default_rng(0)
calls = [(reader, rng.integers(0, size, 8)) for reader, size in zip(readers, sizes) if size for _ in range(100)]
def eight():
    for reader, offsets in calls: items = reader.read_many(offsets)
    return 8 * len(calls)
rows = {"iterate": best(lambda: loop(ds)), "shuffled": best(lambda: loop(mixed))}
print(json.dumps(rows | {"batch": best(batch), "eight": best(eight)}))
"""
)

THEIRS = (
    HARNESS
    + """
import litdata
loader = {"item_loader": litdata.TokensLoader(block_size=tokens)} if tokens else {}
def as_sent(item):
    if type(item) is dict: item["data"] = bytes(item["data"])
    return item
class Sent(litdata.StreamingDataset):
    def __getitem__(self, index): return as_sent(super().__getitem__(index))
kind = Sent if as_bytes else litdata.StreamingDataset
ds = kind(folder, shuffle=False, **loader)
mixed = kind(folder, shuffle=True, **loader)
rows = {"iterate": best(lambda: loop(ds)), "shuffled": best(lambda: loop(mixed))}
if not tokens:  # random access to its tokens opens a chunk each time: minutes
    chunks = json.load(open(folder + "/index.json"))["chunks"]
    plan = batches(len(ds), [chunk["chunk_size"] for chunk in chunks], 4_000)
    def batch():
        for places in plan: items = [ds[place] for place in places]
        return 64 * len(plan)
    rows["batch"] = rows["eight"] = best(batch, 2)
print(json.dumps(rows))
"""
)


def numbers() -> Iterator[Any]:
    """One int and one float: 24 bytes as stored."""
    for number in range(240_000):
        yield {"index": number, "score": number / 3}


def fields() -> Iterator[Any]:
    """Seven small fields: numbers, text, a small array; 200 bytes."""
    rng = np.random.default_rng(0)
    for number in range(80_000):
        vector = rng.normal(size=(3, 4)).astype(np.float32)
        text = f"sample {number} of the set, with a caption of a few words"
        yield {
            "index": number, "name": f"item {number}", "text": text, "vec": vector, "score": number / 3, "ok": True,
            "label": number % 10,
        }  # fmt: skip


def _bytes(count: int, low: int, high: int) -> Iterator[Any]:
    rng = np.random.default_rng(0)
    pool = rng.bytes(1 << 20) * 2
    for number in range(count):
        begin, size = int(rng.integers(0, 1 << 20)), int(rng.integers(low, high + 1))
        yield {"index": number, "data": pool[begin : begin + size], "label": number % 10}


def bytes2k() -> Iterator[Any]:
    """2 kB of bytes and two numbers."""
    yield from _bytes(60_000, 2_000, 2_000)


def bytes10k() -> Iterator[Any]:
    """5 to 15 kB of bytes, as a small JPEG image is, and two numbers."""
    yield from _bytes(20_000, 5_000, 15_000)


def bytes100k() -> Iterator[Any]:
    """100 kB of bytes and two numbers."""
    yield from _bytes(3_000, 100_000, 100_000)


def vectors() -> Iterator[Any]:
    """A tensor of one dimension: 1,024 float32."""
    rng = np.random.default_rng(0)
    for _ in range(40_000):
        yield torch.from_numpy(rng.random(1024, dtype=np.float32))


def images() -> Iterator[Any]:
    """A tensor with a shape, 16 kB, and a label."""
    rng = np.random.default_rng(0)
    for number in range(10_000):
        yield {"image": torch.from_numpy(rng.integers(0, 255, (3, 72, 72), dtype=np.uint8)), "label": number % 10}


def tokens() -> Iterator[Any]:
    """Blocks of 2,048 int64 out of documents of 10,000."""
    rng = np.random.default_rng(0)
    for _ in range(3_000):
        yield torch.from_numpy(rng.integers(0, 50_000, 10_000))


CASES: dict[str, Callable[[], Iterator[Any]]] = {
    make.__name__: make for make in (numbers, fields, bytes2k, bytes10k, bytes100k, vectors, images, tokens)
}


def run(python: str, program: str, case: str, folder: Path, kind: str) -> dict[str, float]:
    """Measure in a fresh process."""
    words = [case, str(folder), kind, str(TOKENS if case == "tokens" else 0)]
    done = subprocess.run([python, "-W", "ignore", "-c", program, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    rows: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return rows


def compare(case: str, folder: Path, litdata: str | None, rounds: int) -> None:
    """Alternate the sides and print a line for each."""
    sides = {"forebay": (sys.executable, OURS, "")}
    if litdata:
        sides["litdata"] = (litdata, THEIRS, "")
        if case.startswith("bytes"):
            sides["litdata as bytes"] = (litdata, THEIRS, "bytes")
    seen: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, (python, program, kind) in sides.items():
            seen[side].append(run(python, program, case, folder, kind))
    medians = {
        side: {column: statistics.median(rows[column] for rows in all_rows) for column in all_rows[0]}
        for side, all_rows in seen.items()
    }
    for side, rates in medians.items():
        cells = []
        for column in COLUMNS:
            cell = f"{rates[column]:>11,.0f}" if column in rates else f"{'-':>11}"
            ratio = f" x{medians['forebay'][column] / rates[column]:<5.1f}" if column in rates else " " * 7
            cells.append(cell + (ratio if side != "forebay" else " " * 7))
        print(f"{case:10} {side:17} {' '.join(cells)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litdata", default=os.environ.get("FOREBAY_TEST_LITDATA"), help="a Python that has litdata")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", action="append", choices=list(CASES))
    args = parser.parse_args()
    print(f"{'items/s':28} {' '.join(f'{column:>11}       ' for column in COLUMNS)}")
    with tempfile.TemporaryDirectory() as scratch:
        for case in args.case or CASES:
            whole, folder = Path(scratch) / f"{case}-whole", Path(scratch) / case
            forebay.pack(CASES[case](), whole, tokens=case == "tokens")
            size = sum(path.stat().st_size for path in whole.iterdir())
            forebay.pack(CASES[case](), folder, tokens=case == "tokens", chunk_bytes=size // CHUNKS)
            compare(case, folder, args.litdata, args.rounds)


if __name__ == "__main__":
    main()
