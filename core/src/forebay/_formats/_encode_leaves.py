"""Which leaf type stores a value, and the bytes that it becomes."""

from __future__ import annotations

import os
import pickle
import struct
import sys
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from forebay._formats._arrays import NUMPY_CODES
from forebay._formats._tensor import TORCH_CODES
from forebay.exceptions import DatasetError, UnsafePickleError

__all__ = ["LeafType", "leaf_type"]

_NUMPY_NUMBERS = {name: number for number, name in enumerate(NUMPY_CODES)}
#: The larger of two numbers, as the other writers do.
_TORCH_NUMBERS = {name: number for number, name in sorted(TORCH_CODES.items())}
_INT64 = range(-(1 << 63), 1 << 63)

Encoded = bytes | memoryview


class LeafType(ABC):
    """Encodes the values of one leaf of every item."""

    #: As in ``data_format``.
    name: str
    #: Bytes of an element where the leaf is an array of one dimension.
    itemsize: int = 1

    @abstractmethod
    def encode(self, value: Any, where: str) -> Encoded:
        """Return the bytes of a value, or raise `DatasetError` for one of another type than the first."""

    def _refuse(self, value: Any, where: str) -> DatasetError:
        return DatasetError(
            f"{where} is a {_describe(value)}, which does not fit the leaf type {self.name!r} that the first item set"
        )


def leaf_type(value: Any, where: str, *, allow_pickle: bool) -> LeafType:
    """Choose the leaf type for the first item's value.

    Raises:
        UnsafePickleError: Only pickle stores it, and that was not allowed.
        DatasetError: An array of a type that the layout has no number for.
    """
    if isinstance(value, bool | np.bool_):
        return _Bool()
    if isinstance(value, int | np.integer):
        return _Int()
    if isinstance(value, float | np.floating):
        return _Float()
    if isinstance(value, str):
        return _Text()
    if isinstance(value, bytes | bytearray | memoryview):
        return _Bytes()
    if isinstance(value, np.ndarray) and value.dtype.hasobject is False:
        return _Array(value, where)
    if _is_tensor(value):
        return _Tensor(value, where)
    if _is_image(value):
        return _Jpeg() if _untouched_jpeg(value) else _Image()
    if not allow_pickle:
        raise UnsafePickleError(
            f"{where} is a {_describe(value)}, which only pickle stores; store it as bytes, numbers, text, arrays or"
            " images, or pass allow_pickle=True, here and to whoever reads it"
        )
    return _Pickle()


def _describe(value: Any) -> str:
    kind = type(value)
    detail = getattr(value, "dtype", None) if isinstance(value, np.ndarray) or _is_tensor(value) else None
    text = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return f"{text} of {detail} with {value.ndim} dimensions" if detail is not None else text


def _is_tensor(value: Any) -> bool:
    # A tensor exists only where torch was imported: no import of our own.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_image(value: Any) -> bool:
    image = sys.modules.get("PIL.Image")
    return image is not None and isinstance(value, image.Image)


def _untouched_jpeg(image: Any) -> bool:
    """Whether the image was opened from a JPEG file on disk and not decoded yet, so that the file is what it shows."""
    return (
        getattr(image, "format", None) == "JPEG"
        and bool(getattr(image, "tile", None))
        and isinstance(getattr(image, "filename", None), str)
        and os.path.isfile(image.filename)
    )


class _Bool(LeafType):
    name = "bool"

    def encode(self, value: Any, where: str) -> Encoded:
        if not isinstance(value, bool | np.bool_):
            raise self._refuse(value, where)
        return b"\x01" if value else b"\x00"


class _Int(LeafType):
    name = "int"

    def encode(self, value: Any, where: str) -> Encoded:
        if not isinstance(value, int | np.integer) or isinstance(value, bool):
            raise self._refuse(value, where)
        if int(value) not in _INT64:
            raise DatasetError(f"{where} is {value}, which does not fit into 64 bits; store it as text or bytes")
        return struct.pack("<q", int(value))


class _Float(LeafType):
    name = "float"

    def encode(self, value: Any, where: str) -> Encoded:
        if not isinstance(value, float | np.floating):
            raise self._refuse(value, where)
        return struct.pack("<d", float(value))


class _Text(LeafType):
    name = "str"

    def encode(self, value: Any, where: str) -> Encoded:
        if not isinstance(value, str):
            raise self._refuse(value, where)
        try:
            return value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise DatasetError(f"{where} cannot be stored as UTF-8: {error}") from error


class _Bytes(LeafType):
    name = "bytes"

    def encode(self, value: Any, where: str) -> Encoded:
        if isinstance(value, bytes):
            return value
        if not isinstance(value, bytearray | memoryview):
            raise self._refuse(value, where)
        return bytes(value)  # a copy: the caller may use his buffer again before the chunk is written


class _Array(LeafType):
    """``no_header_numpy:N`` for one dimension, else ``numpy`` with a header of type number, rank and shape."""

    def __init__(self, value: np.ndarray[Any, Any], where: str) -> None:
        self._flat = value.ndim == 1
        number = self._number(value, where)
        self.name = f"no_header_numpy:{number}" if self._flat else "numpy"
        self.itemsize = value.dtype.itemsize

    def _number(self, value: np.ndarray[Any, Any], where: str) -> int:
        number = _NUMPY_NUMBERS.get(value.dtype.name)
        if number is None:
            raise DatasetError(f"{where} is an array of {value.dtype}; the layout has {', '.join(NUMPY_CODES)}")
        return number

    def encode(self, value: Any, where: str) -> Encoded:
        if not isinstance(value, np.ndarray) or (value.ndim == 1) is not self._flat:
            raise self._refuse(value, where)
        number = self._number(value, where)
        raw = value.astype(value.dtype.newbyteorder("<"), copy=False).tobytes()
        if self._flat:
            if not self.name.endswith(f":{number}"):
                raise self._refuse(value, where)
            return raw
        return struct.pack(f"<{2 + value.ndim}I", number, value.ndim, *value.shape) + raw


class _Tensor(LeafType):
    """``no_header_tensor:N`` for one dimension, else ``tensor`` with a big-endian header."""

    def __init__(self, value: Any, where: str) -> None:
        self._flat = value.ndim == 1
        number = self._number(value, where)
        self.name = f"no_header_tensor:{number}" if self._flat else "tensor"
        self.itemsize = value.element_size()

    def _number(self, value: Any, where: str) -> int:
        number = _TORCH_NUMBERS.get(str(value.dtype).removeprefix("torch."))
        if number is None or str(value.layout) != "torch.strided":
            raise DatasetError(
                f"{where} is a tensor of {value.dtype} and {value.layout}; the layout has dense ones of "
                + ", ".join(_TORCH_NUMBERS)
            )
        return number

    def encode(self, value: Any, where: str) -> Encoded:
        if not _is_tensor(value) or (value.ndim == 1) is not self._flat:
            raise self._refuse(value, where)
        number = self._number(value, where)
        torch = sys.modules["torch"]
        dense = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        # As bytes, because NumPy has no bfloat16.
        raw: bytes = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
        if self._flat:
            if not self.name.endswith(f":{number}"):
                raise self._refuse(value, where)
            return raw
        return struct.pack(f">{2 + value.ndim}I", number, value.ndim, *value.shape) + raw


class _Image(LeafType):
    """``pil``: the pixels as they are."""

    name = "pil"

    def encode(self, value: Any, where: str) -> Encoded:
        if not _is_image(value):
            raise self._refuse(value, where)
        if value.mode in ("P", "PA"):
            raise DatasetError(f"{where} is an image with a palette, which the layout does not keep; convert it to RGB")
        mode: bytes = value.mode.encode("ascii")
        return struct.pack("<III", *value.size, len(mode)) + mode + bytes(value.tobytes())


class _Jpeg(LeafType):
    """``jpeg``: the bytes of the file, never encoded a second time."""

    name = "jpeg"

    def encode(self, value: Any, where: str) -> Encoded:
        if not _is_image(value) or not _untouched_jpeg(value):
            raise DatasetError(
                f"{where} is a {_describe(value)}, the first item held a JPEG file's own bytes; encoding it again would"
                " change it: store all of them as such files or all as decoded images"
            )
        with open(value.filename, "rb") as file:
            data: bytes = file.read()
        return data


class _Pickle(LeafType):
    name = "pickle"

    def encode(self, value: Any, where: str) -> Encoded:
        return pickle.dumps(value)
