"""Where a dataset's chunks come from: what a reader may ask of that, the local directory as it is, and its name."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from forebay import _url
from forebay._index import DatasetIndex
from forebay._registry import Resolved
from forebay.exceptions import ObjectNotFoundError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ChunkSession", "ChunkSource", "LocalSource", "dataset_identity", "location"]


class ChunkSession(Protocol):
    """One reader's way through an order of chunks."""

    def take(self, place: int) -> Path:
        """Return the file of the chunk at ``place``, held until `done`.

        It may be asked for again, to map it anew: one that went meanwhile is fetched again.
        """
        ...

    def opened(self, place: int) -> None:
        """Say that the chunk is mapped: readable without its file, which goes where others starve for its room."""
        ...

    def done(self, place: int) -> None:
        """Let go of a taken chunk."""
        ...

    def reached(self, place: int) -> None:
        """Say how far the reader is in the order that it announced, where that is not the session's own."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class ChunkSource(ABC):
    """Gives the chunks of one dataset as local files."""

    #: Chunks evicted in this process since the source was made.
    evictions: int = 0

    @abstractmethod
    def session(
        self,
        order: Sequence[int] | NDArray[np.int64],
        *,
        ahead: int | None,
        now: NDArray[np.int64] | None = None,
        then: NDArray[np.int64] | None = None,
        shared: Collection[int] = (),
    ) -> ChunkSession:
        """Start a way through ``order``; ``ahead`` None takes the source's own look-ahead.

        ``then`` is the order of the epoch after this one, for readers that go on; the cache keeps what it can for it.
        ``now`` is this epoch's order where ``order`` is not the whole of it, as with a list that grows meanwhile; the
        reader then says how far it is in ``now`` through `ChunkSession.reached`.
        ``shared`` are chunks that other readers of the directory read too: each is leased at once, before any is read.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of connections and of the cache."""

    def look_ahead(self, asked: int | None) -> int:
        """Chunks that a session looks ahead, where the dataset was opened with ``asked``."""
        return asked or 0

    @abstractmethod
    def check_window(self, window: int) -> None:
        """Refuse a reader that needs ``window`` chunks at a time where they cannot be held."""

    def claim_window(self, window: int) -> AbstractContextManager[None]:
        """Inside the block, no other reader's window takes the room of this one's ``window`` chunks.

        Raises:
            BudgetTooSmallError: The windows of the readers that are under way leave too little.
        """
        return nullcontext()


class LocalSource(ChunkSource):
    """Uncompressed chunks in a local directory: they are read where they lie, and never copied or removed."""

    def __init__(self, root: Path, index: DatasetIndex) -> None:
        self._root = root
        self._index = index

    def session(
        self,
        order: Sequence[int] | NDArray[np.int64],
        *,
        ahead: int | None,
        now: NDArray[np.int64] | None = None,
        then: NDArray[np.int64] | None = None,
        shared: Collection[int] = (),
    ) -> ChunkSession:
        """Nothing is fetched, so there is nothing to look ahead for."""
        return _LocalSession(self._root, self._index, order)

    def close(self) -> None:
        """Nothing to let go of."""

    def check_window(self, window: int) -> None:
        """Local chunks are there, whatever the window."""


class _LocalSession:
    def __init__(self, root: Path, index: DatasetIndex, order: Sequence[int] | NDArray[np.int64]) -> None:
        self._root, self._index, self._order = root, index, order

    def take(self, place: int) -> Path:
        path = self._root / self._index.chunk(int(self._order[place])).name
        if not path.is_file():
            raise ObjectNotFoundError(
                f"chunk {path.name!r} of the dataset at {self._root} is missing", key=path.name, backend="file"
            )
        return path

    def opened(self, place: int) -> None:
        pass

    def done(self, place: int) -> None:
        pass

    def reached(self, place: int) -> None:
        pass

    def close(self) -> None:
        pass


def location(resolved: Resolved) -> str:
    """Name a root by URL and store; for hashing only, since it may hold secrets."""
    where = [f"{name}={value}" for name, value in resolved.cls.location_options(resolved.options).items()]
    return "\0".join([resolved.backend.name, *where, _url.identity(str(resolved.url))])


def dataset_identity(resolved: Resolved, index: bytes) -> str:
    """Name a dataset by where it is and what its index says, so that a rewritten one is another one."""
    digest = hashlib.blake2b(location(resolved).encode(), digest_size=16)
    digest.update(b"\0" + hashlib.blake2b(index, digest_size=32).digest())
    return digest.hexdigest()
