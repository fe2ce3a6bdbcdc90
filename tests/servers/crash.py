"""Readers that are killed, and the next ones: one cache directory through many rounds, looked at after each.

A campaign starts reader processes on a slow, faulty server, kills some of them at random moments, lets the others end,
and starts the next run. What must never be seen, it raises as a `Violation` that names the seed and the round.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import random
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import forebay
from forebay.exceptions import ForebayError
from forebay.testing import Fault, FaultServer

__all__ = ["CHUNK_BYTES", "ITEMS", "Campaign", "Job", "Reader", "Violation", "items_of", "put_random_dataset", "serve"]

ITEMS, PER_CHUNK, ITEM_BYTES = 40, 4, 4000
CHUNK_BYTES = PER_CHUNK * (ITEM_BYTES + 40) + 60
PART_SIZE = 5000
#: What a reader would import late: how long that takes on a busy machine is not what is measured here.
PRELOAD = [
    "filelock",
    "forebay._codecs.zstd",
    "forebay._formats.litdata",
    "forebay._open",
    "forebay.testing",
    "forebay_http._downloader",
    "forebay_http._obstore_driver",
    "servers.crash",
]
#: Seconds in which every round has to end, and in which the next run has to give its first item.
DEADLINE, NEXT_RUN = 40.0, 1.0


class Violation(AssertionError):
    """The cache broke a promise."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one reader process does."""

    url: str
    cache_dir: str
    budget: int
    expected: str
    prefetch: int = 2
    epochs: int = 2
    pace: float = 0.0
    most: int = ITEMS
    log: str | None = None


def items_of(name: str, count: int = ITEMS, size: int = ITEM_BYTES) -> list[dict[str, Any]]:
    """Items whose bytes do not compress, different in each dataset."""
    return [{"index": i, "blob": random.Random(f"{name}/{i}").randbytes(size)} for i in range(count)]


def put_random_dataset(server: FaultServer, folder: Path, name: str, compression: str | None) -> list[str]:
    """Pack the items of ``name``, have the server hold them below ``name/``, and return the keys of the chunks."""
    forebay.pack(items_of(name), folder / name, chunk_bytes=CHUNK_BYTES, compression=compression)
    for file in (folder / name).iterdir():
        server.put(f"{name}/{file.name}", file.read_bytes())
    return [f"{name}/{file.name}" for file in (folder / name).iterdir() if file.name.startswith("chunk-")]


def serve(job: Job, told: Connection) -> None:
    """A reader process: read, compare each item, tell how it went; anything but 0 is a violation."""
    # Python writes and removes a file to find out where temporaries go: a kill at that moment leaves it behind.
    tempfile.tempdir = str(Path(job.cache_dir).parent)
    os.environ.update(FOREBAY_PREFETCH_MIN="0", FOREBAY_WAIT_TIMEOUT="20")
    if job.log is not None:
        faulthandler.dump_traceback_later(DEADLINE * 0.8, file=open(job.log, "w"))  # noqa: SIM115 - the dump comes later
    expected = items_of(job.expected)
    begin = time.monotonic()
    try:
        with forebay.open_dataset(
            job.url,
            cache_dir=job.cache_dir,
            max_cache_bytes=job.budget,
            prefetch=job.prefetch,
            options={"part_size": PART_SIZE},
        ) as ds:
            for _ in range(job.epochs):
                for number, item in enumerate(ds):
                    if not number:
                        told.send(("first", time.monotonic() - begin))
                    if item != expected[number]:
                        told.send(("wrong", f"item {number} of {job.expected}"))
                        return
                    if number + 1 == job.most:
                        break
                    if job.pace:
                        threading.Event().wait(job.pace)
                if job.most == ITEMS and number + 1 != ITEMS:
                    told.send(("wrong", f"{number + 1} of {ITEMS} items of {job.expected}"))
                    return
    except ForebayError as exc:
        told.send(("error", f"{type(exc).__name__}: {exc}"))
        return
    told.send(("done", time.monotonic() - begin))


class Reader:
    """A reader process, seen from its parent."""

    def __init__(self, job: Job) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self._told, theirs = context.Pipe(duplex=False)
        self.job = job
        self.process = context.Process(target=serve, args=(job, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def wait_for_item(self, until: float) -> None:
        """Wait until it has its first item, or has ended."""
        self._told.poll(max(until - time.monotonic(), 0))

    def said(self) -> dict[str, Any]:
        """What it told; complete once it has ended."""
        told: dict[str, Any] = {}
        try:
            while self._told.poll():
                kind, value = self._told.recv()
                told[kind] = value
        except (EOFError, ConnectionResetError):
            pass
        return told

    def stacks(self) -> str:
        """Where its threads were when its patience ended."""
        return Path(self.job.log).read_text() if self.job.log and Path(self.job.log).exists() else ""

    def kill(self) -> None:
        """As the out-of-memory killer would."""
        self.process.kill()

    def end(self) -> None:
        """Let go of it, killing it where it still runs."""
        self.process.kill()
        self.process.join(10)
        self.process.close()
        self._told.close()


@dataclass
class Campaign:
    """One directory, one seed. ``run`` goes on until ``kills`` processes were killed."""

    folder: Path
    seed: int
    budget_chunks: int = 2
    kills: int = 0
    midway: int = 0
    rounds: int = 0
    starts: list[float] = field(default_factory=list)
    slowest_round: float = 0.0

    def __post_init__(self) -> None:
        self.chunks: list[str] = []
        self.random = random.Random(self.seed)
        self.directory = self.folder / "cache"
        self.budget = self.budget_chunks * CHUNK_BYTES

    def run(self, server: FaultServer, kills: int) -> None:
        """Round after round."""
        for name, compression in (("plain", None), ("zstd", "zstd")):
            self.chunks += put_random_dataset(server, self.folder, name, compression)
        while self.kills < kills:
            self.rounds += 1
            begin = time.monotonic()
            self._harm(server)
            self._crash(server)
            server.unscript()
            self._next_run(server)
            self._look()
            self.slowest_round = max(self.slowest_round, time.monotonic() - begin)

    def _harm(self, server: FaultServer) -> None:
        """Some answers go wrong in ways that the reader has to get over; all are slow."""
        rng = self.random
        choices = [
            Fault(status=503),
            Fault(reset=True, after=rng.randrange(4000)),
            Fault(cut=True, after=rng.randrange(4000)),
            Fault(corrupt_at=rng.randrange(4000)),  # at most once: twice in one chunk is an error, rightly
            Fault(delay=0.1),
        ]
        for fault in rng.sample(choices, rng.randrange(4)):
            server.script(rng.choice(self.chunks), fault, skip=rng.randrange(4))
        server.script(None, Fault(drip=(rng.choice([500, 1000, 4000]), 0.002)), times=None)

    def _job(self, server: FaultServer, **changes: Any) -> Job:
        rng = self.random
        name = rng.choice(["plain", "zstd"])
        job: dict[str, Any] = {
            "url": server.url(name),
            "cache_dir": str(self.directory),
            "budget": self.budget,
            "expected": name,
            "prefetch": rng.randrange(5),
            "pace": rng.choice([0.0, 0.0, 0.002]),
            "log": str(self.folder / f"stacks-{self.rounds}-{rng.randrange(1 << 30)}.txt"),
        }
        return Job(**(job | changes))

    def _crash(self, server: FaultServer) -> None:
        """Two to four readers; some are killed, at random moments; the others must end, with every item."""
        rng, begin = self.random, time.monotonic()
        count = rng.randrange(2, 5)
        doomed = rng.sample(range(count), rng.randrange(1, count + 1))
        readers = [Reader(self._job(server, epochs=1000 if n in doomed else 2)) for n in range(count)]
        try:
            victims = [readers[number] for number in doomed]
            for victim in victims:
                if rng.random() < 0.7:
                    victim.wait_for_item(begin + DEADLINE)
                threading.Event().wait(rng.random() * 0.3)
                victim.kill()
                self.kills += 1
            self._wait(victims, begin + DEADLINE)
            survivors = [reader for reader in readers if reader not in victims]
            self._no_dead_holder(len(survivors))
            self._wait(survivors, begin + DEADLINE)
            for reader in survivors:
                self._ended_well(reader)
            for reader in victims:
                told = reader.said()
                if "wrong" in told or "error" in told:
                    raise self._violation(f"a reader, before it was killed, said {told}")
                self.midway += "done" not in told and "first" in told
        finally:
            for reader in readers:
                reader.end()

    def _next_run(self, server: FaultServer) -> None:
        """The first process after the crash has its first item within a second."""
        took = self._first_item(server, self.directory)
        if took > NEXT_RUN:  # a busy machine is not the cache's fault: how long takes a directory that nothing befell?
            took -= self._first_item(server, self.folder / f"fresh-{self.rounds}")
        self.starts.append(took)
        if took > NEXT_RUN:
            raise self._violation(f"the next run had its first item {took:.2f} s later than one without a crash")

    def _first_item(self, server: FaultServer, directory: Path) -> float:
        reader = Reader(self._job(server, most=1, epochs=1, pace=0.0, cache_dir=str(directory)))
        try:
            self._wait([reader], time.monotonic() + DEADLINE)
            return float(self._ended_well(reader)["first"])
        finally:
            reader.end()

    def _ended_well(self, reader: Reader) -> dict[str, Any]:
        code, told = reader.process.exitcode, reader.said()
        if code is None and "done" not in told:
            text = f"{reader.job}\n{reader.stacks()}\n{_tables(self.directory / 'ledger.sqlite')}"
            raise self._violation(f"a reader did not end within {DEADLINE} s; {text}")
        if code or "done" not in told:
            raise self._violation(f"a reader ended with {code}: {told}; {reader.job}")
        return told

    def _wait(self, readers: list[Reader], until: float) -> None:
        """Wait for the processes to end, or for the moment."""
        pending: set[Any] = {reader.process.sentinel for reader in readers}
        while pending and (left := until - time.monotonic()) > 0:
            pending -= set(wait(list(pending), left))

    def _no_dead_holder(self, living: int) -> None:
        """Whoever looks on sees the living only."""
        if not (self.directory / "FORMAT").exists():
            return  # all were killed before one of them had made the directory
        with closing(forebay.ChunkCache(self.directory)) as cache:
            deadline = time.monotonic() + NEXT_RUN
            # A survivor that buries the dead at this moment holds their lock, until their rows are gone.
            while (info := cache.info()).holders > living and time.monotonic() < deadline:
                threading.Event().wait(0.01)
        if info.holders > living or (not living and info.leases):
            raise self._violation(f"{info} with {living} living processes")

    def _look(self) -> None:
        """Nobody uses the directory now, and the run after the crash was its next use."""
        left = [*_names(self.directory / "holders"), *(str(path) for path in self.directory.rglob("*.tmp"))]
        if left:
            raise self._violation(f"left behind: {left}")
        rows = _rows(self.directory / "ledger.sqlite")
        if any(rows.values()):
            raise self._violation(f"left in the ledger: {json.dumps(rows)}")
        with closing(forebay.ChunkCache(self.directory)) as cache:
            problems, info = cache.verify(), cache.info()
        on_disk = sum(path.stat().st_size for path in (self.directory / "chunks").rglob("*") if path.is_file())
        if problems or info.bytes != on_disk or on_disk > self.budget:
            raise self._violation(f"{problems}, {info}, {on_disk} bytes on disk, budget {self.budget}")

    def _violation(self, text: str) -> Violation:
        return Violation(f"seed {self.seed}, round {self.rounds}, after {self.kills} kills: {text}")


def _names(folder: Path) -> Iterator[str]:
    return (path.name for path in folder.iterdir())


def _tables(ledger: Path) -> str:
    """Who waits for what, for people."""
    with closing(sqlite3.connect(ledger)) as connection:
        found = {}
        for table in ("account", "holders", "chunks", "leases", "flights"):
            rows = connection.execute(f"SELECT * FROM {table}")
            found[table] = [[column[0] for column in rows.description], *rows.fetchall()]
    return "\n".join(f"{table}: {row}" for table, rows in found.items() for row in rows)


def _rows(ledger: Path) -> dict[str, list[Any]]:
    with closing(sqlite3.connect(ledger)) as connection:
        return {
            "holders": connection.execute("SELECT pid FROM holders").fetchall(),
            "leases": connection.execute("SELECT * FROM leases").fetchall(),
            "flights": connection.execute("SELECT temp, reserved FROM flights").fetchall(),
        }
