"""Decoders of single leaves: numbers, text, bytes, JSON. Each has a way for one value and one for a column.

A decoder raises `IntegrityError` (or a plain ``ValueError``) for bytes that are not what they should be; the reader
adds chunk, item and leaf to the message.
"""

from __future__ import annotations

import json
import math
import pickle
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from forebay._formats._map import ByteArray
from forebay.exceptions import IntegrityError, UnsupportedFormatError

__all__ = [
    "COPIED_TOGETHER", "BytesLeaf", "BytesViewLeaf", "ChunkBytes", "IntArray", "JsonLeaf", "Leaf", "PickleLeaf",
    "ScalarLeaf", "TextLeaf",
]  # fmt: skip

IntArray = npt.NDArray[np.int64]

#: Values above this size are copied by `ChunkBytes.copy`.
_LARGE = 32 << 10
#: Bytes of arrays that are copied in one call; who keeps one array keeps the memory of all of these.
COPIED_TOGETHER = 256 << 10


class ChunkBytes:
    """The bytes of one chunk in the three shapes that decoders read them in.

    With ``copies`` decoders copy what they would else make a view of, since somebody may read it again.
    """

    __slots__ = ("_shaped", "_windows", "array", "copies", "view")

    def __init__(self, array: ByteArray, *, copies: bool = False) -> None:
        if copies and not _heap.calm:
            _heap.settle()
        self.array = array
        self.copies = copies
        self.view = array.data
        self._windows: dict[int, npt.NDArray[np.void]] = {}
        self._shaped: tuple[np.dtype[Any], tuple[int, ...], np.ndarray[Any, Any]] | None = None

    def gather(self, starts: IntArray, width: int) -> ByteArray:
        """Copy ``width`` bytes from each start into one contiguous array.

        Indexing a view whose elements overlap, one starting at each byte, copies 8 bytes in 6 ns; a slice takes 100 ns.
        """
        if not width or not len(starts):
            return np.empty(0, dtype=np.uint8)
        every = self._windows.get(width)
        if every is None:
            places = max(len(self.array) - width + 1, 0)
            every = np.ndarray((places,), np.dtype((np.void, width)), self.array, strides=(1,))
            self._windows[width] = every
        return every[starts].view(np.uint8)

    def views(
        self,
        starts: IntArray,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        wrap: Callable[[np.ndarray[Any, Any]], Any] | None,
    ) -> list[Any]:
        """Return an array of ``shape`` at each start, a view of the chunk, handed to ``wrap`` where there is one.

        Rows of one array whose rows overlap, one starting at each byte, cost 130 ns, an array made by itself 220.
        """
        width = math.prod(shape) * dtype.itemsize
        if not shape or (self.copies and not width):  # indexing would give scalars and not arrays
            every = (np.ndarray(shape, dtype, self.array, start) for start in starts.tolist())
            own = (array.copy() for array in every) if self.copies else every
            return list(own if wrap is None else map(wrap, own))
        if self.copies:
            copied = self._copied(starts, dtype, shape, width)
            return copied if wrap is None else list(map(wrap, copied))
        shaped = self._shaped
        if shaped is None or shaped[0] is not dtype or shaped[1] != shape:
            places = max(len(self.array) - width + 1, 0)
            steps = [dtype.itemsize]
            for length in shape[:0:-1]:
                steps.append(steps[-1] * length)
            rows = np.ndarray((places, *shape), dtype, self.array, 0, (1, *reversed(steps)))
            self._shaped = shaped = dtype, shape, rows
        row = shaped[2].__getitem__
        return list(map(row, starts.tolist()) if wrap is None else map(wrap, map(row, starts.tolist())))

    def _copied(
        self, starts: IntArray, dtype: np.dtype[Any], shape: tuple[int, ...], width: int
    ) -> list[np.ndarray[Any, Any]]:
        """The same as copies: 4 kB cost 120 ns more than a view so, and 450 where each array is copied by itself."""
        at_once = max(COPIED_TOGETHER // width, 1)
        arrays: list[np.ndarray[Any, Any]] = []
        for first in range(0, len(starts), at_once):
            some = self.gather(starts[first : first + at_once], width)
            arrays.extend(some.view(dtype).reshape(-1, *shape))
        return arrays

    def window(self, start: int, end: int) -> memoryview:
        """Return a copy of many bytes that can be written to, as a view can."""
        return memoryview(bytearray(self.view[start:end]))

    def copy(self, start: int, end: int) -> bytes:
        """Return many bytes.

        Measured with 100 kB out of 500 MB: 20 µs, nearly all of it the memory's speed. Reading through a descriptor
        maps no pages and costs 23 µs; it is faster only while the processor's cache holds the chunk.
        """
        if not _heap.calm:
            _heap.settle()
        return self.view[start:end].tobytes()


class _Heap:
    """Keeps glibc from giving a batch's memory back to the system and faulting it in again for the next batch.

    Measured with batches of 64 items of 100 kB: 20,000 items a second without, 64,000 with. glibc raises its thresholds
    for trimming to twice the size of a block that it has freed: one block of nearly the largest size that counts for
    this, never written to, costs nothing. Training does the same sooner or later, when it frees its first large tensor.
    """

    calm = False

    def settle(self) -> None:
        np.empty(31 << 20, dtype=np.uint8)
        self.calm = True


_heap = _Heap()


class Leaf(ABC):
    """The decoder of one leaf of every item."""

    #: Bytes of every value where that is fixed; the reader checks it before it calls ``many``.
    width: int | None = None
    #: The letter of `struct` for a plain number.
    code: str | None = None
    #: A Python expression over ``view``, ``chunk`` and the bounds ``{a}`` and ``{b}`` that does what ``one`` does.
    expression: ClassVar[str | None] = None
    #: Whether ``many`` does better than a call of ``one`` for each value.
    in_columns: ClassVar[bool] = False

    @abstractmethod
    def one(self, chunk: ChunkBytes, start: int, end: int) -> Any:
        """Decode the bytes from ``start`` to ``end``."""

    def many(self, chunk: ChunkBytes, starts: IntArray, ends: IntArray) -> Sequence[Any]:
        """Decode a column: one value for each pair of bounds."""
        one = self.one
        return [one(chunk, start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


class ScalarLeaf(Leaf):
    """A number of fixed width: ``int`` and ``float`` take eight bytes, little-endian, ``bool`` takes one."""

    in_columns = True

    def __init__(self, code: str) -> None:
        self.code = code
        self._struct = struct.Struct(f"<{code}")
        self._unpack = self._struct.unpack_from
        self.width = self._size = self._struct.size
        self._dtype = np.dtype({"q": "<i8", "d": "<f8", "?": "?"}[code])

    def one(self, chunk: ChunkBytes, start: int, end: int) -> Any:
        if end - start != self._size:
            raise IntegrityError(f"a number takes {self._size} bytes, here are {end - start}")
        return self._unpack(chunk.view, start)[0]

    def many(self, chunk: ChunkBytes, starts: IntArray, ends: IntArray) -> Sequence[Any]:
        raw = chunk.gather(starts, self._size)
        # Any byte but 0 is true; a NumPy bool made of another byte than 1 would be undefined.
        values: list[Any] = ((raw != 0) if self._dtype == np.bool_ else raw.view(self._dtype)).tolist()
        return values


class TextLeaf(Leaf):
    """UTF-8 text."""

    expression = 'str(view[{a}:{b}], "utf-8")'

    def one(self, chunk: ChunkBytes, start: int, end: int) -> Any:
        return str(chunk.view[start:end], "utf-8")

    def many(self, chunk: ChunkBytes, starts: IntArray, ends: IntArray) -> Sequence[Any]:
        view = chunk.view
        return [str(view[start:end], "utf-8") for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


class BytesLeaf(Leaf):
    """Bytes as they were stored; encoded media that we do not decode (video, audio, PDF) come back so too."""

    expression = f"chunk.copy({{a}}, {{b}}) if {{b}} - {{a}} > {_LARGE} else view[{{a}}:{{b}}].tobytes()"

    def one(self, chunk: ChunkBytes, start: int, end: int) -> Any:
        return chunk.copy(start, end) if end - start > _LARGE else chunk.view[start:end].tobytes()

    def many(self, chunk: ChunkBytes, starts: IntArray, ends: IntArray) -> Sequence[Any]:
        view, bounds = chunk.view, zip(starts.tolist(), ends.tolist(), strict=True)
        if int((ends - starts).max()) > _LARGE:
            return [chunk.copy(start, end) for start, end in bounds]
        return [view[start:end].tobytes() for start, end in bounds]


class BytesViewLeaf(Leaf):
    """Bytes as views of the chunk's private map, for who does not send them to another process."""

    expression = "chunk.window({a}, {b}) if chunk.copies else view[{a}:{b}]"

    def one(self, chunk: ChunkBytes, start: int, end: int) -> Any:
        return chunk.window(start, end) if chunk.copies else chunk.view[start:end]


class JsonLeaf(Leaf):
    """A nested value as one leaf, as litdata 0.2.76 writes it: a flag byte, 0 for JSON, a uint32 length, UTF-8 JSON."""

    _header = struct.Struct("<BI")

    def one(self, chunk: ChunkBytes, start: int, end: int) -> Any:
        if end - start < 1:
            raise IntegrityError("a json leaf is empty")
        flag = chunk.view[start]
        if flag != 0:
            raise UnsupportedFormatError(
                f"a json leaf has the encoding flag {flag}; this version reads flag 0 (JSON text)"
            )
        if end - start < self._header.size:
            raise IntegrityError(f"a json leaf has a header of {self._header.size} bytes, here are {end - start}")
        length = self._header.unpack_from(chunk.view, start)[1]
        begin = start + self._header.size
        if begin + length != end:
            raise IntegrityError(f"a json leaf promises {length} bytes of JSON and has {end - begin}")
        return json.loads(str(chunk.view[begin:end], "utf-8"))


class PickleLeaf(Leaf):
    """A pickled object. Made only where the user said ``allow_pickle=True``."""

    def one(self, chunk: ChunkBytes, start: int, end: int) -> Any:
        return pickle.loads(chunk.view[start:end])
