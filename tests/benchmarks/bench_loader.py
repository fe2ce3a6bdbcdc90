"""`StreamingDataLoader` beside litdata's of the same name and a bare ``DataLoader`` over ready items in memory.

Each measurement is a process of its own; the sides alternate, and the tables give medians, in parentheses forebay's
ratio to the side (above 1 it is the quicker one). ``--litdata`` (or ``FOREBAY_TEST_LITDATA``) names a Python that has
litdata (``python -m venv v && v/bin/pip install litdata==0.2.76``).

* ``rates``: items a second of later epochs, from chunks on the local disk, shuffled, batches of 64, workers persistent,
  from the first batch on. ``forebay 1`` has a shuffle window of one chunk, which is what litdata does; ``bare`` has
  nothing to read or decode, and is what torch's loader and the collating cost by themselves.
* ``latency``: seconds to the first batch. ``process`` counts from before the interpreter starts, ``imported`` from
  behind the imports, ``iter`` from the call of ``iter``, ``again`` from the call of it for another epoch. Workers start
  as each package has them start: a preloaded fork server here, ``fork`` in litdata.
* ``store``: MB/s and the first batch of a first epoch, start included, from nginx near and far (`stores.py`), beside
  bare obstore; litdata reads the same files as an S3 bucket.
* ``timing``: what ``timing=True`` adds to a batch, in process time of all processes, where a batch is 64 items of
  10 kB, collated: the least of many epochs in turns, and the median of what an epoch with it took more than the one
  without it beside it.

    python tests/benchmarks/bench_loader.py [rates latency store timing] [--litdata v/bin/python] [--rounds 3]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import forebay

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.bench_items import bytes10k, bytes100k, fields
from benchmarks.bench_stream import LIMIT
from benchmarks.stores import stores

BATCH = 64

HARNESS = """
import json, os, sys, time
task, spawned, where, workers, collate, clock, cache = sys.argv[1:]
workers, spawned = int(workers), float(spawned)
options = {"batch_size": 64, "num_workers": workers}
if collate == "list": options["collate_fn"] = list
if workers and task == "rates": options["persistent_workers"] = True
tick = time.process_time if clock == "cpu" else time.perf_counter
def size(batch): return len(batch) if type(batch) is list else len(batch["index"])
def rate(loader):
    batches = iter(loader)
    next(batches)
    begin, count = tick(), 0
    for batch in batches: count += size(batch)
    return count / (tick() - begin)
def read(make):
    imported = time.time()
    loader = make(where)
    if task == "rates":
        rate(loader)
        return {"rate": max(rate(loader) for _ in range(2))}
    made = time.time()
    batches = iter(loader)
    count = size(next(batches))
    first = time.time()
    if task == "store":
        for batch in batches: count += size(batch)
        return {"items": count / (time.time() - imported), "first": first - imported}
    for batch in batches: pass
    begin = time.time()
    next(iter(loader))
    again = time.time() - begin
    return {"process": first - spawned, "imported": first - imported, "iter": first - made, "again": again}
"""

OURS = (
    HARNESS
    + """
from forebay.torch import StreamingDataset, StreamingDataLoader
def make(where):
    dataset = StreamingDataset(where, shuffle=task != "store", shuffle_window={window}, cache_dir=cache)
    return StreamingDataLoader(dataset, **options)
print(json.dumps(read(make)))
"""
)

LITDATA = (
    HARNESS
    + """
import litdata
if where.startswith("http"):
    from litdata.streaming import downloader
    downloader._OBSTORE_CLIENT_OPTIONS = {**downloader._OBSTORE_CLIENT_OPTIONS, "allow_http": True}
class Sent(litdata.StreamingDataset):
    "No worker can send the views that it hands out for bytes, and torch waits for them for ever."
    def __getitem__(self, index):
        item = super().__getitem__(index)
        if type(item.get("data")) is memoryview: item["data"] = bytes(item["data"])
        return item
def make(where):
    keys, more = {"aws_access_key_id": "any", "aws_secret_access_key": "any"}, {}
    if where.startswith("http"):
        base, _, name = where.rpartition("/")
        more = {"storage_options": {**keys, "endpoint_url": base}, "cache_dir": cache, "max_cache_size": "64GB"}
        where = "s3://" + name
    return litdata.StreamingDataLoader(Sent(where, shuffle=task != "store", **more), **options)
print(json.dumps(read(make)))
"""
)

BARE = (
    HARNESS
    + """
import forebay, torch
def make(where):
    items = list(forebay.open_dataset(where))
    how = {"multiprocessing_context": "fork"} if workers else {}
    return torch.utils.data.DataLoader(items, shuffle=True, **how, **options)
print(json.dumps(read(make)))
"""
)

TIMING = (
    HARNESS
    + """
import multiprocessing, pathlib, statistics
from forebay.torch import StreamingDataset, StreamingDataLoader
def used():
    "Nanoseconds that this process and its workers ran; while a worker lives, getrusage does not know of it."
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    threads = [thread for pid in pids for thread in pathlib.Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)
dataset, seen = StreamingDataset(where, shuffle=True), {}
if workers: options |= {"multiprocessing_context": "fork", "persistent_workers": True}
loaders = {timing: StreamingDataLoader(dataset, timing=timing, **options) for timing in (True, False)}
for turn in range(1 + int(clock)):
    for timing, loader in loaders.items():
        batches = iter(loader)
        next(batches)
        begin, count = used(), 0
        for batch in batches: count += 1
        if turn: seen.setdefault(timing, []).append((used() - begin) / count / 1000)
adds = statistics.median(on / off for on, off in zip(seen[True], seen[False])) - 1
print(json.dumps({"on": min(seen[True]), "off": min(seen[False]), "adds": adds}))
"""
)


def _tensors(count: int, floats: int) -> Iterator[Any]:
    rng = np.random.default_rng(0)
    pool = torch.from_numpy(rng.random(floats * 8, dtype=np.float32))
    for number in range(count):
        begin = int(rng.integers(0, floats * 7))
        yield {"index": number, "data": pool[begin : begin + floats].clone(), "label": number % 10}


#: Items, and how many of them there are.
CASES: dict[str, tuple[Callable[[], Iterator[Any]], int]] = {
    "200 B": (lambda: itertools.islice(fields(), 20_000), 20_000),
    "2 kB": (lambda: _tensors(20_000, 500), 20_000),
    "100 kB": (lambda: _tensors(1_600, 25_000), 1_600),
    "10 kB bytes": (lambda: itertools.islice(bytes10k(), 10_000), 10_000),
    "100 kB bytes": (lambda: itertools.islice(bytes100k(), 1_600), 1_600),
}


#: Those whose items are tensors.
TENSORS = ("2 kB", "100 kB")


def run(side: tuple[str, str], task: str, where: str, *words: object) -> dict[str, float]:
    """Measure in a process of its own."""
    python, program = side
    command = [python, "-W", "ignore", "-c", program, task, str(time.time()), where, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        raise SystemExit(done.stderr)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def compare(
    sides: dict[str, tuple[str, str]], rounds: int, task: str, where: str, *words: object
) -> dict[str, dict[str, float]]:
    """The medians of each side, in turns."""
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            with tempfile.TemporaryDirectory(dir="/dev/shm") as cache:
                seen[name].append(run(side, task, where, *words, cache))
    return {
        name: {key: statistics.median(result[key] for result in results) for key in results[0]}
        for name, results in seen.items()
    }


def pack(items: Iterator[Any], folder: Path, chunks: int) -> Path:
    """Pack some chunks of about equal size."""
    whole = folder.with_name("whole")
    ready = list(items)
    forebay.pack(iter(ready), whole)
    size = sum(path.stat().st_size for path in whole.glob("*.bin"))
    shutil.rmtree(whole)
    forebay.pack(iter(ready), folder, chunk_bytes=max(size // chunks, 1))
    return folder


def rates(sides: dict[str, tuple[str, str]], scratch: Path, args: argparse.Namespace) -> None:
    """Items a second of cached epochs."""
    print(f"\n| items/s | {' | '.join(sides)} | MB/s |\n|{'---|' * (len(sides) + 2)}")
    for name in args.case or CASES:
        make, count = CASES[name]
        folder = pack(make(), scratch / name.replace(" ", ""), 20)
        mean = sum(path.stat().st_size for path in folder.glob("*.bin")) / count
        for workers in args.workers:
            # A list of tensors from torch's own workers is a descriptor each, and soon "too many open files".
            for collate in ("default",) if workers and name in TENSORS else ("default", "list"):
                clock = args.clock if workers == 0 else "wall"
                found = compare(sides, args.rounds, "rates", str(folder), workers, collate, clock)
                own = found["forebay"]["rate"]
                cells = [f"{row['rate']:,.0f} ({own / row['rate']:.2f})" for row in found.values()]
                label = f"{name}, {workers} workers, {collate}"
                print(f"| {label} | {' | '.join(cells)} | {own * mean / 1e6:,.0f} |", flush=True)
        shutil.rmtree(folder)


def latency(sides: dict[str, tuple[str, str]], scratch: Path, args: argparse.Namespace) -> None:
    """Seconds to the first batch."""
    folder = pack(_tensors(4_000, 500), scratch / "latency", 20)
    columns = ("process", "imported", "iter", "again")
    print(f"\n| s to the first batch | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
    for workers in (0, 1, 2):
        found = compare(sides, args.rounds, "latency", str(folder), workers, "default", "wall")
        for name, row in found.items():
            cells = " | ".join(f"{row[column]:.3f}" for column in columns)
            print(f"| {name}, {workers} workers | {cells} |", flush=True)
    shutil.rmtree(folder)


def store(sides: dict[str, tuple[str, str]], scratch: Path, args: argparse.Namespace) -> None:
    """MB/s of a first epoch."""
    folder, floats = scratch / "big", 25_000
    count = (args.mib << 20) // (floats * 4)
    forebay.pack(_tensors(count, floats), folder, chunk_bytes="64MiB")
    names = ",".join(path.name for path in folder.glob("*.bin"))
    print(f"\n| MB/s (first batch, s) | limit | {' | '.join(sides)} |\n|{'---|' * (len(sides) + 2)}")
    with stores(folder.parent) as served:
        for where in ("far", "near"):
            url = f"{getattr(served, where)}/{folder.name}"
            limits = []
            for _ in range(args.rounds):
                with tempfile.TemporaryDirectory(dir="/dev/shm") as target:
                    command = [sys.executable, "-c", LIMIT, url, names, target, ""]
                    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
                    limits.append(result["bytes"] / result["seconds"] / 1e6)
            for workers in (0, 2):
                found = compare(sides, args.rounds, "store", url, workers, "default", "wall")
                cells = [f"{row['items'] * floats * 4 / 1e6:,.0f} ({row['first']:.2f})" for row in found.values()]
                cells = [f"{statistics.median(limits):,.0f}", *cells]
                print(f"| {where} big, {workers} workers | {' | '.join(cells)} |", flush=True)
    shutil.rmtree(folder)


def timing(sides: dict[str, tuple[str, str]], scratch: Path, args: argparse.Namespace) -> None:
    """What the stages cost."""
    folder = pack(_tensors(6_400, 2_500), scratch / "timing", 20)
    print("\n| µs of process time a batch | timing=False | timing=True | adds |\n|---|---|---|---|")
    for workers in (0, 2):
        row = run((sys.executable, TIMING), "timing", str(folder), workers, "default", 10 * args.rounds, "")
        print(f"| {workers} workers | {row['off']:.1f} | {row['on']:.1f} | {row['adds']:.2%} |", flush=True)
    shutil.rmtree(folder)


def main() -> None:
    """Measure, and print tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = {task.__name__: task for task in (rates, latency, store, timing)}
    parser.add_argument("tasks", nargs="*", help=f"any of {', '.join(tasks)}; all where none is named")
    parser.add_argument("--litdata", default=os.environ.get("FOREBAY_TEST_LITDATA"), help="a Python that has litdata")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", action="append", choices=list(CASES), help="of `rates`")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="numbers of them for `rates`")
    parser.add_argument("--mib", type=int, default=1536, help="size of the dataset of `store`")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="of the rates without workers")
    args = parser.parse_args()
    sides = {name: (sys.executable, OURS.replace("{window}", window)) for name, window in WINDOWS.items()}
    if args.litdata:
        sides["litdata"] = (args.litdata, LITDATA)
    scratch = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        for name in args.tasks or tasks:
            those = dict(sides) if name == "rates" else {side: sides[side] for side in sides if side != "forebay 1"}
            if name == "rates":
                those["bare"] = (sys.executable, BARE)
            tasks[name](those, scratch, args)
    finally:
        shutil.rmtree(scratch)


WINDOWS = {"forebay": "8", "forebay 1": "1"}


if __name__ == "__main__":
    main()
