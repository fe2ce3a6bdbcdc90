"""How well an epoch is shuffled, on item numbers alone: forebay, its peers where there are any, and torch's sampler.

One dataset of equal chunks whose items are their own numbers, read for real, by one rank without workers, by forebay
and by litdata. Of MosaicML Streaming the function that makes the order is called with the same chunk sizes.
``--litdata`` and ``--mosaicml`` (or ``FOREBAY_TEST_LITDATA`` and ``FOREBAY_TEST_MOSAICML``) each name a Python that has
the package; MosaicML's needs numpy alone (``v/bin/pip install --no-deps mosaicml-streaming numpy``).

Columns, means over the seeds:

* ``mean``, ``median``: how far a sample is from its place in storage order, as a fraction of the dataset. Drawn at
  random over the whole of it, 0.333 and 0.293.
* ``same batch``: samples whose successor in storage order is in the same batch of 64; ``next``: right behind them.
* ``chunks``: chunks that a batch of 64 has samples of.
* ``open``: the most chunks that have some of their samples read and others not, at the border of any two batches: what
  a reader has to keep.

    python tests/benchmarks/bench_shuffle.py [--litdata v/bin/python] [--mosaicml v/bin/python] [--chunks 200]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

import forebay
from forebay.torch import StreamingDataset

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH = 64
COLUMNS = ("mean", "median", "same batch", "next", "chunks", "open")

LITDATA = """
import json, sys
import litdata
folder, seed = sys.argv[1], int(sys.argv[2])
print(json.dumps([int(item) for item in litdata.StreamingDataset(folder, shuffle=True, seed=seed)]))
"""

# The package's own __init__ wants torch and every cloud's SDK, which its orders do not.
MOSAICML = """
import importlib.util, json, pathlib, sys, types
import numpy as np
seed, chunks, each, name, block = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
home = pathlib.Path(importlib.util.find_spec("streaming").origin).parent
for package in ("streaming", "streaming.base"):
    module = sys.modules[package] = types.ModuleType(package)
    module.__path__ = [str(home.joinpath(*package.split(".")[1:]))]
from streaming.base.shuffle import get_shuffle
order = get_shuffle(name, np.full(chunks, each, np.int64), 1, seed, 0, block)
print(json.dumps([int(item) for item in order if item >= 0]))
"""


def ours(folder: Path, seed: int, window: int, partitions: int) -> list[int]:
    """An epoch as a `StreamingDataset` gives it."""
    with StreamingDataset(
        folder, shuffle=True, seed=seed, shuffle_window=window, partitions=partitions, batch_size=BATCH
    ) as dataset:
        return [int(item) for item in dataset]


def theirs(python: str, program: str, *words: object) -> list[int]:
    """An epoch as another package gives it."""
    command = [python, "-W", "ignore", "-c", program, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    order: list[int] = json.loads(done.stdout.splitlines()[-1])
    return order


def measure(order: list[int], each: int) -> dict[str, float]:
    """The columns for one epoch."""
    read: NDArray[np.int64] = np.array(order, np.int64)
    total = len(read)
    assert np.array_equal(np.sort(read), np.arange(total)), "an epoch has each sample once"
    at = np.empty(total, np.int64)
    at[read] = np.arange(total)
    travelled = np.abs(at - np.arange(total)) / total
    batches = [read[begin : begin + BATCH] // each for begin in range(0, total - BATCH + 1, BATCH)]
    by_chunk = at.reshape(-1, each)
    begun, ended = by_chunk.min(axis=1), by_chunk.max(axis=1)
    borders = np.arange(0, total, BATCH)[:, None]
    return {
        "mean": float(travelled.mean()),
        "median": float(np.median(travelled)),
        "same batch": float(np.mean(at[1:] // BATCH == at[:-1] // BATCH)),
        "next": float(np.mean(at[1:] == at[:-1] + 1)),
        "chunks": statistics.fmean(len(np.unique(batch)) for batch in batches),
        "open": int(((begun < borders) & (ended >= borders)).sum(axis=1).max()),
    }


def orders(folder: Path, seed: int, args: argparse.Namespace) -> Iterator[tuple[str, list[int]]]:
    """Name and order of everything that is compared."""
    for partitions in (1, 8):
        for window in (1, 2, 8, 32):
            named = f"forebay, window {window}" + f", {partitions} partitions" * (partitions > 1)
            yield named, ours(folder, seed, window, partitions)
    if args.litdata:
        yield "litdata", theirs(args.litdata, LITDATA, folder, seed)
    if args.mosaicml:
        geometry = (seed, args.chunks, args.each)
        for block in (8 * args.each, 32 * args.each):
            for name in ("py1e", "py1br"):
                named = f"MosaicML {name}, block of {block // args.each} chunks"
                yield named, theirs(args.mosaicml, MOSAICML, *geometry, name, block)
        # What a dataset takes where nobody says otherwise: 4 million samples, divided by the machines.
        yield "MosaicML py1e, as by default", theirs(args.mosaicml, MOSAICML, *geometry, "py1e", 4_000_000)
    drawn = torch.utils.data.RandomSampler(
        range(args.chunks * args.each), generator=torch.Generator().manual_seed(seed)
    )
    yield "torch RandomSampler", list(drawn)


def main() -> None:
    """Measure, and print a table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litdata", default=os.environ.get("FOREBAY_TEST_LITDATA"), help="a Python that has litdata")
    parser.add_argument("--mosaicml", default=os.environ.get("FOREBAY_TEST_MOSAICML"), help="one that has MosaicML's")
    parser.add_argument("--chunks", type=int, default=200)
    parser.add_argument("--each", type=int, default=500, help="samples a chunk")
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "numbers"
        numbers = (f"{number:08}" for number in range(args.chunks * args.each))
        forebay.pack(numbers, folder, chunk_bytes=args.each * 12)  # eight digits and their length
        chunks = json.loads((folder / "index.json").read_text())["chunks"]
        assert [chunk["chunk_size"] for chunk in chunks] == [args.each] * args.chunks
        for seed in range(args.seeds):
            for name, order in orders(folder, seed, args):
                rows.setdefault(name, []).append(measure(order, args.each))
    print(f"| | {' | '.join(COLUMNS)} |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for name, seen in rows.items():
        means = {column: statistics.fmean(row[column] for row in seen) for column in COLUMNS}
        shares = [f"{100 * means[column]:.2f} %" for column in ("same batch", "next")]
        distances = [f"{means[column]:.3f}" for column in ("mean", "median")]
        counts = [f"{means['chunks']:.1f}", f"{means['open']:.0f}"]
        print(f"| {name} | {' | '.join([*distances, *shares, *counts])} |")


if __name__ == "__main__":
    main()
