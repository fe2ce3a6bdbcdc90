"""Values that the cache takes and gives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forebay.exceptions import CacheError, PrefetchClosedError

__all__ = ["Busy", "CacheClosedError", "ChunkKey", "FlightLostError", "Problem", "Ready", "UnregisteredError"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkKey:
    """What a chunk is, for the cache.

    ``dataset`` is the hex identity of the dataset and names its folder; ``url`` is the chunk's redacted URL, for
    people; ``identity`` is the text that the file name is hashed from, different for different chunks and never shown;
    ``suffix`` is kept on the file name; ``number`` is the one by which plans name the chunk of a dataset.
    """

    dataset: str
    url: str
    identity: str
    suffix: str = ""
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A chunk that lies whole at ``path``.

    ``digest`` is ``"xxh3-64:<16 hex>"``, None where the ledger that knew it was lost. ``trusted``: it was published or
    verified in this run; a run lasts as long as at least one process uses the directory.
    """

    path: Path
    bytes: int
    digest: str | None
    trusted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Somebody fetches the chunk: since when (seconds since 1970), and who, in words."""

    since: float
    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something in a cache directory that is not as it should be. ``path`` is relative to the directory."""

    kind: str
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.path}: {self.message}"


class CacheClosedError(CacheError, PrefetchClosedError):
    """The cache was closed in this process while somebody went on using it."""


class FlightLostError(CacheError):
    """A flight was taken over, or gave way to a reader; its owner aborts it and asks again."""


class UnregisteredError(Exception):
    """The holder has no row in this ledger; it registers again and repeats the step. Never leaves the package."""
