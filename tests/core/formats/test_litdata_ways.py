"""Risk of three ways to an item (one, a few compiled, many in columns): they have to agree on all bytes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from formats.chunks import chunk_bytes, one_chunk
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay._formats import ChunkReader
from forebay._formats.litdata import LitdataFormat
from forebay._readers import read_mixed
from forebay.exceptions import ConfigError, ForebayError, IntegrityError

COLUMNS = 60  # more than are decoded one after the other


def encode(name: str, value: Any) -> bytes:
    if name in ("int", "float", "bool"):
        return struct.pack({"int": "<q", "float": "<d", "bool": "<?"}[name], value)
    return value.encode() if name == "str" else bytes(value)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "str": st.text(max_size=20),
    "bytes": st.binary(max_size=20),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[tuple[Any, ...]]]:
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=7))
    rows = draw(st.lists(st.tuples(*(VALUES[name] for name in names)), min_size=1, max_size=5))
    return names, rows


def answer(reader: ChunkReader, items: list[int], way: str) -> Any:
    try:
        return [reader.read(item) for item in items] if way == "one" else reader.read_many(items)
    except ForebayError as error:
        return type(error), str(error)


@settings(max_examples=150, deadline=None)
@given(tables(), st.data())
def test_every_way_gives_the_same_item(
    tmp_path_factory: pytest.TempPathFactory, table: tuple[list[str], list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    """Numbers and what has no fixed size, in any order: the compiled function groups them."""
    names, rows = table
    wanted = [row if len(names) > 1 else row[0] for row in rows]
    order = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=12))
    raw = [tuple(encode(name, value) for name, value in zip(names, row, strict=True)) for row in rows]
    reader = one_chunk(tmp_path_factory.getbasetemp(), names, raw)
    assert answer(reader, order, "one") == [wanted[i] for i in order]
    assert answer(reader, order, "few") == [wanted[i] for i in order]
    assert answer(reader, order * COLUMNS, "columns") == [wanted[i] for i in order] * COLUMNS


@settings(max_examples=300, deadline=None)
@given(tables(), st.data())
def test_every_way_says_the_same_of_damaged_bytes(
    tmp_path_factory: pytest.TempPathFactory, table: tuple[list[str], list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    """Q2: sizes that are wrong by any number give one error of ours, naming item and leaf, whatever the way."""
    names, rows = table
    raw = [tuple(encode(name, value) for name, value in zip(names, row, strict=True)) for row in rows]
    whole = bytearray(chunk_bytes(raw))
    item = data.draw(st.integers(0, len(rows) - 1))
    (start,) = struct.unpack_from("<I", whole, 4 + 4 * item)
    leaf = data.draw(st.integers(0, len(names) - 1))
    (size,) = struct.unpack_from("<I", whole, start + 4 * leaf)
    wrong = data.draw(st.one_of(st.integers(0, 40), st.integers(0, 2**32 - 1)).filter(lambda number: number != size))
    struct.pack_into("<I", whole, start + 4 * leaf, wrong)
    reader = one_chunk(tmp_path_factory.getbasetemp(), names, raw, data=bytes(whole))
    kind, text = answer(reader, [item], "one")
    assert kind is IntegrityError
    assert f"item {item}: item" in text or f"item {item}: its end" in text
    assert answer(reader, [item], "few") == answer(reader, [item] * COLUMNS, "columns") == (kind, text)


def test_items_with_more_leaves_than_are_compiled(tmp_path: Path) -> None:
    rows = [tuple(struct.pack("<q", i + n) for n in range(130)) for i in range(3)]
    reader = one_chunk(tmp_path, ["int"] * 130, rows)
    for items in (reader.read_many([2, 0]), [reader.read(2), reader.read(0)]):
        assert items == [tuple(range(2, 132)), tuple(range(130))]


def test_keys_and_containers_of_a_nested_item(tmp_path: Path) -> None:
    """Keys that are Python words or quotes are values for the compiled function, never text of it."""
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    keys = ["lambda", '"]', "a b", 3]
    inner = {"type": "builtins.list", "context": "null", "children_spec": [leaf]}
    node = {"type": "builtins.dict", "context": json.dumps(keys), "children_spec": [leaf, leaf, inner, leaf]}
    rows = [(b"x" * i, struct.pack("<q", i), b"y", struct.pack("<d", i / 2)) for i in range(5)]
    reader = one_chunk(tmp_path, ["bytes", "int", "str", "float"], rows, data_spec=json.dumps([1, node]))
    wanted = [{"lambda": b"x" * i, '"]': i, "a b": ["y"], 3: i / 2} for i in range(5)]
    assert reader.read_many(range(5)) == [reader.read(i) for i in range(5)] == wanted
    assert reader.read_many([*range(5)] * COLUMNS) == wanted * COLUMNS


@pytest.mark.parametrize("count", [1, COLUMNS])
def test_arrays_without_elements(tmp_path: Path, count: int) -> None:
    empty = struct.pack("<III", 9, 1, 0)
    rows = [(empty, struct.pack(">III", 1, 1, 0), b"", b"")] * 3
    items = one_chunk(tmp_path, ["numpy", "tensor", "no_header_numpy:9", "no_header_tensor:1"], rows).read_many(
        [2] * count
    )
    assert [[tuple(leaf.shape) for leaf in item] for item in items] == [[(0,)] * 4] * count
    assert all(item[1].dtype is item[3].dtype is torch.float32 for item in items)


@pytest.mark.parametrize("count", [1, COLUMNS])
def test_neighbours_of_other_shapes(tmp_path: Path, count: int) -> None:
    """The header of the item before is remembered; it must not decide for this one."""
    arrays = [np.arange(12.0).reshape(shape) for shape in ((3, 4), (4, 3), (12,), (2, 6))]
    rows = [(struct.pack(f"<II{a.ndim}I", 10, a.ndim, *a.shape) + a.tobytes(),) for a in arrays]
    reader = one_chunk(tmp_path, ["numpy"], rows)
    for items in (reader.read_many([0, 1, 2, 3] * count), [reader.read(i) for i in range(4)] * count):
        for item, array in zip(items, arrays * count, strict=True):
            np.testing.assert_array_equal(item, array)


@pytest.mark.parametrize("count", [3, COLUMNS])
def test_small_arrays_do_not_keep_their_chunk(tmp_path: Path, count: int) -> None:
    rows = [(struct.pack("<III", 10, 1, 4) + np.arange(4.0).tobytes(), np.arange(4.0).tobytes())] * 200
    for item in one_chunk(tmp_path, ["numpy", "no_header_numpy:10"], rows).read_many(range(count)):
        for array in item:
            assert array.flags.aligned
            assert array.base is None or array.base.nbytes <= 32 * count
            array += 1


@pytest.mark.parametrize("each", [2, 30], ids=["few of each chunk", "many of each chunk"])
def test_items_of_several_chunks_come_in_the_order_asked_for(tmp_path: Path, each: int) -> None:
    readers = {}
    for place in (3, 5, 9):
        (tmp_path / str(place)).mkdir()
        rows = [(struct.pack("<q", 100 * place + i), b"x" * i) for i in range(40)]
        readers[place] = one_chunk(tmp_path / str(place), ["int", "bytes"], rows)
    rng = np.random.default_rng(0)
    places, offsets = rng.choice([3, 5, 9, 11], each * 4), rng.integers(0, 40, each * 4)
    wanted = [
        (100 * place + offset, b"x" * offset)
        for place, offset in zip(places.tolist(), offsets.tolist(), strict=True)
        if place != 11  # a chunk that was skipped
    ]
    assert read_mixed(readers, places, offsets) == wanted
    assert read_mixed(readers, places[:0], offsets[:0]) == []
    assert read_mixed({}, places, offsets) == []


def test_bytes_as_views(tmp_path: Path) -> None:
    rows = [(struct.pack("<q", i), b"abc" * i) for i in range(COLUMNS)]
    data = chunk_bytes(rows)
    (tmp_path / "c.bin").write_bytes(data)
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    spec = json.dumps([1, {"type": "builtins.tuple", "context": "null", "children_spec": [leaf] * 2}])
    row = {"filename": "c.bin", "chunk_size": COLUMNS, "chunk_bytes": len(data)}
    index = json.dumps({"chunks": [row], "config": {"data_format": ["int", "bytes"], "data_spec": spec}}).encode()
    layout = LitdataFormat(index, url="x", options={"bytes_as": "memoryview"}, allow_pickle=False)
    reader = layout.open_chunk(tmp_path / "c.bin", 0)
    for items in ([reader.read(i) for i in range(COLUMNS)], reader.read_many(range(COLUMNS)), reader.read_many([0, 1])):
        assert [type(view) for _, view in items] == [memoryview] * len(items)
        assert [(number, bytes(view)) for number, view in items] == [(i, b"abc" * i) for i in range(len(items))]
    view = reader.read(5)[1]
    view[:3] = b"xyz"
    reader.close()
    assert bytes(view) == b"xyz" + b"abc" * 4
    assert (tmp_path / "c.bin").read_bytes() == data
    with pytest.raises(ConfigError, match="bytes_as"):
        LitdataFormat(index, url="x", options={"bytes_as": "array"}, allow_pickle=False)
