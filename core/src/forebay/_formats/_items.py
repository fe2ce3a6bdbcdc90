"""The items of one chunk of the litdata layout: one by one, a few at a time, or a column after the other."""

from __future__ import annotations

import copy
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay._formats import ChunkReader
from forebay._formats._compiled import RowDecoder, compile_rows
from forebay._formats._leaves import ChunkBytes, Leaf
from forebay._formats._tree import Builders, Node, compile_builders, leaf_paths
from forebay.exceptions import IntegrityError, MissingDependencyError, UnsupportedFormatError

__all__ = ["ItemLayout", "ItemReader"]

#: Below this number of items the vectorised way costs more than one item after the other; the second number is for
#: items with an array or a tensor, which gain more by it.
_FEW, _FEW_ARRAYS = 48, 24
#: What a decoder raises for damaged bytes; a pickled object may raise anything, and that is the user's to see.
_DAMAGE = (IntegrityError, UnsupportedFormatError, ValueError, IndexError, OverflowError, struct.error)
_U4 = np.dtype("<u4")
_BOUNDS = struct.Struct("<II").unpack_from


@dataclass(frozen=True, slots=True, eq=False)
class ItemLayout:
    """What all chunks of a dataset have in common, made once."""

    leaves: Sequence[Leaf]
    paths: Sequence[str]
    builders: Builders
    rows: RowDecoder | None
    #: From this number of items on a batch is decoded in columns.
    few: int
    #: Which leaves are of fixed width, None for none of them, and their widths.
    fixed: npt.NDArray[np.int64] | None
    widths: npt.NDArray[np.int64]
    #: ``unpack_from`` of the sizes in front of an item.
    sizes: Any

    @classmethod
    def compile(cls, root: Node, leaves: Sequence[Leaf]) -> ItemLayout:
        """Make the decoders of a structure."""
        rows = compile_rows(root, leaves)
        arrays = any(leaf.in_columns and leaf.code is None for leaf in leaves)
        fixed = [place for place, leaf in enumerate(leaves) if leaf.width is not None]
        return cls(
            leaves=leaves,
            paths=leaf_paths(root),
            builders=compile_builders(root),
            rows=rows,
            few=0 if rows is None else _FEW_ARRAYS if arrays else _FEW,
            fixed=np.array(fixed) if fixed else None,
            widths=np.array([leaves[place].width for place in fixed], dtype=np.int64),
            sizes=struct.Struct(f"<{len(leaves)}I").unpack_from,
        )


class ItemReader(ChunkReader):
    """The items of one chunk."""

    def __init__(self, chunk: ChunkBytes, offsets: npt.NDArray[np.uint32], layout: ItemLayout, where: str) -> None:
        self._items = len(offsets) - 1
        self._offsets: npt.NDArray[np.uint32] | None = offsets
        self._chunk = chunk
        self._layout = layout
        self._rows = layout.rows
        self._where = where

    def __len__(self) -> int:
        return self._items

    def read(self, item: int) -> Any:
        """Return one item."""
        if not 0 <= item < self._items:
            raise self._outside(item)
        if self._rows is not None:
            try:
                return self._rows.one(self._chunk, item)
            except MissingDependencyError:  # a ValueError that says nothing of the bytes
                raise
            except _DAMAGE:
                pass
        return self._read_leaf_by_leaf(item)

    def read_many(self, items: Sequence[int] | range | npt.NDArray[np.integer[Any]]) -> list[Any]:
        """Return several items: a few one after the other, many in columns, one decoder call a leaf."""
        count = len(items)
        if count >= self._layout.few:
            return self._read_columns(items) if count else []
        wanted: Sequence[int] = items.tolist() if isinstance(items, np.ndarray) else items
        if count and not (min(wanted) >= 0 and max(wanted) < self._items):
            raise self._outside(next(item for item in wanted if not 0 <= item < self._items))
        assert self._rows is not None  # else no number is few
        try:
            return self._rows.few(self._chunk, wanted)
        except MissingDependencyError:
            raise
        except _DAMAGE:
            # The slow way finds the item and says which leaf of it is damaged.
            return [self._read_leaf_by_leaf(item) for item in wanted]

    def copying(self) -> ItemReader:
        """See `ChunkReader`."""
        reader = copy.copy(self)
        reader._chunk = ChunkBytes(self._chunk.array, copies=True)
        return reader

    def close(self) -> None:
        """Let go of the map; views that are out keep it."""
        self._offsets = None
        self._items = 0
        self._chunk = ChunkBytes(np.empty(0, dtype=np.uint8))

    def _read_columns(self, items: Sequence[int] | range | npt.NDArray[np.integer[Any]]) -> list[Any]:
        if isinstance(items, range):
            places = np.arange(items.start, items.stop, items.step, dtype=np.int64)
        else:
            places = np.asarray(items, dtype=np.int64)
        if int(places.view(np.uint64).max()) >= self._items:  # a negative number is a huge one here
            raise self._outside(int(places[(places < 0) | (places >= self._items)][0]))
        layout, chunk = self._layout, self._chunk
        try:
            edges = self._edges(places)
            columns = [leaf.many(chunk, edges[n], edges[n + 1]) for n, leaf in enumerate(layout.leaves)]
        except MissingDependencyError:
            raise
        except _DAMAGE:
            return [self._read_leaf_by_leaf(item) for item in places.tolist()]
        return layout.builders.many(*columns)

    def _edges(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return where each leaf of each item begins: one row a leaf, and a last one with the ends of the items."""
        offsets, layout = self._offsets, self._layout
        if offsets is None:
            raise ValueError(f"the reader of {self._where} is closed")
        leaves = len(layout.leaves)
        edges = np.empty((leaves + 1, len(places)), dtype=np.int64)
        starts = edges[0]
        starts[:] = offsets[places]
        sizes = self._chunk.gather(starts, 4 * leaves).view(_U4).reshape(len(places), leaves)
        if layout.fixed is not None and (sizes[:, layout.fixed] != layout.widths).any():
            raise IntegrityError("a number does not have its width")
        starts += 4 * leaves
        edges[1:] = sizes.T
        np.cumsum(edges, axis=0, out=edges)
        # Sizes are not negative: an item smaller than its own head cannot pass either.
        if (edges[-1] != offsets[places + 1]).any():
            raise IntegrityError("the leaves do not fill their item")
        return edges

    def _read_leaf_by_leaf(self, item: int) -> Any:
        """Decode an item in the way that can say which leaf of it is damaged."""
        chunk, layout = self._chunk, self._layout
        values: list[Any] = []
        try:
            start, end = _BOUNDS(chunk.view, 4 + 4 * item)
            begin = start + 4 * len(layout.leaves)
            if begin > end:
                raise IntegrityError(f"{end - start} bytes are less than the sizes of {len(layout.leaves)} leaves")
            for leaf, size in zip(layout.leaves, layout.sizes(chunk.view, start), strict=True):
                stop = begin + size
                if stop > end:
                    raise IntegrityError(f"{size} bytes do not fit into the {end - begin} that are left of the item")
                values.append(leaf.one(chunk, begin, stop))
                begin = stop
            if begin != end:
                raise IntegrityError(f"{end - begin} bytes are left over behind the last leaf")
        except MissingDependencyError:  # a ValueError that says nothing of the bytes
            raise
        except _DAMAGE as error:
            raise self._damaged(item, len(values), error) from error
        return layout.builders.one(*values)

    def _outside(self, item: int) -> Exception:
        if self._offsets is None:
            return ValueError(f"the reader of {self._where} is closed")
        return IndexError(f"item {item} of the {self._items} in {self._where}")

    def _damaged(self, item: int, leaf: int, error: Exception) -> Exception:
        if self._offsets is None:
            return ValueError(f"the reader of {self._where} is closed")
        path = self._layout.paths[leaf] if leaf < len(self._layout.paths) else "its end"
        # An Arrow footer replaces the items' bytes; litdata 0.2.76 writes one where pyarrow is installed.
        if bytes(self._chunk.view[-8:]) == b"LDARW01\0":
            return UnsupportedFormatError(f"{self._where} holds its items as an Arrow table, which is not read")
        kind = UnsupportedFormatError if isinstance(error, UnsupportedFormatError) else IntegrityError
        return kind(f"{self._where}: item {item}: {path}: {error}")
