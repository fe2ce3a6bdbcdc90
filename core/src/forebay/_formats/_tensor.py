"""Tensor leaves: the one module here that imports torch, at the first such leaf; NumPy arrays without torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from forebay._formats._map import ByteArray
from forebay.exceptions import MissingDependencyError, UnsupportedFormatError

__all__ = ["TORCH_CODES", "TensorMaker", "tensor_itemsize", "tensor_maker"]

#: The number that stands for a type in the layout, as a NumPy type string. Some types have two numbers; writers use the
#: second one. bfloat16 has no NumPy type.
TORCH_CODES: dict[int, str] = {
    0: "float32", 1: "float32", 2: "float64", 3: "float64", 4: "complex64", 5: "complex64", 6: "complex128",
    7: "complex128", 8: "float16", 9: "float16", 10: "bfloat16", 11: "uint8", 12: "int8", 13: "int16", 14: "int16",
    15: "int32", 16: "int32", 17: "int64", 18: "int64", 19: "bool", 20: "uint16",
}  # fmt: skip


class TensorMaker(Protocol):
    """Makes tensors that are views of a chunk's bytes; ``flat`` is the fast way for one dimension."""

    def flat(self, code: int) -> Callable[[ByteArray, int, int], Any]:
        """Return ``make(buffer, offset, count)`` for tensors of one dimension."""
        ...

    def shaped(self, code: int) -> Callable[[ByteArray, int, tuple[int, ...]], Any]:
        """Return ``make(buffer, offset, shape)``."""
        ...


def tensor_itemsize(code: int) -> int:
    """Return the bytes of one element, or raise `UnsupportedFormatError` for an unknown number."""
    name = TORCH_CODES.get(code)
    if name is None:
        raise UnsupportedFormatError(f"unknown tensor type number {code}; known are 0 to {max(TORCH_CODES)}")
    return 2 if name == "bfloat16" else np.dtype(name).itemsize


def tensor_maker() -> TensorMaker:
    """Return the maker for torch, or for NumPy where torch is not installed."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":  # torch is there and broken: its own error says more than an array would
            raise
        return _NumpyMaker()
    return _TorchMaker(torch)


class _NumpyMaker:
    def _dtype(self, code: int) -> np.dtype[Any]:
        tensor_itemsize(code)
        if TORCH_CODES[code] == "bfloat16":
            raise MissingDependencyError(
                "the dataset holds bfloat16 tensors, which NumPy cannot hold;"
                ' install torch (pip install "forebay[torch]")'
            )
        return np.dtype(TORCH_CODES[code])

    def flat(self, code: int) -> Callable[[ByteArray, int, int], Any]:
        dtype, view = self._dtype(code), np.ndarray
        return lambda buffer, offset, count: view((count,), dtype, buffer, offset)

    def shaped(self, code: int) -> Callable[[ByteArray, int, tuple[int, ...]], Any]:
        dtype, view = self._dtype(code), np.ndarray
        return lambda buffer, offset, shape: view(shape, dtype, buffer, offset)


class _TorchMaker:
    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def _dtype(self, code: int) -> Any:
        tensor_itemsize(code)
        return getattr(self._torch, TORCH_CODES[code])

    def flat(self, code: int) -> Callable[[ByteArray, int, int], Any]:
        dtype, frombuffer, empty = self._dtype(code), self._torch.frombuffer, self._torch.empty

        def make(buffer: ByteArray, offset: int, count: int) -> Any:
            # frombuffer refuses to make an empty tensor.
            return frombuffer(buffer, dtype=dtype, count=count, offset=offset) if count else empty(0, dtype=dtype)

        return make

    def shaped(self, code: int) -> Callable[[ByteArray, int, tuple[int, ...]], Any]:
        dtype, from_numpy, view = self._dtype(code), self._torch.from_numpy, np.ndarray
        if TORCH_CODES[code] == "bfloat16":
            carrier = np.dtype("int16")
            return lambda buffer, offset, shape: from_numpy(view(shape, carrier, buffer, offset)).view(dtype)
        like = np.dtype(TORCH_CODES[code])
        # Measured: an array of the right shape and from_numpy cost half of frombuffer and reshape.
        return lambda buffer, offset, shape: from_numpy(view(shape, like, buffer, offset))
