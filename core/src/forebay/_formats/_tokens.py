"""Blocks of tokens: items of equal length cut out of a chunk's elements, views of the private map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay._formats import ChunkReader
from forebay._formats._arrays import numpy_dtype
from forebay._formats._map import ByteArray
from forebay._formats._tensor import tensor_itemsize, tensor_maker
from forebay.exceptions import UnsupportedFormatError

__all__ = ["TokenLayout", "TokenReader"]

Maker = Callable[[ByteArray, int, int], Any]


class TokenLayout:
    """What all chunks of a dataset of tokens have in common."""

    def __init__(self, kind: str, code: int, block_size: int) -> None:
        self.block_size = block_size
        self._kind, self._code = kind, code
        self._make: Maker | None = None
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
    def make(self) -> Maker:
        """``make(buffer, offset, count)``; torch is imported here, at the first block, not with the index."""
        if self._make is None:
            if self._kind == "no_header_tensor":
                self._make = tensor_maker().flat(self._code)
            else:
                dtype, view = numpy_dtype(self._code), np.ndarray
                self._make = lambda buffer, offset, count: view((count,), dtype, buffer, offset)
        return self._make


class TokenReader(ChunkReader):
    """The blocks of one chunk. Tokens behind the last whole block are not part of any item."""

    def __init__(self, array: ByteArray, start: int, items: int, layout: TokenLayout) -> None:
        self._array = array
        self._start = start
        self._items = items
        self._layout = layout
        self._stride = layout.block_size * layout.itemsize

    def __len__(self) -> int:
        return self._items

    def read(self, item: int) -> Any:
        """Return one block, a view."""
        if not 0 <= item < self._items:
            raise IndexError(f"block {item} of {self._items}")
        return self._layout.make(self._array, self._start + item * self._stride, self._layout.block_size)

    def read_many(self, items: Sequence[int] | range | npt.NDArray[np.integer[Any]]) -> list[Any]:
        """Return several blocks, views."""
        wanted: Sequence[int] = items.tolist() if isinstance(items, np.ndarray) else items
        if len(wanted) and not (min(wanted) >= 0 and max(wanted) < self._items):
            raise IndexError(f"blocks {min(wanted)} to {max(wanted)} of {self._items}")
        make, array, start, stride, size = (
            self._layout.make,
            self._array,
            self._start,
            self._stride,
            self._layout.block_size,
        )
        return [make(array, start + item * stride, size) for item in wanted]

    def close(self) -> None:
        """Let go of the map; blocks that are out keep it."""
        self._items = 0
        self._array = np.empty(0, dtype=np.uint8)
