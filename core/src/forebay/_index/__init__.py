"""What a dataset says of its chunks, kept in columns so that a million of them stay small."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forebay._index._names import first_bad_name, name_fault

__all__ = ["ChunkEntry", "DatasetIndex", "first_bad_name", "name_fault"]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkEntry:
    """One chunk, as the index describes it; unknown facts are None, ``digest`` is ``algorithm:hex``, decoded."""

    name: str
    items: int
    decoded_bytes: int | None
    stored_bytes: int | None
    digest: str | None


class DatasetIndex:
    """The chunks of a dataset in storage order.

    Args:
        names: Names of the chunks, relative to the dataset's root.
        items: Number of items in each chunk.
        decoded_bytes: Size of each chunk on disk after decompression, -1 where it is not known.
        stored_bytes: Size of each chunk in the store, -1 where it is not known.
        digests: ``algorithm:hex`` of each chunk's decoded bytes, or None for all.
        codec: Name of the codec that every chunk is compressed with, or None.
    """

    __slots__ = (
        "_digests",
        "_per_chunk",
        "codec",
        "decoded_bytes",
        "item_counts",
        "items",
        "names",
        "starts",
        "stored_bytes",
    )

    def __init__(
        self,
        *,
        names: Sequence[str],
        items: IntArray,
        decoded_bytes: IntArray,
        stored_bytes: IntArray,
        digests: Sequence[str | None] | None = None,
        codec: str | None = None,
    ) -> None:
        self.names = names
        self.item_counts = items
        self.decoded_bytes = decoded_bytes
        self.stored_bytes = stored_bytes
        self.codec = codec
        self.starts: IntArray = np.zeros(len(names) + 1, dtype=np.int64)
        np.cumsum(items, out=self.starts[1:])
        self.items = int(self.starts[-1])
        self._digests = digests
        self._per_chunk = self._uniform()

    def _uniform(self) -> int:
        """Items a chunk where all but the last have the same number, else 0: a division then finds an item's chunk."""
        counts = self.item_counts
        if not len(counts) or counts[0] <= 0 or counts[-1] > counts[0]:
            return 0
        return int(counts[0]) if bool((counts[:-1] == counts[0]).all()) else 0

    def __len__(self) -> int:
        return len(self.names)

    def chunk(self, number: int) -> ChunkEntry:
        """Return chunk ``number``, counted from 0."""
        if not 0 <= number < len(self.names):
            raise IndexError(f"chunk {number} of {len(self.names)}")
        decoded, stored = int(self.decoded_bytes[number]), int(self.stored_bytes[number])
        return ChunkEntry(
            name=self.names[number],
            items=int(self.item_counts[number]),
            decoded_bytes=None if decoded < 0 else decoded,
            stored_bytes=None if stored < 0 else stored,
            digest=None if self._digests is None else self._digests[number],
        )

    def locate(self, item: int) -> tuple[int, int]:
        """Return the chunk of an item and the item's place in it."""
        if not 0 <= item < self.items:
            raise IndexError(f"item {item} of {self.items}")
        if self._per_chunk:
            return divmod(item, self._per_chunk)
        number = int(self.starts.searchsorted(item, side="right")) - 1
        return number, item - int(self.starts[number])

    def locate_many(self, items: IntArray) -> tuple[IntArray, IntArray]:
        """Return chunks and places of many items in one vectorised call."""
        if len(items) and not (items.min() >= 0 and items.max() < self.items):
            bad = items[(items < 0) | (items >= self.items)][0]
            raise IndexError(f"item {bad} of {self.items}")
        numbers = self.starts.searchsorted(items, side="right") - 1
        return numbers, items - self.starts[numbers]

    def fingerprint(self) -> str:
        """Name what the index says: the same for copies elsewhere, another one for a rewritten dataset."""
        digest = hashlib.blake2b("\0".join(self.names).encode(), digest_size=8)
        for column in (self.item_counts, self.decoded_bytes):
            digest.update(np.ascontiguousarray(column, "<i8").tobytes())
        if self._digests is not None:
            digest.update("\0".join(each or "" for each in self._digests).encode())
        return digest.hexdigest()

    @property
    def largest_decoded(self) -> int | None:
        """Size of the largest chunk on disk; None where any size is unknown, 0 for an empty dataset."""
        if not len(self.names):
            return 0
        return None if bool((self.decoded_bytes < 0).any()) else int(self.decoded_bytes.max())

    @property
    def decoded_total(self) -> int | None:
        """Size of all chunks on disk; None where any size is unknown."""
        return None if bool((self.decoded_bytes < 0).any()) else int(self.decoded_bytes.sum())
