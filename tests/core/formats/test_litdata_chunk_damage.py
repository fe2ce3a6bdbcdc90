"""Risk Q2 and chunk corruption: any bytes give the right item or an error of ours, never a crash."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from formats.chunks import chunk_bytes, one_chunk
from formats.folder import FIXTURES, open_folder
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay._formats.litdata import LitdataFormat
from forebay.exceptions import ForebayError, IntegrityError, SizeMismatchError, UnsupportedFormatError

ITEMS = [(struct.pack("<q", i), b"x" * i) for i in range(30)]
GOOD = chunk_bytes(ITEMS)


def patched(at: int, number: int) -> bytes:
    return GOOD[:at] + struct.pack("<I", number) + GOOD[at + 4 :]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x00" * len(GOOD), "says that it has 0 items"),
        (patched(0, 29), "says that it has 29 items, the index says 30"),
        (patched(4, 0), "out of order"),
        (patched(4, 132), "out of order"),
        (patched(40, 5), "out of order"),
        (patched(40, 2**32 - 1), "out of order"),
        (patched(4 + 4 * 30, len(GOOD) + 1), "lead out of"),
    ],
    ids=range(7),
)
def test_a_head_that_contradicts_itself_or_the_index_is_refused_at_open(
    tmp_path: Path, data: bytes, words: str
) -> None:
    with pytest.raises(IntegrityError, match=rf"'c\.bin' of memory://data is damaged: .*{words}"):
        one_chunk(tmp_path, ["int", "bytes"], ITEMS, data=data)


def test_a_chunk_of_another_size_than_promised_is_refused(tmp_path: Path) -> None:
    folder = FIXTURES / "litdata65-plain"
    layout = open_folder(folder)
    whole = (folder / "chunk-0-0.bin").read_bytes()
    for data in (whole[:-1], whole + b"\x00", b""):
        (tmp_path / "c").write_bytes(data)
        with pytest.raises(SizeMismatchError, match=f"{len(data)} bytes, the index promises 7606"):
            layout.open_chunk(tmp_path / "c", 0)


@pytest.mark.parametrize("repeat", [1, 2], ids=["few", "columns"])
@pytest.mark.parametrize("count", [1, 30])
def test_leaf_sizes_that_do_not_fill_their_item_name_it(tmp_path: Path, count: int, repeat: int) -> None:
    start = struct.unpack_from("<I", GOOD, 4 + 4 * 7)[0]
    for size in (0, 7, 9, 2**32 - 1):
        reader = one_chunk(tmp_path, ["int", "bytes"], ITEMS, data=patched(start, size))
        with pytest.raises(IntegrityError, match="item 7"):
            reader.read_many([*range(7, 8)] if count == 1 else [*range(30)] * repeat)
        with pytest.raises(IntegrityError, match="item 7"):
            reader.read(7)
        assert reader.read(6) == (6, b"x" * 6)


def test_items_in_an_arrow_footer_are_named(tmp_path: Path) -> None:
    """What litdata 0.2.76 writes for nested rows where pyarrow is installed: empty items, and a table behind them."""
    head = struct.pack("<IIII", 2, 16, 16, 16)
    data = head + b"ARROW1" + struct.pack("<I", 6) + b"LDARW01\x00"
    reader = one_chunk(tmp_path, ["int", "bytes"], ITEMS[:2], data=data)
    with pytest.raises(UnsupportedFormatError, match="Arrow"):
        reader.read(0)


@pytest.mark.parametrize("data", [b"", struct.pack("<II", 0, 8)])
def test_an_empty_chunk_has_no_items_Q2(tmp_path: Path, data: bytes) -> None:
    reader = one_chunk(tmp_path, ["int"], [], data=data)
    assert len(reader) == 0
    assert reader.read_many([]) == []
    with pytest.raises(IndexError):
        reader.read(0)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 7605), st.binary(min_size=1, max_size=12), st.sampled_from((0, 1, 5)))
def test_any_overwritten_bytes_give_items_or_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, place: int, junk: bytes, times: int
) -> None:
    folder = FIXTURES / "litdata65-plain"
    whole = bytearray((folder / "chunk-0-0.bin").read_bytes())
    whole[place : place + len(junk)] = junk[: len(whole) - place]
    path = tmp_path_factory.getbasetemp() / "fuzzed.bin"
    path.write_bytes(whole)
    try:
        reader = open_folder(folder).open_chunk(path, 0)
        assert len(reader) == 14
        items = reader.read_many([*range(14)] * times) if times else [reader.read(i) for i in range(14)]
    except ForebayError:
        return
    assert len(items) == 14 * max(times, 1)


def test_tokens_in_a_damaged_chunk_are_refused(tmp_path: Path) -> None:
    folder = FIXTURES / "litdata65-tokens"
    layout = open_folder(folder, {"block_size": 11})
    data = bytearray((folder / "chunk-0-0.bin").read_bytes())
    data[4:8] = struct.pack("<I", 2**31)
    (tmp_path / "c").write_bytes(data)
    with pytest.raises(IntegrityError, match="out of order"):
        layout.open_chunk(tmp_path / "c", 0)


def test_blocks_end_where_the_tokens_end(tmp_path: Path) -> None:
    """No block, not even of the largest size that fits, reaches past the last token; a chunk may have none."""
    row = {"filename": "c.bin", "chunk_size": 1, "chunk_bytes": 12 + 2 * 10, "dim": 10}
    config = {"data_format": ["no_header_numpy:1"], "data_spec": None, "item_loader": "TokensLoader"}
    larger = {"filename": "d.bin", "chunk_size": 1, "chunk_bytes": 12 + 2 * 11, "dim": 11}
    index = json.dumps({"chunks": [row, larger], "config": config}).encode()
    (tmp_path / "c.bin").write_bytes(struct.pack("<III10h", 1, 12, 32, *range(10)))
    for block_size, blocks in ((1, 10), (3, 3), (10, 1), (11, 0)):
        layout = LitdataFormat(index, url="x", options={"block_size": block_size}, allow_pickle=False)
        reader = layout.open_chunk(tmp_path / "c.bin", 0)
        assert len(reader) == layout.index.items - 11 // block_size == blocks
        assert [array.tolist() for array in reader.read_many(range(blocks))] == [
            list(range(first, first + block_size)) for first in range(0, blocks * block_size, block_size)
        ]
        for outside in (-1, blocks):
            with pytest.raises(IndexError):
                reader.read(outside)
            with pytest.raises(IndexError):
                reader.read_many([outside])
