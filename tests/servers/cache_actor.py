"""Another process that uses a cache directory, driven step by step: for tests of what processes do to each other.

`Actor` is the test's end; ``python -m servers.cache_actor`` is the other. One JSON object a line, both ways.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from forebay._cache import Busy, Cache, ChunkKey, Flight, PlanReader, Ready, open_cache
from forebay.exceptions import ForebayError

TIMEOUT = 90.0


def key(number: int, dataset: str = "da7a") -> ChunkKey:
    """The chunk with this number, of a dataset of tests."""
    return ChunkKey(
        dataset=dataset,
        url=f"http://host/{dataset}/{number}",
        identity=f"{dataset}/{number}",
        suffix=".bin",
        number=number,
    )


def declare(cache: Cache, now: Sequence[int], then: Sequence[int], dataset: str = "da7a") -> PlanReader:
    """A reader that tells the cache what it will read."""
    reader = cache.plan_reader(dataset)
    reader.declare(np.array(now, np.int64), np.array(then, np.int64))
    return reader


def body(number: int, size: int) -> bytes:
    """What lies in chunk ``number``."""
    return bytes((number + place) % 251 for place in range(min(size, 251))) * (size // 251 + 1) if size else b""


def digest_of(data: bytes) -> str:
    """As the ledger spells it."""
    return f"xxh3-64:{xxhash.xxh3_64(data).hexdigest()}"


def write(flight: Flight, number: int, size: int) -> str:
    """Write the chunk to the flight's temporary file; returns the digest."""
    data = body(number, size)[:size]
    with open(flight.temp, "xb") as file:
        file.write(data)
    return digest_of(data)


def put(cache: Cache, number: int, size: int = 100, *, hard: bool = True, lease: bool = True) -> Ready:
    """Fetch a chunk that is not there; keeps the lease unless told otherwise."""
    flight = cache.acquire(key(number), hard=hard)
    assert isinstance(flight, Flight), flight
    assert flight.reserve(size), cache.describe()
    ready = flight.publish(bytes=size, digest=write(flight, number, size))
    if not lease:
        cache.release(key(number), hard=hard)
    return ready


def bytes_below(directory: Path) -> int:
    """What an outsider counts: every file below ``chunks/``."""
    total = 0
    for folder, _, files in os.walk(directory / "chunks"):
        for name in files:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total


@contextmanager
def watched(directory: Path) -> Iterator[list[int]]:
    """Sample the bytes in the directory from outside, about a thousand times a second; the highest is ``[0]``."""
    highest, stop = [0], threading.Event()

    def sample() -> None:
        while not stop.wait(0.001):
            highest[0] = max(highest[0], bytes_below(directory))

    thread = threading.Thread(target=sample, name="watcher")
    thread.start()
    try:
        yield highest
    finally:
        stop.set()
        thread.join()


def until(condition: Callable[[], Any], what: str, timeout: float = TIMEOUT) -> Any:
    """Wait for another process to do something; returns the first true answer."""
    deadline, tick = time.monotonic() + timeout, threading.Event()
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout} s"
        tick.wait(0.005)
    return answer


class ActorError(AssertionError):
    """The step raised in the other process; ``kind`` is the class of its error."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Actor:
    """A process that opened ``directory``. Leaving the context kills it."""

    def __init__(
        self, directory: Path, *, max_bytes: int | None = None, uid: int | None = None, stall: float = 60.0
    ) -> None:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "servers.cache_actor",
                str(directory),
                str(max_bytes or 0),
                str(uid or 0),
                str(stall),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self.pid = self.process.pid
        try:
            self.answer()
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Actor:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def call(self, op: str, **arguments: Any) -> Any:
        """Have one step done and return its result."""
        self.send(op, **arguments)
        return self.answer()

    def send(self, op: str, **arguments: Any) -> None:
        """Begin a step without waiting for its end."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """The result of the step that was begun."""
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], TIMEOUT)
        assert readable, f"no answer within {TIMEOUT} s"
        line = self.process.stdout.readline()
        if not line:
            raise ActorError("Died", f"exit code {self.process.wait(TIMEOUT)}")
        answer = json.loads(line)
        if "error" in answer:
            raise ActorError(answer["kind"], answer["error"])
        return answer["result"]

    def stop(self) -> None:
        """Freeze it."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it as the out-of-memory killer would."""
        self.process.kill()
        self.process.wait(TIMEOUT)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


class _Stage:
    """The steps, in the other process."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.flights: dict[int, Flight] = {}
        self.readers: list[PlanReader] = []

    def declare(self, now: list[int], then: list[int]) -> None:
        self.readers.append(declare(self.cache, now, then))

    def reached(self, place: int) -> None:
        self.readers[-1].reached(place)
        self.cache.gc()  # any change of the ledger takes the place along

    def seen(self, chunk: int, outcome: Ready | Busy | Flight) -> str:
        if isinstance(outcome, Flight):
            self.flights[chunk] = outcome
        return type(outcome).__name__

    def acquire(self, chunk: int, hard: bool = True) -> str:
        return self.seen(chunk, self.cache.acquire(key(chunk), hard=hard))

    def poll(self, chunk: int, hard: bool = True) -> str:
        return self.seen(chunk, self.cache.poll(key(chunk), hard=hard))

    def poll_until(self, chunk: int, wanted: str, hard: bool = True) -> float:
        """Poll until the outcome is ``wanted``; returns the time of day when it was."""
        until(lambda: self.poll(chunk, hard) == wanted, f"chunk {chunk} {wanted}")
        return time.time()

    def release(self, chunk: int, hard: bool = True) -> None:
        self.cache.release(key(chunk), hard=hard)

    def lease_ahead(self, chunks: list[int]) -> None:
        self.cache.declare(key(chunk) for chunk in chunks)

    def harden(self, chunk: int) -> bool:
        return self.cache.harden(key(chunk))

    def reserve(self, chunk: int, total: int) -> bool:
        return self.flights[chunk].reserve(total)

    def reserve_until(self, chunk: int, total: int) -> float:
        until(lambda: self.flights[chunk].reserve(total), f"room for chunk {chunk}")
        return time.time()

    def write(self, chunk: int, size: int) -> str:
        return write(self.flights[chunk], chunk, size)

    def publish(self, chunk: int, size: int) -> str:
        digest = digest_of(body(chunk, size)[:size])
        return str(self.flights[chunk].publish(bytes=size, digest=digest).path)

    def publish_and_die(self, chunk: int, size: int) -> None:
        """Die by SIGKILL between the rename and the commit."""
        rename = os.replace

        def fatal(source: Any, target: Any) -> None:
            rename(source, target)
            os.kill(os.getpid(), signal.SIGKILL)

        os.replace = fatal  # type: ignore[assignment]
        self.publish(chunk, size)

    def evict_and_die(self, chunk: int, total: int) -> None:
        """Die by SIGKILL between the removal of what makes room and the commit."""
        unlink = os.unlink

        def fatal(path: Any) -> None:
            unlink(path)
            os.kill(os.getpid(), signal.SIGKILL)

        os.unlink = fatal  # type: ignore[assignment]
        self.reserve(chunk, total)

    def evict_slowly(self, chunk: int, total: int, seconds: float) -> None:
        """Make room, and rest between the removal of the file and the commit."""
        unlink = os.unlink

        def slow(path: Any) -> None:
            unlink(path)
            threading.Event().wait(seconds)

        os.unlink = slow  # type: ignore[assignment]
        try:
            self.reserve(chunk, total)
        finally:
            os.unlink = unlink

    def abort(self, chunk: int) -> None:
        self.flights.pop(chunk).abort()

    def put(self, chunk: int, size: int = 100, hard: bool = True, lease: bool = True) -> None:
        put(self.cache, chunk, size, hard=hard, lease=lease)

    def fork(self) -> int:
        """Fork a child that does nothing, for as long as it lives."""
        ready, told = os.pipe()
        child = os.fork()
        if not child:
            os.write(told, b"1")  # whatever the child does at a fork, it has done by now
            signal.pause()
        try:
            assert os.read(ready, 1) == b"1"
        finally:
            os.close(ready)
            os.close(told)
        return child

    def kind(self) -> str:
        return type(self.cache).__name__

    def read(self, chunk: int) -> dict[str, Any]:
        ready = self.cache.acquire(key(chunk), hard=True)
        assert isinstance(ready, Ready)
        return {"data": ready.path.read_bytes().decode("latin-1"), "digest": ready.digest, "trusted": ready.trusted}

    def info(self) -> dict[str, int]:
        info = self.cache.info()
        return {name: getattr(info, name) for name in info.__slots__}

    def describe(self) -> str:
        return self.cache.describe()

    def close(self) -> None:
        self.cache.close()


def _warm_up() -> None:
    """Import all that is imported late, for the other user may not be allowed to read the interpreter's library."""
    with tempfile.TemporaryDirectory() as folder:
        cache = open_cache(Path(folder) / "cache", max_bytes=1000)
        put(cache, 1)
        cache.verify()
        cache.close()


def main() -> None:
    """Serve steps until the pipe closes."""
    directory, max_bytes, uid, stall = sys.argv[1:]
    if int(uid):
        _warm_up()
        os.setgroups([])
        os.setgid(int(uid))
        os.setuid(int(uid))
    answer: dict[str, Any]
    try:
        cache = open_cache(Path(directory), max_bytes=int(max_bytes) or None)
        if hasattr(cache, "stall_seconds"):
            cache.stall_seconds = float(stall)
        stage, answer = _Stage(cache), {"result": None}
    except ForebayError as exc:
        print(json.dumps({"error": str(exc), "kind": type(exc).__name__}), flush=True)
        return
    print(json.dumps(answer), flush=True)
    for line in sys.stdin:
        step = json.loads(line)
        try:
            answer = {"result": getattr(stage, step.pop("op"))(**step)}
        except Exception as exc:  # noqa: BLE001 - whatever it is, the test at the other end shall see it
            answer = {"error": str(exc), "kind": type(exc).__name__}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
