"""A batch on its way from a worker to the trainer.

torch sends every tensor's memory by a descriptor of its own, for which the trainer calls back at the worker: some
250 µs each, however small the tensor is. Small ones go along in the message here, and so do views of bytes; large ones
lie in a buffer that both have. And torch pickles in a thread whose errors nobody hears of, so that the trainer waits
for ever; here the worker pickles, and what is wrong is raised.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from forebay.exceptions import ConfigError
from forebay.torch._buffers import in_this_worker

__all__ = ["Parcel"]

#: Bytes up to which a tensor goes along in the message; from there on a buffer is quicker.
SMALL = 1 << 16
#: The same where there is no buffer: from there on shared memory of the tensor's own is quicker.
SMALL_BESIDE_NONE = 1 << 19


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
        table[np.ndarray] = _reduce_array
        table[memoryview] = _reduce_view


def _reduce_tensor(as_torch: Callable[[Any], tuple[Any, ...]], tensor: torch.Tensor) -> tuple[Any, ...]:
    if not _is_plain(tensor):
        return as_torch(tensor)
    by_buffer = _reduce_large(tensor) if tensor.nbytes > SMALL else None
    if by_buffer is not None:
        return by_buffer
    if tensor.nbytes > SMALL_BESIDE_NONE:
        return as_torch(tensor)
    plain = tensor.detach().resolve_conj().resolve_neg()
    # Not reshape: a dimension of one element may have any stride, and torch calls that contiguous.
    data: Any = plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy()
    return _tensor, (pickle.PickleBuffer(data), tensor.dtype, tuple(tensor.shape))


def _reduce_large(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Send a tensor by the buffer that this worker and the trainer share; None where it cannot be."""
    buffers = in_this_worker()
    if buffers is None or tensor.is_shared():  # type: ignore[no-untyped-call]
        return None
    place = buffers.find(tensor)
    if place is None:
        room = buffers.empty(tensor.dtype, tuple(tensor.shape))
        if room is None:
            return None
        place = buffers.place(room.copy_(tensor))
    return _tensor_in, (*place, tensor.dtype, tuple(tensor.shape))


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    buffers = in_this_worker()
    if buffers is not None and array.nbytes > SMALL and array.flags.c_contiguous and not array.dtype.hasobject:
        room = buffers.empty(torch.uint8, (array.nbytes,))
        if room is not None:
            room.numpy().view(array.dtype)[:] = array.reshape(-1)
            return _array_in, (*buffers.place(room), array.dtype, array.shape, array.flags.writeable)
    return array.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def _reduce_view(view: memoryview) -> tuple[Any, ...]:
    if not view.c_contiguous or view.format != "B":
        raise pickle.PicklingError("a memoryview that is not of neighbouring bytes")
    return memoryview, (pickle.PickleBuffer(view),)


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_quantized)
    )


def _tensor_in(buffer: Any, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(buffer, dtype=dtype, count=math.prod(shape), offset=offset).view(shape)


def _array_in(
    buffer: Any, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...], writeable: bool
) -> np.ndarray[Any, Any]:
    array = np.frombuffer(buffer, dtype=dtype, count=math.prod(shape), offset=offset).reshape(shape)
    array.flags.writeable = writeable
    return array


def _tensor(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not math.prod(shape):  # no buffer can be empty
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)
