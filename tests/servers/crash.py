"""Readers that are killed, and the next ones: one cache directory through many rounds, looked at after each.

A campaign starts reader processes on a slow, faulty server, in order or shuffled, by either eviction, some with a
forked child, and now and then somebody who tends the cache meanwhile; ends some of them at random moments in one of the
ways in which processes end, lets the others finish, and starts the next run. What must never be seen, it raises as a
`Violation` that names the seed and the round.
"""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from servers.crash_reader import CHUNK_BYTES, DEADLINE, Job, Keeper, Process, Reader, put_random_dataset
from servers.disk import fill
from servers.ledger import orphans, reading, rows

import forebay
from forebay.testing import Fault, FaultServer

__all__ = ["Campaign", "Violation"]

#: Seconds in which the next run has to give its first item.
NEXT_RUN = 1.0
#: Seconds after which who does not hear an interrupt is told again, as people do.
AGAIN = 8.0
#: How processes end here, as often as they do.
ENDS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


class Violation(AssertionError):
    """The cache broke a promise."""


@dataclass
class Campaign:
    """One directory, one seed. ``run`` goes on until ``kills`` processes were ended.

    ``mixed``: budgets differ. ``ballast``: a file on the cache's disk that fills it while processes are ended; a reader
    may give up for want of room then.
    """

    folder: Path
    seed: int
    budget_chunks: int = 2
    mixed: bool = False
    ballast: Path | None = None
    kills: int = 0
    midway: int = 0
    rounds: int = 0
    starts: list[float] = field(default_factory=list)
    slowest_round: float = 0.0
    met: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.chunks: list[str] = []
        self.orders: dict[tuple[str, int, int], int] = {}
        self.random = random.Random(self.seed)
        self.directory = self.folder / "cache"
        self.budget = self.budget_chunks * CHUNK_BYTES  # `run` makes it exact

    @property
    def most(self) -> int:
        """The most bytes that may ever lie there."""
        return self.budget * (2 if self.mixed else 1)

    def run(self, server: FaultServer, kills: int) -> None:
        """Round after round."""
        for name, compression in (("plain", None), ("zstd", "zstd")):
            self.chunks += put_random_dataset(server, self.folder, name, compression)
        self.budget = self.budget_chunks * max(len(server.get(key) or b"") for key in self.chunks if "plain" in key)
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
            "eviction": rng.choice(["clairvoyant", "clairvoyant", "lru"]),
            "seed": rng.randrange(2),
            "log": str(self.folder / f"stacks-{self.rounds}-{rng.randrange(1 << 30)}.txt"),
        }
        return Job(**(job | changes))

    def _jobs(self, server: FaultServer, count: int, doomed: list[int]) -> Iterator[Job]:
        """Jobs whose windows together fit: whoever is refused is refused for what somebody dead left."""
        rng, spare = self.random, self.budget_chunks - 1
        generous = rng.randrange(1, count) if self.mixed else count  # the first asks for no more than `budget`
        for number in range(count):
            forks = rng.random() < 0.2
            window = rng.randrange(min(spare // (1 + forks) + 1, 4) + 1)
            spare -= max(window - 1, 0) * (1 + forks)
            budget = self.most if number >= generous else self.budget
            self.met |= (
                {f"window {window}"} | ({"fork"} if forks else set()) | ({"two budgets"} if self.mixed else set())
            )
            yield self._job(server, epochs=1000 if number in doomed else 2, window=window, forks=forks, budget=budget)

    def _crash(self, server: FaultServer) -> None:
        """Two to four readers; some are killed, at random moments; the others must end, with every item."""
        rng, begin = self.random, time.monotonic()
        count = rng.randrange(2, 5)
        doomed = rng.sample(range(count), rng.randrange(1, count + 1))
        readers = [Reader(job) for job in self._jobs(server, count, doomed)]
        if self.ballast:
            fill(self.ballast, rng.randrange(24 * CHUNK_BYTES))
        keepers = [Keeper(self.directory, self.budget)] if rng.random() < 0.5 else []
        try:
            victims: list[Process] = [readers[number] for number in doomed]
            victims += [keeper for keeper in keepers if rng.random() < 0.6]
            rng.shuffle(victims)
            for victim in victims:
                self._end(victim, begin + DEADLINE)
            survivors = [reader for reader in readers if reader not in victims]
            self._see_them_end(victims, begin + DEADLINE)
            if self.ballast:
                self.ballast.unlink()
            self._no_dead_holder([reader for reader in readers if reader not in victims or reader.child is not None])
            for reader in readers:
                if reader in victims:
                    reader.end_child()
            self._wait(survivors, begin + DEADLINE)
            for reader in survivors:
                self._ended_well(reader)
            for keeper in keepers:
                keeper.kill(signal.SIGINT)
            self._see_them_end(keepers, time.monotonic() + DEADLINE)
            for process in [*victims, *keepers]:
                self._said_nothing_wrong(process)
        finally:
            for process in [*readers, *keepers]:
                process.end()

    def _end(self, victim: Process, until: float) -> None:
        rng = self.random
        if rng.random() < 0.7 and isinstance(victim, Reader):
            victim.wait_for_word(until)
        threading.Event().wait(rng.random() * 0.3)
        how = rng.choice(ENDS)
        if isinstance(victim, Reader) and victim.job.forks and rng.random() < 0.6:
            victim.kill_child(how)  # before its parent; else the parent before it, which then goes on alone
            threading.Event().wait(rng.random() * 0.1)
        victim.kill(how)
        self.kills += 1
        self.met.add(signal.Signals(how).name + (" of a keeper" if isinstance(victim, Keeper) else ""))

    def _see_them_end(self, processes: Iterable[Process], until: float) -> None:
        """Wait for the end of those that were told to end."""
        self._wait(processes, min(until, time.monotonic() + AGAIN))
        for process in processes:
            if process.process.exitcode is None:  # an interrupt that came inside a callback is lost, by Python's rules
                process.kill(signal.SIGINT)
        self._wait(processes, until)
        for process in processes:
            if process.process.exitcode is None:
                raise self._violation(f"{vars(process)} was told to end and does not")

    def _said_nothing_wrong(self, process: Process) -> None:
        told = process.said()
        if self._gave_up(told):
            return
        if "wrong" in told or "error" in told:
            raise self._violation(f"before it was ended, {vars(process)} said {told}")
        self.midway += "done" not in told and "first" in told

    def _gave_up(self, told: dict[str, Any]) -> bool:
        """Whether it said that the disk is full, in a round in which it was."""
        full = self.ballast is not None and "CacheFullError" in told.get("error", "")
        self.met |= {"a full disk"} if full else set()
        return full and "wrong" not in told

    def _next_run(self, server: FaultServer) -> None:
        """The first process after the crash has its first item within a second, and the largest window that fits."""
        window, budget = self.random.choice([0, self.budget_chunks]), self.random.choice([self.budget, None])
        took = self._first_item(server, self.directory, window, budget)
        if took > NEXT_RUN:  # a busy machine is not the cache's fault: how long takes a directory that nothing befell?
            took -= self._first_item(server, self.folder / f"fresh-{self.rounds}", window, self.budget)
        self.starts.append(took)
        if took > NEXT_RUN:
            raise self._violation(f"the next run had its first item {took:.2f} s later than one without a crash")

    def _first_item(self, server: FaultServer, directory: Path, window: int, budget: int | None) -> float:
        reader = Reader(
            self._job(server, most=1, epochs=1, pace=0.0, cache_dir=str(directory), window=window, budget=budget)
        )
        try:
            self._wait([reader], time.monotonic() + DEADLINE)
            return float(self._ended_well(reader)["first"])
        finally:
            reader.end()

    def _ended_well(self, reader: Reader) -> dict[str, Any]:
        code, told, job = reader.process.exitcode, reader.said(), reader.job
        if self._gave_up(told):
            return told
        if code is None and "done" not in told:
            tables = rows(reading(self.directory / "ledger.sqlite"))
            raise self._violation(f"a reader did not end within {DEADLINE} s; {job}\n{reader.stacks()}\n{tables}")
        if code or "done" not in told or "wrong" in told or "error" in told:
            raise self._violation(f"a reader ended with {code}: {told}; {job}")
        if "order" in told and told["order"] != self.orders.setdefault((job.url, job.seed, job.window), told["order"]):
            raise self._violation(f"another order than other readers had; {job}")
        return told

    def _wait(self, processes: Iterable[Process], until: float) -> None:
        """Wait for the processes to end, or for the moment."""
        pending: set[Any] = {process.process.sentinel for process in processes}
        while pending and (left := until - time.monotonic()) > 0:
            pending -= set(wait(list(pending), left))

    def _no_dead_holder(self, living: list[Reader]) -> None:
        """Whoever looks on sees the living only, and nothing in the ledger is anybody else's."""
        if not (self.directory / "FORMAT").exists():
            return  # all were killed before one of them had made the directory
        pids = {pid for reader in living for pid in (reader.process.pid, reader.child) if pid is not None}
        read = reading(self.directory / "ledger.sqlite")
        with closing(forebay.ChunkCache(self.directory)) as cache:
            deadline = time.monotonic() + NEXT_RUN
            # A survivor that buries the dead at this moment holds their lock, until their rows are gone.
            while (info := cache.info()).holders > len(pids) and time.monotonic() < deadline:
                threading.Event().wait(0.01)
        strangers = [pid for (pid,) in read("SELECT pid FROM holders") if pid not in pids]
        if strangers or info.holders > len(pids) or (not pids and info.leases):
            raise self._violation(f"{info} with the living processes {pids}, and {strangers} in the ledger")
        if found := orphans(read):
            raise self._violation(f"nobody's: {found}")

    def _look(self) -> None:
        """Nobody uses the directory now, and the run after the crash was its next use."""
        left = [*_names(self.directory / "holders"), *(str(path) for path in self.directory.rglob("*.tmp"))]
        if left:
            raise self._violation(f"left behind: {left}")
        read = reading(self.directory / "ledger.sqlite")
        if found := rows(read) | orphans(read):
            raise self._violation(f"left in the ledger: {json.dumps(found, default=repr)}")
        with closing(forebay.ChunkCache(self.directory)) as cache:
            problems, info = cache.verify(), cache.info()
        on_disk = sum(path.stat().st_size for path in (self.directory / "chunks").rglob("*") if path.is_file())
        if problems or info.bytes != on_disk or on_disk > info.max_bytes or info.max_bytes > self.most:
            raise self._violation(f"{problems}, {info}, {on_disk} bytes on disk, budget {self.budget}")

    def _violation(self, text: str) -> Violation:
        return Violation(f"seed {self.seed}, round {self.rounds}, after {self.kills} kills: {text}")


def _names(folder: Path) -> Iterator[str]:
    return (path.name for path in folder.iterdir())
