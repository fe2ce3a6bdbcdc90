"""Items a second from chunks on the local disk, in one process: forebay, and litdata where there is one.

Each measurement is a process of its own: it goes through the dataset once to warm up, then some times more, and keeps
the best; the two sides alternate, and the table gives the medians and their ratio. ``--litdata`` (or
``FOREBAY_TEST_LITDATA``) names a Python that has litdata (``python -m venv v && v/bin/pip install litdata==0.2.76``).

Columns: ``iterate`` is a plain loop, ``shuffled`` a shuffled one with a window of 8 chunks, ``window 1`` one with a
window of 1, which is what litdata does, so it stands against both; ``batch`` is ``ds.get_batch`` of 64 random items of
4 neighbouring chunks (litdata has no call for a batch: 64 single items by number), ``eight`` is 8 random items of one
chunk in one call of its reader, which is what a shuffled batch over 8 chunks is made of (litdata: 8 single items).

Bytes have three lines. litdata 0.2.76 hands out a memoryview of its map, which costs the same for any size, and which
can be neither sent by a worker nor collated; we copy, by default. ``bytes`` makes bytes on both sides, as a worker has
to, ``views`` hands out memoryviews on both sides (``format_options={"bytes_as": "memoryview"}``).

On a machine that others use too, ``--clock cpu`` counts the seconds of the process in place of those on the wall.

    python tests/benchmarks/bench_items.py [--litdata v/bin/python] [--rounds 3] [--clock cpu] [--case bytes2k ...]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
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

COLUMNS = ("iterate", "shuffled", "window 1", "batch", "eight")
TOKENS = 2048
CHUNKS = 16

HARNESS = """
import json, random, sys, time
import numpy as np, torch
folder, kind, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3])
clock = time.process_time if sys.argv[4] == "cpu" else time.perf_counter
np.empty(31 << 20, np.uint8)  # training frees such blocks; without it glibc returns every batch's memory to the system
def best(run, repeats=3):
    run()
    rates = []
    for _ in range(repeats):
        begin = clock()
        count = run()
        rates.append(count / (clock() - begin))
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
def eights(sizes, each):
    rng = random.Random(0)
    return [(chunk, [rng.randrange(size) for _ in range(8)]) for chunk, size in enumerate(sizes) for _ in range(each)]
"""

OURS = (
    HARNESS
    + """
import forebay, pathlib
options = {"block_size": tokens} if tokens else {"bytes_as": "memoryview"} if kind == "views" else None
ds = forebay.open_dataset(folder, format_options=options)
mixed = forebay.open_dataset(folder, format_options=options, shuffle=True, shuffle_window=8)
alike = forebay.open_dataset(folder, format_options=options, shuffle=True, shuffle_window=1)
sizes = ds._index.item_counts.tolist()
plan = batches(len(ds), sizes, 20_000)
def batch():
    for places in plan: items = ds.get_batch(places)
    return 64 * len(plan)
readers = [ds._layout.open_chunk(pathlib.Path(folder) / name, n) for n, name in enumerate(ds._index.names)]
calls = [(readers[chunk], np.array(offsets)) for chunk, offsets in eights(sizes, 100)]
def eight():
    for reader, offsets in calls: items = reader.read_many(offsets)
    return 8 * len(calls)
rows = {"iterate": best(lambda: loop(ds)), "shuffled": best(lambda: loop(mixed))}
rows["window 1"] = best(lambda: loop(alike))
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
make = Sent if kind == "bytes" else litdata.StreamingDataset
ds = make(folder, shuffle=False, **loader)
mixed = make(folder, shuffle=True, **loader)
rows = {"iterate": best(lambda: loop(ds)), "shuffled": best(lambda: loop(mixed))}
rows["window 1"] = rows["shuffled"]
if not tokens:  # random access to its tokens opens a chunk each time: minutes
    chunks = json.load(open(folder + "/index.json"))["chunks"]
    sizes = [chunk["chunk_size"] for chunk in chunks]
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    plan, calls = batches(len(ds), sizes, 640), [[starts[n] + k for k in some] for n, some in eights(sizes, 4)]
    def numbers(plan):
        for places in plan: items = [ds[place] for place in places]
        return len(plan) * len(plan[0])
    rows |= {"batch": best(lambda: numbers(plan), 2), "eight": best(lambda: numbers(calls), 2)}
print(json.dumps(rows))
"""
)


def numbers() -> Iterator[Any]:
    """One int and one float: 24 bytes as stored."""
    for number in range(120_000):
        yield {"index": number, "score": number / 3}


def fields() -> Iterator[Any]:
    """Seven small fields: numbers, text, a small array; 200 bytes."""
    rng = np.random.default_rng(0)
    for number in range(40_000):
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
    yield from _bytes(40_000, 2_000, 2_000)


def bytes10k() -> Iterator[Any]:
    """5 to 15 kB of bytes, as a small JPEG image is, and two numbers."""
    yield from _bytes(20_000, 5_000, 15_000)


def bytes100k() -> Iterator[Any]:
    """100 kB of bytes and two numbers."""
    yield from _bytes(5_000, 100_000, 100_000)


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


#: What each line compares: how each side hands out bytes.
LINES = {"": ("", ""), "bytes": ("", "bytes"), "views": ("views", "")}


def run(python: str, program: str, folder: Path, kind: str, clock: str) -> dict[str, float]:
    """Measure in a fresh process."""
    words = [str(folder), kind, str(TOKENS if folder.name == "tokens" else 0), clock]
    done = subprocess.run([python, "-W", "ignore", "-c", program, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    rows: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return rows


def compare(folder: Path, litdata: str | None, rounds: int, clock: str) -> None:
    """Alternate the sides, then print a line for each comparison: ours, theirs, ratio."""
    names = [""] if not folder.name.startswith("bytes") else list(LINES)
    sides = {("ours", kind): (sys.executable, OURS) for kind in {LINES[name][0] for name in names}}
    if litdata:
        sides |= {("theirs", kind): (litdata, THEIRS) for kind in {LINES[name][1] for name in names}}
    seen: dict[tuple[str, str], list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(rounds):
        for (who, kind), (python, program) in sides.items():
            seen[who, kind].append(run(python, program, folder, kind, clock))

    def median(who: str, kind: str, column: str) -> float | None:
        rates = [rows[column] for rows in seen.get((who, kind), []) if column in rows]
        return statistics.median(rates) if rates else None

    for name in names:
        cells = []
        for column in COLUMNS:
            ours, theirs = median("ours", LINES[name][0], column), median("theirs", LINES[name][1], column)
            versus = f"{'-':>9} {'':6}" if not ours or not theirs else f"{theirs:>9,.0f} x{ours / theirs:<5.1f}"
            cells.append(f"{ours:>9,.0f} {versus}")
        print(f"{folder.name:10}{name:6} {'  '.join(cells)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litdata", default=os.environ.get("FOREBAY_TEST_LITDATA"), help="a Python that has litdata")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--case", action="append", choices=list(CASES))
    args = parser.parse_args()
    heads = [f"{column:>9} {'litdata':>9} ratio " for column in COLUMNS]
    print(f"{'items/s':16} {'  '.join(heads)}")
    with tempfile.TemporaryDirectory() as scratch:
        for case in args.case or CASES:
            whole, folder = Path(scratch) / f"{case}-whole", Path(scratch) / case
            forebay.pack(CASES[case](), whole, tokens=case == "tokens")
            size = sum(path.stat().st_size for path in whole.iterdir())
            shutil.rmtree(whole)
            forebay.pack(CASES[case](), folder, tokens=case == "tokens", chunk_bytes=size // CHUNKS)
            compare(folder, args.litdata, args.rounds, args.clock)
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
