"""Decoders of array and tensor leaves: views of the chunk's private map, made without a Python loop where it pays."""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from forebay._formats._leaves import ChunkBytes, IntArray, Leaf
from forebay._formats._map import ByteArray
from forebay._formats._tensor import TensorMaker, tensor_itemsize, tensor_maker
from forebay.exceptions import IntegrityError, UnsupportedFormatError

__all__ = ["NUMPY_CODES", "ArrayLeaf", "FlatArrayLeaf", "FlatTensorLeaf", "TensorLeaf", "numpy_dtype"]

#: The number that stands for a NumPy type in the layout.
NUMPY_CODES: tuple[str, ...] = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128", "bool",
)  # fmt: skip

#: Arrays up to this size are copied, a column in one call (100 ns each, aligned, and they do not keep the chunk's map
#: alive); larger ones are views (270 ns each, whatever the size).
_SMALL = 1024
_MAX_RANK = 64

_Shape = tuple[int, ...]
_Make = Callable[[ByteArray, int, _Shape], Any]


def numpy_dtype(code: int) -> np.dtype[Any]:
    """Return the type that a number stands for, or raise `UnsupportedFormatError`."""
    if not 0 <= code < len(NUMPY_CODES):
        raise UnsupportedFormatError(f"unknown NumPy type number {code}; known are 0 to {len(NUMPY_CODES) - 1}")
    return np.dtype(NUMPY_CODES[code])


def _count(nbytes: int, itemsize: int) -> int:
    count, rest = divmod(nbytes, itemsize)
    if rest:
        raise IntegrityError(f"{nbytes} bytes are no whole number of elements of {itemsize}")
    return count


class FlatArrayLeaf(Leaf):
    """``no_header_numpy:N``: the elements of an array of one dimension."""

    def __init__(self, code: int) -> None:
        self._dtype = numpy_dtype(code)

    def one(self, chunk: ChunkBytes, start: int, end: int) -> Any:
        return np.ndarray((_count(end - start, self._dtype.itemsize),), self._dtype, chunk.array, start)

    def many(self, chunk: ChunkBytes, starts: IntArray, ends: IntArray) -> Sequence[Any]:
        sizes = ends - starts
        nbytes = int(sizes[0])
        if 0 < nbytes <= _SMALL and bool((sizes == nbytes).all()):
            _count(nbytes, self._dtype.itemsize)
            return list(chunk.gather(starts, nbytes).view(self._dtype).reshape(len(starts), -1))
        return super().many(chunk, starts, ends)


class FlatTensorLeaf(Leaf):
    """``no_header_tensor:N``: the elements of a tensor of one dimension."""

    def __init__(self, code: int) -> None:
        self._code = code
        self._itemsize = tensor_itemsize(code)
        self._make: Callable[[ByteArray, int, int], Any] | None = None

    def _maker(self) -> Callable[[ByteArray, int, int], Any]:
        # Here and not in __init__: a process that only reads the index must not import torch.
        if self._make is None:
            self._make = tensor_maker().flat(self._code)
        return self._make

    def one(self, chunk: ChunkBytes, start: int, end: int) -> Any:
        return (self._make or self._maker())(chunk.array, start, _count(end - start, self._itemsize))

    def many(self, chunk: ChunkBytes, starts: IntArray, ends: IntArray) -> Sequence[Any]:
        make, array = self._maker(), chunk.array
        counts, rests = np.divmod(ends - starts, self._itemsize)
        if rests.any():
            raise IntegrityError(f"a tensor's bytes are no whole number of elements of {self._itemsize}")
        return [make(array, start, count) for start, count in zip(starts.tolist(), counts.tolist(), strict=True)]


class _HeaderLeaf(Leaf, ABC):
    """An array with a header: type number, rank, the length of each dimension, as uint32, then the elements."""

    _order: str

    def __init__(self) -> None:
        self._head = struct.Struct(f"{self._order}II")

    @abstractmethod
    def _itemsize(self, code: int) -> int:
        """Return the bytes of one element."""

    @abstractmethod
    def _view(self, code: int) -> _Make:
        """Return ``make(buffer, offset, shape)`` for the type."""

    def _parse(self, chunk: ChunkBytes, start: int, end: int) -> tuple[int, _Shape, int]:
        """Return type number, shape and size of the header, after comparing them with the number of bytes."""
        if end - start < self._head.size:
            raise IntegrityError(f"an array's header takes {self._head.size} bytes, here are {end - start}")
        code, rank = self._head.unpack_from(chunk.view, start)
        size = self._head.size + 4 * rank
        if rank > _MAX_RANK or size > end - start:
            raise IntegrityError(f"an array of {rank} dimensions does not fit into {end - start} bytes")
        shape = struct.unpack_from(f"{self._order}{rank}I", chunk.view, start + self._head.size)
        if math.prod(shape) * self._itemsize(code) != end - start - size:
            raise IntegrityError(
                f"an array of shape {shape} and type number {code} does not take {end - start - size} bytes"
            )
        return code, shape, size

    def one(self, chunk: ChunkBytes, start: int, end: int) -> Any:
        code, shape, size = self._parse(chunk, start, end)
        return self._view(code)(chunk.array, start + size, shape)

    def many(self, chunk: ChunkBytes, starts: IntArray, ends: IntArray) -> Sequence[Any]:
        code, shape, size = self._parse(chunk, int(starts[0]), int(ends[0]))
        sizes = ends - starts
        if not bool((sizes == sizes[0]).all()):
            return super().many(chunk, starts, ends)
        headers = chunk.gather(starts, size).reshape(len(starts), size)
        if not bool((headers == headers[0]).all()):
            return super().many(chunk, starts, ends)
        return self._alike(chunk, starts + size, int(sizes[0]) - size, code, shape)

    def _alike(self, chunk: ChunkBytes, starts: IntArray, nbytes: int, code: int, shape: _Shape) -> Sequence[Any]:
        view, array = self._view(code), chunk.array
        return [view(array, start, shape) for start in starts.tolist()]


class ArrayLeaf(_HeaderLeaf):
    """``numpy``: the header is little-endian."""

    _order = "<"

    def _itemsize(self, code: int) -> int:
        return numpy_dtype(code).itemsize

    def _view(self, code: int) -> _Make:
        dtype, view = numpy_dtype(code), np.ndarray
        return lambda array, offset, shape: view(shape, dtype, array, offset)

    def _alike(self, chunk: ChunkBytes, starts: IntArray, nbytes: int, code: int, shape: _Shape) -> Sequence[Any]:
        # The elements of an array without dimensions would come back as scalars.
        if not 0 < nbytes <= _SMALL or not shape:
            return super()._alike(chunk, starts, nbytes, code, shape)
        return list(chunk.gather(starts, nbytes).view(numpy_dtype(code)).reshape(len(starts), *shape))


class TensorLeaf(_HeaderLeaf):
    """``tensor``: the header is big-endian, the elements are not."""

    _order = ">"

    def __init__(self) -> None:
        super().__init__()
        self._maker: TensorMaker | None = None
        self._views: dict[int, _Make] = {}

    def _itemsize(self, code: int) -> int:
        return tensor_itemsize(code)

    def _view(self, code: int) -> _Make:
        if code not in self._views:
            self._maker = self._maker or tensor_maker()
            self._views[code] = self._maker.shaped(code)
        return self._views[code]
