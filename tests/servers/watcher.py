"""An outsider that looks at a cache directory about a thousand times a second and counts its bytes.

`Watcher` is the test's end; ``python -m servers.watcher DIRECTORY`` is the other, a process of its own. A walk over a
directory that changes meanwhile may count a file and also the one that took its place, which never lay there together.
So each look walks twice, and counts what both walks saw: all that lay there at the moment between them.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Seen", "Watcher"]

PAUSE = 0.0005
TIMEOUT = 20.0

#: Folder, hash and inode: what stays when a temporary file gets its name.
File = tuple[str, str, int]


@dataclass(frozen=True)
class Seen:
    """The most bytes at one moment, how often was looked, and looks a second."""

    peak: int
    looks: int
    rate: float


def files_below(chunks: str) -> dict[File, int]:
    """Every file below ``chunks`` and its bytes."""
    found: dict[File, int] = {}
    pending = [chunks]
    while pending:
        folder = pending.pop()
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    status = entry.stat(follow_symlinks=False)
                    found[folder, entry.name[:32], status.st_ino] = status.st_size
            except FileNotFoundError:
                continue
    return found


def look(chunks: str) -> int:
    """Bytes that certainly lay below ``chunks`` at one moment."""
    first = files_below(chunks)
    second = files_below(chunks)
    return sum(min(size, second[file]) for file, size in first.items() if file in second)


def main() -> None:
    """Look until stdin closes; then print what was seen."""
    chunks = os.path.join(sys.argv[1], "chunks")
    peak = looks = 0
    begin = time.monotonic()
    print("{}", flush=True)
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
        peak = max(peak, look(chunks))
        looks += 1
    print(json.dumps({"peak": peak, "looks": looks, "rate": looks / (time.monotonic() - begin)}), flush=True)


class Watcher:
    """Watches ``directory`` from another process until it is asked what it saw."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", os.path.abspath(__file__), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(TIMEOUT)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def seen(self) -> Seen:
        """End it; returns what it saw."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return Seen(**json.loads(self._line()))

    def _line(self) -> str:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], TIMEOUT)
        assert readable, f"the watcher says nothing for {TIMEOUT} s"
        return self._process.stdout.readline()


if __name__ == "__main__":
    main()
