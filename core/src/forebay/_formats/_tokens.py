"""Blocks of tokens: items of equal length cut out of a chunk's elements, views of the private map."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay._formats import ChunkReader
from forebay._formats._arrays import numpy_dtype
from forebay._formats._leaves import COPIED_TOGETHER
from forebay._formats._map import ByteArray
from forebay._formats._tensor import tensor_itemsize, tensor_maker
from forebay.exceptions import UnsupportedFormatError

__all__ = ["TokenLayout", "TokenReader"]

Wrap = Callable[[np.ndarray[Any, Any]], Any]


class TokenLayout:
    """What all chunks of a dataset of tokens have in common."""

    def __init__(self, kind: str, code: int, block_size: int) -> None:
        self.block_size = block_size
        self._kind, self._code = kind, code
        self._made: tuple[np.dtype[Any], Wrap | None] | None = None
        self.itemsize = tensor_itemsize(code) if kind == "no_header_tensor" else numpy_dtype(code).itemsize

    @classmethod
    def parse(cls, name: str, block_size: int) -> TokenLayout:
        """Read the leaf type, ``no_header_tensor:N`` or ``no_header_numpy:N``."""
        kind, _, code = name.partition(":")
        if kind not in ("no_header_tensor", "no_header_numpy") or not (
            code.isascii() and code.isdigit() and len(code) < 4
        ):
            raise UnsupportedFormatError(f"tokens of the leaf type {name!r} are not read")
        return cls(kind, int(code), block_size)

    @property
    def maker(self) -> tuple[np.dtype[Any], Wrap | None]:
        """The type of a view and what makes a block of it; torch is imported here, at the first block."""
        if self._made is None:
            if self._kind == "no_header_tensor":
                maker = tensor_maker()
                self._made = maker.carrier(self._code), maker.wrap(self._code)
            else:
                self._made = numpy_dtype(self._code), None
        return self._made


class TokenReader(ChunkReader):
    """The blocks of one chunk. Tokens behind the last whole block are not part of any item."""

    def __init__(self, array: ByteArray, start: int, items: int, layout: TokenLayout) -> None:
        self._array = array
        self._start = start
        self._items = items
        self._layout = layout
        #: Every block, one a row: a row costs half of an array made by itself.
        self._blocks: np.ndarray[Any, Any] | None = None
        self._wrap: Wrap | None = None
        self._copies = False

    def __len__(self) -> int:
        return self._items

    def read(self, item: int) -> Any:
        """Return one block, a view or a copy."""
        if not 0 <= item < self._items:
            raise IndexError(f"block {item} of {self._items}")
        block = self._rows()[item]
        if self._copies:
            block = block.copy()
        return block if self._wrap is None else self._wrap(block)

    def read_many(self, items: Sequence[int] | range | npt.NDArray[np.integer[Any]]) -> list[Any]:
        """Return several blocks, views or copies."""
        wanted: Sequence[int] = items.tolist() if isinstance(items, np.ndarray) else items
        if not len(wanted):
            return []
        if not (min(wanted) >= 0 and max(wanted) < self._items):
            raise IndexError(f"blocks {min(wanted)} to {max(wanted)} of {self._items}")
        blocks = self._rows()
        rows = _copied(blocks, wanted) if self._copies else map(blocks.__getitem__, wanted)
        return list(rows if self._wrap is None else map(self._wrap, rows))

    def copying(self) -> TokenReader:
        """See `ChunkReader`."""
        reader = copy.copy(self)
        reader._copies = True
        return reader

    def close(self) -> None:
        """Let go of the map; blocks that are out keep it."""
        self._items = 0
        self._blocks = None
        self._array = np.empty(0, dtype=np.uint8)

    def _rows(self) -> np.ndarray[Any, Any]:
        blocks = self._blocks
        if blocks is None:
            dtype, self._wrap = self._layout.maker
            shape = (self._items, self._layout.block_size)
            self._blocks = blocks = np.ndarray(shape, dtype, self._array, self._start)
        return blocks


def _copied(blocks: np.ndarray[Any, Any], wanted: Sequence[int]) -> Iterator[np.ndarray[Any, Any]]:
    """Copy a few blocks in each call, a quarter quicker than one by one; who keeps a block keeps all of its call."""
    at_once = max(COPIED_TOGETHER // max(blocks[0].nbytes, 1), 1)
    for first in range(0, len(wanted), at_once):
        yield from blocks[np.asarray(wanted[first : first + at_once])]
