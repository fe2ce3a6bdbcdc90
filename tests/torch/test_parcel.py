"""How batches get from a worker to the trainer: whole, quickly, and never into nothing (issue 5, items 4 and 8)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from servers.loaders import arrays_of_all_kinds, as_closure, as_lock, as_tensors, tensors_of_all_kinds
from servers.streams import as_list, pack_numbers

import forebay
from forebay.exceptions import ConfigError
from forebay.torch import StreamingDataLoader, StreamingDataset
from forebay.torch._parcel import SMALL_BESIDE_NONE

COUNT, BATCH = 24, 4


@pytest.fixture
def url(tmp_path: Path) -> str:
    return pack_numbers(tmp_path / "data", COUNT, 8)


@pytest.fixture
def batch(url: str) -> dict[str, Any]:
    """What arrives of `tensors_of_all_kinds`."""
    with StreamingDataset(url) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=COUNT, num_workers=1, collate_fn=tensors_of_all_kinds)
        batch: dict[str, Any] = next(iter(loader))
    return batch


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_tensors_arrive_as_they_were_sent(batch: dict[str, Any]) -> None:
    sent = tensors_of_all_kinds([])
    assert list(batch) == list(sent)
    for name, tensor in sent.items():
        found = batch[name]
        assert type(found) is type(tensor), name
        assert (found.dtype, found.shape, found.layout) == (tensor.dtype, tensor.shape, tensor.layout), name
        assert found.requires_grad == tensor.requires_grad, name
        assert torch.equal(found.to_dense().resolve_conj(), tensor.to_dense().resolve_conj()), name
        if found.layout is torch.strided:
            if name != "one row of a column":  # a stride that says nothing
                assert found.stride() == tensor.stride(), name
            found.detach().zero_()  # may be written to


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_plain_tensors_take_no_descriptor(batch: dict[str, Any]) -> None:
    """Risk K5: a descriptor a tensor, and a call back to the worker for each, was most of what a batch cost."""
    assert batch["as large as may be"].nbytes == SMALL_BESIDE_NONE
    assert batch["larger"].nbytes == SMALL_BESIDE_NONE + 1
    assert not any(batch[name].is_shared() for name in ("as large as may be", "larger", "int64", "part of another"))


def test_arrays_arrive_as_they_were_sent(url: str) -> None:
    with StreamingDataset(url) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=COUNT, num_workers=1, collate_fn=arrays_of_all_kinds)
        batch = next(iter(loader))
    for name, sent in arrays_of_all_kinds([]).items():
        found = batch[name]
        assert (found.dtype, found.shape, found.strides) == (sent.dtype, sent.shape, sent.strides), name
        assert found.flags.writeable == sent.flags.writeable, name
        assert np.array_equal(found, sent), name


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_of_all_sizes_come_in_order(url: str, workers: int) -> None:
    """Messages smaller and larger than the pipe that they go through, and tensors that go beside it."""
    with StreamingDataset(url) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=1, num_workers=workers, collate_fn=as_tensors)
        found = list(loader)
    assert [batch["number"].tolist() for batch in found] == [[number] for number in range(COUNT)]
    for number, batch in enumerate(found):
        assert batch["bytes"] == bytes([number]) * (number * 100_000)
        assert torch.equal(batch["tensor"], torch.full((number * 50_000,), number, dtype=torch.uint8))


@pytest.mark.parametrize("workers", [0, 2])
def test_views_of_bytes_are_views_in_the_trainer_too(tmp_path: Path, workers: int) -> None:
    """Risk J9: ``bytes_as="memoryview"`` and workers; whether there are any, items are of one type, and one's own."""
    sizes = [0, 1, 1_000, 300_000]
    forebay.pack([bytes([size % 251]) * size for size in sizes], tmp_path / "data")
    with StreamingDataset(tmp_path / "data", format_options={"bytes_as": "memoryview"}) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=as_list)
        for _ in range(2):
            (batch,) = loader
            assert [type(view) for view in batch] == [memoryview] * 4
            assert [bytes(view) for view in batch] == [bytes([size % 251]) * size for size in sizes]
            batch[2][0] = 7


@pytest.mark.parametrize("workers", [0, 1])
def test_a_view_is_one_value_to_the_loader_as_bytes_are(tmp_path: Path, workers: int) -> None:
    """torch takes a memoryview for a sequence of numbers: a batch of four views was a list of 784 columns."""
    items = [{"label": number, "pixels": bytes([number]) * (700 + number)} for number in range(4)]
    forebay.pack(items, tmp_path / "data")
    with StreamingDataset(tmp_path / "data", format_options={"bytes_as": "memoryview"}) as dataset:
        batch = next(iter(StreamingDataLoader(dataset, batch_size=4, num_workers=workers)))
        assert batch["label"].tolist() == [0, 1, 2, 3]
        assert batch["pixels"] == [item["pixels"] for item in items]
        single = list(StreamingDataLoader(dataset, batch_size=None, num_workers=workers))
        assert single == items
        assert {type(item["pixels"]) for item in single} == {memoryview}


@pytest.mark.parametrize("collate", [as_lock, as_closure])
def test_a_batch_that_cannot_be_sent_is_an_error_and_no_wait_for_ever(
    url: str, collate: Callable[[list[Any]], Any]
) -> None:
    """Risk J9: torch pickles batches in a thread of the worker, whose error only its own output shows."""
    with StreamingDataset(url) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=2, collate_fn=collate, timeout=60)
        with pytest.raises(ConfigError, match="a batch as collate_fn made it cannot be sent by a worker") as caught:
            next(iter(loader))
        assert "num_workers=0" in str(caught.value)
        alone = StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=collate)
        assert len(list(alone)) == COUNT // BATCH
        again = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=2, collate_fn=as_list)
        assert sum(map(len, again)) == COUNT
