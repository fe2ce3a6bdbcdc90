"""A batch on its way from a worker to the trainer.

torch sends every tensor's memory by a descriptor of its own, for which the trainer calls back at the worker: some
250 µs each, however small the tensor is. Small ones go along in the message here, and so do views of bytes. And torch
pickles in a thread whose errors nobody hears of, so that the trainer waits for ever; here the worker pickles, and what
is wrong is raised.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from forebay.exceptions import ConfigError

__all__ = ["Parcel"]

#: Bytes up to which a tensor goes along in the message.
SMALL = 1 << 19


class Parcel:
    """Something that is pickled now; unpickled, it is that thing again.

    Args:
        content: What is sent.
        what: What that is, for the error.

    Raises:
        ConfigError: It cannot be pickled.
    """

    def __init__(self, content: object, what: str) -> None:
        stream = io.BytesIO()
        try:
            _Pickler(stream).dump(content)
        except (pickle.PicklingError, AttributeError, TypeError) as exc:
            raise ConfigError(
                f"{what} cannot be sent by a worker ({exc}): have it made of tensors, arrays, numbers, text and bytes,"
                " or give num_workers=0",
                option="num_workers",
            ) from exc
        self._data = stream.getvalue()

    def __reduce__(self) -> tuple[Any, ...]:
        return ForkingPickler.loads, (self._data,)


class _Pickler(ForkingPickler):
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        table: Any = self.dispatch_table  # this pickler's own copy
        table[torch.Tensor] = partial(_reduce_tensor, table[torch.Tensor])
        table[memoryview] = _reduce_view


def _reduce_tensor(as_torch: Callable[[Any], tuple[Any, ...]], tensor: torch.Tensor) -> tuple[Any, ...]:
    if not _goes_along(tensor):
        return as_torch(tensor)
    plain = tensor.detach().resolve_conj().resolve_neg()
    # Not reshape: a dimension of one element may have any stride, and torch calls that contiguous.
    data: Any = plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy()
    return _tensor, (pickle.PickleBuffer(data), tensor.dtype, tuple(tensor.shape))


def _reduce_view(view: memoryview) -> tuple[Any, ...]:
    if not view.c_contiguous or view.format != "B":
        raise pickle.PicklingError("a memoryview that is not of neighbouring bytes")
    return memoryview, (pickle.PickleBuffer(view),)


def _goes_along(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.device.type == "cpu"
        and tensor.nbytes <= SMALL
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_quantized)
    )


def _tensor(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not math.prod(shape):  # no buffer can be empty
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)
