"""What a loader makes of a batch, or of an item, where the user gives no function: torch's defaults, views left alone.

To torch a ``memoryview`` is a sequence of numbers, and a batch of them a list of columns; it is one value, like bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import default_convert
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from forebay.torch._buffers import in_this_worker
from forebay.torch._parcel import SMALL

__all__ = ["collate_batch", "convert_item"]


def collate_batch(items: list[Any]) -> Any:
    """Make a batch: as `torch.utils.data.default_collate`, and a list of views where items have views."""
    return collate(items, collate_fn_map={**default_collate_fn_map, memoryview: _as_they_are, torch.Tensor: _stack})


def convert_item(item: Any) -> Any:
    """Make tensors of arrays: as `torch.utils.data.default_convert`, and views stay views."""
    if isinstance(item, memoryview):
        return item
    if type(item) is dict:
        return {name: convert_item(value) for name, value in item.items()}
    if type(item) in (list, tuple):
        return [convert_item(value) for value in item]  # torch makes lists of tuples too
    return default_convert(item)  # type: ignore[no-untyped-call]


def _as_they_are(batch: Sequence[Any], *, collate_fn_map: object = None) -> list[Any]:
    return list(batch)


def _stack(batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    """As torch does it, but in a worker straight into the buffer that the trainer has too."""
    first, buffers = batch[0], in_this_worker()
    if buffers is not None and all(_is_like(tensor, first) for tensor in batch):
        if len(batch) * first.nbytes <= SMALL:
            return torch.stack(list(batch))
        room = buffers.empty(first.dtype, (len(batch), *first.shape))
        if room is not None:
            return torch.stack(list(batch), out=room)
    stacked: torch.Tensor = default_collate_fn_map[torch.Tensor](batch, collate_fn_map=collate_fn_map)
    return stacked


def _is_like(tensor: torch.Tensor, first: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.requires_grad
        and tensor.dtype == first.dtype
        and tensor.shape == first.shape
    )
