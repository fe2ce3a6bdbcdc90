"""Decoders of array and tensor leaves: views of the chunk's private map, made without a Python loop where it pays."""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from forebay._formats._leaves import ChunkBytes, IntArray, Leaf
from forebay._formats._tensor import tensor_itemsize, tensor_maker
from forebay.exceptions import IntegrityError, UnsupportedFormatError

__all__ = ["NUMPY_CODES", "ArrayLeaf", "FlatArrayLeaf", "FlatTensorLeaf", "TensorLeaf", "numpy_dtype"]

#: The number that stands for a NumPy type in the layout.
NUMPY_CODES: tuple[str, ...] = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128", "bool",
)  # fmt: skip

#: Arrays up to this size are copied, so that they are aligned and do not keep the chunk's map alive; a column is copied
#: in one call, 100 ns each. Larger ones are views.
_SMALL = 1024
_MAX_RANK = 64

_Shape = tuple[int, ...]
_Wrap = Callable[[np.ndarray[Any, Any]], Any]


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

    in_columns = True

    def __init__(self, code: int) -> None:
        self._dtype = numpy_dtype(code)

    def one(self, chunk: ChunkBytes, start: int, end: int) -> Any:
        view = np.ndarray((_count(end - start, self._dtype.itemsize),), self._dtype, chunk.array, start)
        return view.copy() if end - start <= _SMALL or chunk.copies else view

    def many(self, chunk: ChunkBytes, starts: IntArray, ends: IntArray) -> Sequence[Any]:
        sizes = ends - starts
        nbytes = int(sizes[0])
        if not nbytes or not (nbytes <= _SMALL or chunk.copies) or not bool((sizes == nbytes).all()):
            return super().many(chunk, starts, ends)
        shape = (_count(nbytes, self._dtype.itemsize),)
        if chunk.copies:
            return chunk.views(starts, self._dtype, shape, None)
        return list(chunk.gather(starts, nbytes).view(self._dtype).reshape(len(starts), *shape))


class FlatTensorLeaf(Leaf):
    """``no_header_tensor:N``: the elements of a tensor of one dimension."""

    in_columns = True

    def __init__(self, code: int) -> None:
        self._code = code
        self._itemsize = tensor_itemsize(code)
        self._made: tuple[np.dtype[Any], _Wrap] | None = None

    def _maker(self) -> tuple[np.dtype[Any], _Wrap]:
        # Here and not in __init__: a process that only reads the index must not import torch.
        if self._made is None:
            maker = tensor_maker()
            self._made = maker.carrier(self._code), maker.wrap(self._code)
        return self._made

    def one(self, chunk: ChunkBytes, start: int, end: int) -> Any:
        dtype, wrap = self._made or self._maker()
        view = np.ndarray((_count(end - start, self._itemsize),), dtype, chunk.array, start)
        return wrap(view.copy() if chunk.copies else view)

    def many(self, chunk: ChunkBytes, starts: IntArray, ends: IntArray) -> Sequence[Any]:
        sizes = ends - starts
        if not bool((sizes == sizes[0]).all()):
            return super().many(chunk, starts, ends)
        dtype, wrap = self._maker()
        return chunk.views(starts, dtype, (_count(int(sizes[0]), self._itemsize),), wrap)


class _HeaderLeaf(Leaf, ABC):
    """An array with a header: type number, rank, the length of each dimension, as uint32, then the elements."""

    in_columns = True
    _order: str

    def __init__(self) -> None:
        self._head = struct.Struct(f"{self._order}II")
        #: The last header that was seen, the bytes of its array and what it says: neighbours are mostly alike.
        self._seen: tuple[int, int, bytes, np.dtype[Any], _Wrap | None, _Shape] | None = None

    @abstractmethod
    def _itemsize(self, code: int) -> int:
        """Return the bytes of one element."""

    @abstractmethod
    def _maker(self, code: int) -> tuple[np.dtype[Any], _Wrap | None]:
        """Return the type of a view, and what makes the value of it, None for the view itself."""

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
        seen = self._seen
        if seen is not None:
            total, size, header, dtype, wrap, shape = seen
            if end - start == total and chunk.view[start : start + size] == header:
                return _value(np.ndarray(shape, dtype, chunk.array, start + size), wrap, chunk.copies)
        code, shape, size = self._parse(chunk, start, end)
        dtype, wrap = self._maker(code)
        self._seen = end - start, size, chunk.view[start : start + size].tobytes(), dtype, wrap, shape
        return _value(np.ndarray(shape, dtype, chunk.array, start + size), wrap, chunk.copies)

    def many(self, chunk: ChunkBytes, starts: IntArray, ends: IntArray) -> Sequence[Any]:
        code, shape, size = self._parse(chunk, int(starts[0]), int(ends[0]))
        sizes = ends - starts
        if not bool((sizes == sizes[0]).all()):
            return super().many(chunk, starts, ends)
        headers = chunk.gather(starts, size).reshape(len(starts), size)
        if not bool((headers == headers[0]).all()):
            return super().many(chunk, starts, ends)
        dtype, wrap = self._maker(code)
        nbytes = int(sizes[0]) - size
        # The elements of an array without dimensions would come back as scalars.
        if wrap is None and shape and 0 < nbytes <= _SMALL and not chunk.copies:
            return list(chunk.gather(starts + size, nbytes).view(dtype).reshape(len(starts), *shape))
        return chunk.views(starts + size, dtype, shape, wrap)


def _value(view: np.ndarray[Any, Any], wrap: _Wrap | None, copies: bool) -> Any:
    if wrap is not None:
        return wrap(view.copy() if copies else view)
    return view.copy() if copies or view.nbytes <= _SMALL else view


class ArrayLeaf(_HeaderLeaf):
    """``numpy``: the header is little-endian."""

    _order = "<"

    def _itemsize(self, code: int) -> int:
        return numpy_dtype(code).itemsize

    def _maker(self, code: int) -> tuple[np.dtype[Any], _Wrap | None]:
        return numpy_dtype(code), None


class TensorLeaf(_HeaderLeaf):
    """``tensor``: the header is big-endian, the elements are not."""

    _order = ">"

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, tuple[np.dtype[Any], _Wrap]] = {}

    def _itemsize(self, code: int) -> int:
        return tensor_itemsize(code)

    def _maker(self, code: int) -> tuple[np.dtype[Any], _Wrap | None]:
        if code not in self._made:
            maker = tensor_maker()
            self._made[code] = maker.carrier(code), maker.wrap(code)
        return self._made[code]
