"""Issue 5, item 8: a reader that stays open for random access gives an item again, with what was written to it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from formats.chunks import one_chunk
from formats.folder import open_folder

import forebay
from forebay._formats import ChunkReader

#: Items of one call: one after the other, a few compiled, many in columns; each item twice.
WAYS: dict[str, Callable[[ChunkReader], list[Any]]] = {
    "one": lambda reader: [reader.read(item) for item in range(4) for _ in range(2)],
    "few": lambda reader: reader.read_many([0, 0, 1, 1, 2, 2, 3, 3]),
    "columns": lambda reader: reader.read_many(np.arange(4).repeat(30)),
    "as one": lambda reader: reader.read_many([2] * 120),
}


def raw(item: Any) -> memoryview:
    """The memory of an array, a tensor or a view of bytes, as bytes that can be written to."""
    if isinstance(item, memoryview):
        return item
    array = item.view(torch.uint8).numpy() if isinstance(item, torch.Tensor) else item
    flat: np.ndarray[Any, np.dtype[np.uint8]] = array.reshape(-1).view(np.uint8)
    return flat.data


def written_apart(read: Callable[[], list[Any]]) -> bool:
    """Write to the memory of each item: whether another one of the same call, or a later call, shows it."""
    first = read()
    wanted = [bytes(raw(item)) for item in first]
    for item, before in zip(first, wanted, strict=True):
        memory = raw(item)
        if bytes(memory) != before:
            return False
        memory[:] = b"\xee" * len(memory)
    return [bytes(raw(item)) for item in read()] == wanted


def mixed(number: int) -> dict[str, Any]:
    """Small and large, of equal and of differing sizes, with and without dimensions."""
    return {
        "array": np.arange(number, number + 12.0).reshape(3, 4),
        "large": np.arange(number, number + 4000),
        "flat": np.arange(number, number + 900 + number),
        "tensor": torch.arange(number, number + 600.0).reshape(2, 300),
        "half": torch.full((3, 2), number, dtype=torch.bfloat16),
        "ragged": torch.arange(number, number + 50 + number),
        "bytes": bytes([number]) * 3000,
    }


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("leaf", mixed(0))
def test_no_read_shows_what_was_written_to_an_item(tmp_path: Path, leaf: str, way: str) -> None:
    forebay.pack(map(mixed, range(4)), tmp_path / "data")
    layout = open_folder(tmp_path / "data", {"bytes_as": "memoryview"})
    path = tmp_path / "data" / layout.index.chunk(0).name
    before = path.read_bytes()
    once = layout.open_chunk(path, 0)
    reader = once.copying()
    assert written_apart(lambda: [item[leaf] for item in WAYS[way](reader)])
    for number, item in enumerate(once.read_many(range(4))):
        expected = mixed(number)[leaf]
        assert bytes(raw(item[leaf])) == (expected if leaf == "bytes" else bytes(raw(expected))), "not its own reader"
    assert path.read_bytes() == before


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("leaf", ["no_header_numpy:10", "no_header_tensor:3"])
@pytest.mark.parametrize("count", [1, 9, 5000, 100_000])
def test_no_read_shows_what_was_written_to_elements_without_a_header(
    tmp_path: Path, leaf: str, way: str, count: int
) -> None:
    items = [(np.arange(number, number + float(count)).tobytes(),) for number in range(4)]
    reader = one_chunk(tmp_path, [leaf], items).copying()
    assert written_apart(lambda: WAYS[way](reader))
    assert [bytes(raw(item)) for item in reader.read_many(range(4))] == [item for (item,) in items]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
@pytest.mark.parametrize("make", [np.zeros, torch.zeros], ids=["array", "tensor"])
def test_arrays_without_elements_or_dimensions_are_copied_too(
    tmp_path: Path, make: Any, shape: tuple[int, ...]
) -> None:
    forebay.pack([make(shape) for _ in range(4)], tmp_path / "data")
    layout = open_folder(tmp_path / "data")
    reader = layout.open_chunk(tmp_path / "data" / layout.index.chunk(0).name, 0).copying()
    for read in WAYS.values():
        for item in read(reader):
            assert type(item) is type(make(shape))
            assert item.shape == shape
            item += 1  # an array of no dimension would be a scalar by now
        assert all(not item.any() for item in read(reader))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [np.arange, torch.arange], ids=["array", "tensor"])
def test_no_read_shows_what_was_written_to_a_block_of_tokens(tmp_path: Path, make: Any, way: str) -> None:
    forebay.pack([make(200_000)], tmp_path / "data", tokens=True)
    for size in (7, 40_000):
        layout = open_folder(tmp_path / "data", {"block_size": size})
        once = layout.open_chunk(tmp_path / "data" / layout.index.chunk(0).name, 0)
        reader = once.copying()
        assert written_apart(lambda reader=reader: WAYS[way](reader))  # type: ignore[misc]
        assert [int(block[0]) for block in once.read_many(range(4))] == [0, size, 2 * size, 3 * size]
        assert all(block.__array__().flags.aligned for block in WAYS[way](reader))


def test_iteration_still_copies_nothing(tmp_path: Path) -> None:
    """Issue 5, item 8: blocks in storage order are neighbours in one map, for each of which a worker sends its own."""
    forebay.pack([torch.arange(20_000)], tmp_path / "data", tokens=True)
    with forebay.open_dataset(tmp_path / "data", format_options={"block_size": 64}) as ds:
        blocks = list(ds)
        assert {b.data_ptr() - a.data_ptr() for a, b in itertools.pairwise(blocks)} == {64 * 8}
        assert {block.untyped_storage().nbytes() for block in blocks} == {64 * 8}
        for block in blocks:
            block.zero_()
        assert torch.equal(torch.cat(list(ds)), torch.arange(len(blocks) * 64))
        assert torch.equal(torch.cat(ds[:]), torch.arange(len(blocks) * 64))


@pytest.mark.parametrize("options", [{"block_size": 32}, None])
def test_a_dataset_by_number_gives_what_is_stored_each_time(tmp_path: Path, options: dict[str, Any] | None) -> None:
    """`ds[3].zero_()` made zeros of the next `ds[3]`, and of the second of `get_batch([3, 3])`."""
    tokens = options is not None
    forebay.pack([torch.arange(n, n + 32) for n in range(0, 3200, 32)], tmp_path / "data", tokens=tokens)
    with forebay.open_dataset(tmp_path / "data", format_options=options) as ds:
        reads: list[Callable[[], list[Any]]] = [
            lambda: [ds[3], ds[3], ds[-97]],
            lambda: ds.get_batch([3, 3, 5, 3]),
            lambda: ds.__getitems__([3] * 40),
            lambda: ds[3:60] + ds[3:60],
        ]
        for read in reads:
            assert written_apart(read)
        iterator = iter(ds)
        next(iterator).fill_(-1)
        assert ds[0].tolist() == list(range(32))
        ds[1].fill_(-1)
        assert next(iterator).tolist() == list(range(32, 64))
