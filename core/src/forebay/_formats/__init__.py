"""The contract of a dataset layout: a `DatasetFormat` reads an index, a `ChunkReader` the items of one local chunk."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from forebay.exceptions import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from forebay._index import DatasetIndex

__all__ = ["ChunkReader", "DatasetFormat", "check_options"]


class ChunkReader(ABC):
    """The items of one chunk that lies on the local disk.

    Reading takes no lock and may happen in several threads. Arrays and tensors may be views of the chunk's private map:
    they stay valid, and writable without touching the file, after ``close`` and after the file is deleted. Nobody
    reads an item of such a reader twice, for the second read would give what was written to the first.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of items."""

    @abstractmethod
    def read(self, item: int) -> Any:
        """Return one item, counted from 0 within the chunk."""

    @abstractmethod
    def read_many(self, items: Sequence[int] | range | npt.NDArray[np.integer[Any]]) -> list[Any]:
        """Return several items, in the order asked for, in one vectorised call: the fast path."""

    def copying(self) -> ChunkReader:
        """Return a reader of the same chunk for random access: no two reads of it share memory, even of one item.

        A reader whose items are never views returns itself, as this does.
        """
        return self

    @abstractmethod
    def close(self) -> None:
        """Let go of the map. Views in the user's hands keep it alive; never raises, may be called twice."""


class DatasetFormat(ABC):
    """One dataset, as its index describes it.

    Args:
        data: The bytes of the index.
        url: Where the dataset lies, for error messages; a secret in it is never shown.
        options: The user's ``format_options``.
        allow_pickle: Whether items may be unpickled, which runs code of the dataset's author.

    Raises:
        InvalidIndexError: The index is damaged or points out of the dataset.
        UnsupportedFormatError: The dataset uses something that this format does not read.
        UnsafePickleError: Items are pickled and ``allow_pickle`` is False.
        ConfigError: An option is unknown, missing or wrong.
    """

    name: ClassVar[str]
    index: DatasetIndex

    def __init__(self, data: bytes, *, url: str, options: Mapping[str, object], allow_pickle: bool) -> None:
        from forebay._url import redact

        self.url = redact(url)
        self.options = dict(options)
        self.allow_pickle = allow_pickle

    @abstractmethod
    def open_chunk(self, path: Path, chunk: int) -> ChunkReader:
        """Open the decoded chunk number ``chunk`` at ``path``: map it, for its file may go once this has returned.

        Raises:
            IntegrityError: The bytes are not a chunk as the index describes it.
        """


def check_options(options: Mapping[str, object], known: Iterable[str], *, format_name: str) -> None:
    """Raise `ConfigError` for an option that the format does not have, with the nearest name that it has."""
    names = sorted(known)
    for option in options:
        if option not in names:
            near = difflib.get_close_matches(str(option), names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(map(repr, names)) or 'none'}"
            raise ConfigError(
                f"the format {format_name!r} has no option {option!r} (from format_options){hint}",
                option=str(option),
                origin="format_options",
            )
