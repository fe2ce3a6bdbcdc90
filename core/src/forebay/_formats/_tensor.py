"""Tensor leaves: the one module here that imports torch, at the first such leaf; NumPy arrays without torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

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
    """Turns NumPy views of a chunk's bytes into tensors that share their memory."""

    def carrier(self, code: int) -> np.dtype[Any]:
        """Return the type of the NumPy view that ``wrap`` takes."""
        ...

    def wrap(self, code: int) -> Callable[[np.ndarray[Any, Any]], Any]:
        """Return the function that makes a tensor of a view, without a copy."""
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
    def carrier(self, code: int) -> np.dtype[Any]:
        tensor_itemsize(code)
        if TORCH_CODES[code] == "bfloat16":
            raise MissingDependencyError(
                "the dataset holds bfloat16 tensors, which NumPy cannot hold;"
                ' install torch (pip install "forebay[torch]")'
            )
        return np.dtype(TORCH_CODES[code])

    def wrap(self, code: int) -> Callable[[np.ndarray[Any, Any]], Any]:
        self.carrier(code)
        return lambda view: view


class _TorchMaker:
    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def carrier(self, code: int) -> np.dtype[Any]:
        tensor_itemsize(code)
        name = TORCH_CODES[code]
        return np.dtype("int16" if name == "bfloat16" else name)

    def wrap(self, code: int) -> Callable[[np.ndarray[Any, Any]], Any]:
        tensor_itemsize(code)
        # Measured: a NumPy view and from_numpy cost 590 to 730 ns, frombuffer 790 ns, more with a shape.
        from_numpy: Callable[[np.ndarray[Any, Any]], Any] = self._torch.from_numpy
        if TORCH_CODES[code] != "bfloat16":
            return from_numpy
        dtype = self._torch.bfloat16
        return lambda view: from_numpy(view).view(dtype)
