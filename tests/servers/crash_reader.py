"""The processes of a crash campaign: readers of a dataset, with or without a forked child, and who tends the cache.

Each tells its parent how it goes through a pipe; what it tells of its own accord is compared there.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import random
import signal
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import forebay
from forebay.exceptions import CacheError, ForebayError
from forebay.testing import FaultServer

__all__ = [
    "CHUNK_BYTES",
    "DEADLINE",
    "ITEMS",
    "PER_CHUNK",
    "Job",
    "Keeper",
    "Process",
    "Reader",
    "items_of",
    "put_random_dataset",
    "serve",
]

ITEMS, PER_CHUNK, ITEM_BYTES = 40, 4, 4000
CHUNK_BYTES = PER_CHUNK * (ITEM_BYTES + 40) + 60
PART_SIZE = 5000
#: Seconds in which every round has to end.
DEADLINE = 40.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one reader process does. ``window`` 0: it reads in storage order; ``forks``: a child goes on beside it."""

    url: str
    cache_dir: str
    budget: int | None
    expected: str
    prefetch: int = 2
    epochs: int = 2
    pace: float = 0.0
    most: int = ITEMS
    window: int = 0
    seed: int = 0
    eviction: str = "clairvoyant"
    forks: bool = False
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
    _settle_in(job.cache_dir, FOREBAY_EVICTION=job.eviction)
    if job.log is not None:
        faulthandler.dump_traceback_later(DEADLINE * 0.8, file=open(job.log, "w"))  # noqa: SIM115 - the dump comes later
    expected, begin = items_of(job.expected), time.monotonic()
    try:
        with forebay.open_dataset(
            job.url,
            cache_dir=job.cache_dir,
            max_cache_bytes=job.budget,
            prefetch=job.prefetch,
            shuffle=bool(job.window),
            shuffle_window=job.window or 1,
            seed=job.seed,
            options={"part_size": PART_SIZE},
        ) as ds:
            if job.forks:
                _fork(job, ds, expected, told)
            wrong = _read(job, ds, expected, told, begin)
    except ForebayError as exc:
        told.send(("error", f"{type(exc).__name__}: {exc}"))
    except KeyboardInterrupt:
        told.send(("interrupted", time.monotonic() - begin))
    else:
        told.send(("wrong", wrong) if wrong else ("done", time.monotonic() - begin))


def _settle_in(cache_dir: str, **settings: str) -> None:
    # Python writes and removes a file to find out where temporaries go: a kill at that moment leaves it behind.
    tempfile.tempdir = str(Path(cache_dir).parent)
    os.environ.update(FOREBAY_PREFETCH_MIN="0", FOREBAY_WAIT_TIMEOUT="20", **settings)


def _read(job: Job, ds: Any, expected: list[dict[str, Any]], told: Connection | None, begin: float) -> str | None:
    """Read for as long as the job says; returns what was wrong. Each sample comes once an epoch, whatever the order."""
    for epoch in range(job.epochs):
        seen: list[int] = []
        for item in ds:
            if told is not None and not epoch and not seen:
                told.send(("first", time.monotonic() - begin))
            if item != expected[item["index"]]:
                return f"item {item['index']} of {job.expected}"
            seen.append(item["index"])
            if len(seen) == job.most:
                break
            if job.pace:
                threading.Event().wait(job.pace)
        if sorted(seen) != list(range(ITEMS)) and job.most == ITEMS:
            return f"of {job.expected} came {seen}"
        if not job.window and seen != list(range(len(seen))):
            return f"the order {seen}"
        if told is not None and not epoch and job.most == ITEMS:
            told.send(("order", zlib.crc32(bytes(seen))))
    return None


def _fork(job: Job, ds: Any, expected: list[dict[str, Any]], told: Connection) -> None:
    """Begin to read, and have a forked child go on with the dataset that it inherited, beside its parent."""
    reading: Iterator[Any] = iter(ds)
    next(reading)
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined] # so that it may have one
    child = multiprocessing.get_context("fork").Process(target=_inherit, args=(job, ds, expected, told), daemon=True)
    child.start()
    reading.close()  # type: ignore[attr-defined]


def _inherit(job: Job, ds: Any, expected: list[dict[str, Any]], told: Connection) -> None:
    told.send(("child", os.getpid()))
    try:
        while True:
            wrong = _read(job, ds, expected, None, time.monotonic())
            if wrong:
                told.send(("wrong", f"in a forked child: {wrong}"))
                return
    except ForebayError as exc:
        told.send(("error", f"in a forked child: {type(exc).__name__}: {exc}"))
    except KeyboardInterrupt:
        return


def tend(cache_dir: str, budget: int, told: Connection) -> None:
    """Somebody who looks after the cache, as ``forebay cache`` does, again and again, while others read."""
    _settle_in(cache_dir)
    rounds = 0
    with suppress(KeyboardInterrupt):
        while True:
            for step in ("gc", "verify", "info", "report", "clear"):
                if step == "clear" and rounds % 8:
                    continue
                try:
                    with forebay.ChunkCache(cache_dir) as cache:
                        found = getattr(cache, step)()
                        if step == "verify" and _serious(found):  # who was killed while it evicted leaves a gap
                            cache.gc()
                            found = cache.verify()
                except CacheError as exc:
                    if step != "clear":
                        told.send(("error", f"{step}: {type(exc).__name__}: {exc}"))
                        return
                if step == "verify" and _serious(found):
                    told.send(("wrong", _serious(found)))
                    return
            rounds += 1


def _serious(problems: Any) -> list[str]:
    """A smaller budget that came later is kept as soon as those that hold chunks let go of them."""
    return [str(problem) for problem in problems if problem.kind != "over budget"]


class Process:
    """A process of a campaign, seen from its parent."""

    def __init__(self, target: Any, *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        self._told, theirs = context.Pipe(duplex=False)
        self._heard: dict[str, Any] = {}
        self._ended = False  # nobody is left who could say something
        self.process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def said(self) -> dict[str, Any]:
        """What it told; complete once it has ended."""
        while not self._ended and self._told.poll():
            self._hear()
        return self._heard

    def _hear(self) -> None:
        try:
            kind, value = self._told.recv()
        except (EOFError, ConnectionResetError):
            self._ended = True
        else:
            self._heard[kind] = value

    def wait_for_word(self, until: float) -> None:
        """Wait until it says something, or has ended."""
        self._told.poll(max(until - time.monotonic(), 0))

    def kill(self, number: int = signal.SIGKILL) -> None:
        """As the out-of-memory killer would, a terminal, or who preempts the machine."""
        with suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, number)

    def end(self) -> None:
        """Let go of it, killing it where it still runs."""
        self.process.kill()
        self.process.join(10)
        self.process.close()
        self._told.close()


class Reader(Process):
    """A reader process."""

    def __init__(self, job: Job) -> None:
        super().__init__(serve, job)
        self.job = job

    @property
    def child(self) -> int | None:
        """The pid of its forked child, which lives: a reader that is dead has one only if it told of it."""
        if self.job.forks:
            self._listen(lambda: "child" in self._heard or self._ended)
        return None if self._ended else self.said().get("child")

    def stacks(self) -> str:
        """Where its threads were when its patience ended."""
        return Path(self.job.log).read_text() if self.job.log and Path(self.job.log).exists() else ""

    def kill_child(self, number: int) -> None:
        """End its forked child."""
        child = self.child
        if child is not None:
            with suppress(ProcessLookupError):
                os.kill(child, number)

    def end_child(self) -> None:
        """Kill the forked child, which may have outlived it, and wait for the end of both."""
        if self.job.forks:
            self.kill_child(signal.SIGKILL)
            self._listen(lambda: self._ended)

    def _listen(self, enough: Callable[[], bool]) -> None:
        """Hear what they say, until that is enough; the pipe ends with the last process that has it."""
        until = time.monotonic() + DEADLINE / 2
        while not enough() and self._told.poll(max(until - time.monotonic(), 0)):
            self._hear()

    def end(self) -> None:
        """Let go of both."""
        self.process.kill()
        self.end_child()
        super().end()


class Keeper(Process):
    """Who tends the cache."""

    def __init__(self, cache_dir: Path, budget: int) -> None:
        super().__init__(tend, str(cache_dir), budget)
