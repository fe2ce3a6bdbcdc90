"""Open chunks for random access: a bounded number of maps, dropped when their file is gone."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from forebay._formats import ChunkReader

__all__ = ["OpenChunks"]

#: Each open chunk keeps its pages and, once evicted, its disk space; this many serve a reader that jumps about.
MAX_OPEN = 16


class OpenChunks:
    """The chunks that random access has open, least recently used first.

    They are mapped and hold no lease: an evicted chunk stays readable through its map, and is dropped from here at the
    next look, so that its disk space comes back.
    """

    def __init__(self, open_missing: Callable[[Sequence[int]], list[tuple[ChunkReader, Path]]]) -> None:
        self._open_missing = open_missing
        self._open: OrderedDict[int, tuple[ChunkReader, Path]] = OrderedDict()
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def get(self, chunks: Sequence[int]) -> dict[int, ChunkReader]:
        """Return readers of all ``chunks``; what is not open is opened, in that order."""
        if self._pid != os.getpid():
            # A lock may have been held at the fork; the maps themselves are good in the child.
            self._lock, self._pid = threading.Lock(), os.getpid()
        found: dict[int, ChunkReader] = {}
        with self._lock:
            for chunk in chunks:
                entry = self._open.get(chunk)
                if entry is not None:
                    self._open.move_to_end(chunk)
                    found[chunk] = entry[0]
        missing = [chunk for chunk in chunks if chunk not in found]
        if missing:
            opened = self._open_missing(missing)
            found.update((chunk, reader) for chunk, (reader, _) in zip(missing, opened, strict=True))
            self._keep(missing, opened)
        return found

    def clear(self) -> None:
        """Drop every reader; views of their items stay valid."""
        with self._lock:
            self._open.clear()

    def _keep(self, chunks: Sequence[int], opened: list[tuple[ChunkReader, Path]]) -> None:
        with self._lock:
            for chunk in [chunk for chunk, (_, path) in self._open.items() if not path.exists()]:
                del self._open[chunk]
            self._open.update(zip(chunks, opened, strict=True))
            while len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
