"""`forebay.pack`: what it writes is read again, by us and by litdata, and nothing is left of what fails."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from formats.canon import canon
from formats.folder import FIXTURES, open_folder, read_folder
from PIL import Image

import forebay
from forebay.exceptions import ConfigError, DatasetError, UnsafePickleError

FULL: list[dict[str, Any]] = [
    {
        "int": i, "float": i / 7, "bool": i % 2 == 0, "str": f"item {i} é✓", "bytes": bytes(range(i)), "none": b"",
        "flat": np.arange(i, dtype=np.int16), "array": np.full((2, i % 3 + 1), i, np.float32),
        "scalar": np.array(i, np.uint8), "t1": torch.arange(i, dtype=torch.int32),
        "t2": torch.full((2, 2), i, dtype=torch.float16), "t0": torch.tensor(i),
        "bf": torch.full((3,), i, dtype=torch.bfloat16), "image": Image.new("RGB", (4, 3), (i, 0, i)),
        "nested": [i, (f"x{i}", {"k": [i]})], "ordered": OrderedDict(b=i, a=2),
    }
    for i in range(30)
]  # fmt: skip


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_every_supported_value_comes_back(tmp_path: Path, compression: str | None) -> None:
    result = forebay.pack(FULL, tmp_path / "d", chunk_bytes=3000, compression=compression)
    items = read_folder(tmp_path / "d", tmp_path)
    assert [canon(item) for item in items] == [canon(item) for item in FULL]
    assert [type(value) for value in items[3].values()] == [type(value) for value in FULL[3].values()]
    index = open_folder(tmp_path / "d").index
    stored = sum((tmp_path / "d" / name).stat().st_size for name in index.names)
    assert (result.url, result.items, result.chunks) == (str(tmp_path / "d"), 30, len(index))
    assert (result.bytes, result.stored_bytes) == (index.decoded_total, stored)
    assert len(index) > 3
    assert files(tmp_path / "d") == {"index.json", *index.names}


@pytest.mark.parametrize("folder", ["litdata65-plain", "litdata65-zstd-chunk"])
def test_packing_what_litdata_wrote_gives_its_bytes_again(tmp_path: Path, folder: str) -> None:
    """The chunks of litdata 0.2.65, byte for byte, so that it reads ours as its own."""
    theirs = json.loads((FIXTURES / folder / "index.json").read_text())
    packed = tmp_path / "d"
    compression, limit = theirs["config"]["compression"], theirs["config"]["chunk_bytes"] or 3350
    forebay.pack(read_folder(FIXTURES / folder, tmp_path), packed, chunk_bytes=limit, compression=compression)
    ours = json.loads((packed / "index.json").read_text())
    given = {"chunk_bytes", "chunk_size"}
    assert {k: v for k, v in ours["config"].items() if k not in given} == {
        k: v for k, v in theirs["config"].items() if k not in given
    }
    if compression is None:
        assert [row["filename"] for row in ours["chunks"]] == [row["filename"] for row in theirs["chunks"]]
        for row in theirs["chunks"]:
            assert (packed / row["filename"]).read_bytes() == (FIXTURES / folder / row["filename"]).read_bytes()
            assert row.items() <= ours["chunks"][theirs["chunks"].index(row)].items()
    assert [canon(item) for item in read_folder(packed, tmp_path)] == json.loads(
        (FIXTURES / folder / "expected.json").read_text()
    )["sha256"]


def test_tokens_are_written_as_litdata_writes_them(tmp_path: Path) -> None:
    texts = [torch.arange(number * 10, number * 10 + number % 9 + 1) for number in range(50)]
    forebay.pack(texts, tmp_path / "d", chunk_bytes=500, tokens=True)
    joined = torch.cat(texts)
    layout = open_folder(tmp_path / "d", {"block_size": 7})
    rows = json.loads((tmp_path / "d" / "index.json").read_text())["chunks"]
    assert sum(row["dim"] for row in rows) == len(joined)
    assert layout.index.items == sum(row["dim"] // 7 for row in rows)
    first = 0
    blocks = iter(read_folder(tmp_path / "d", tmp_path, {"block_size": 7}))
    for row in rows:
        for begin in range(first, first + row["dim"] // 7 * 7, 7):
            assert torch.equal(next(blocks), joined[begin : begin + 7])
        first += row["dim"]
    with pytest.raises(DatasetError, match=r"item 1.*2 dimensions"):
        forebay.pack([torch.zeros(3), torch.zeros(3, 3)], tmp_path / "e", tokens=True)
    with pytest.raises(DatasetError, match="item 0 is a dict"):
        forebay.pack([{"a": 1}], tmp_path / "e", tokens=True)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_the_digest_is_of_the_decoded_chunk(tmp_path: Path, compression: str | None) -> None:
    forebay.pack(FULL, tmp_path / "d", chunk_bytes=3000, compression=compression)
    index = open_folder(tmp_path / "d").index
    entry = index.chunk(1)
    raw = (tmp_path / "d" / entry.name).read_bytes()
    assert entry.stored_bytes == len(raw)
    if compression:
        import zstandard

        raw = zstandard.ZstdDecompressor().decompress(raw)  # one call: the frame says its size
    assert entry.decoded_bytes == len(raw)
    assert entry.digest == f"xxh3-64:{xxhash.xxh3_64_hexdigest(raw)}"
    forebay.pack(FULL, tmp_path / "d", digests=False, overwrite=True)
    assert open_folder(tmp_path / "d").index.chunk(0).digest is None


def test_chunks_hold_as_much_as_fits_and_large_items_alone(tmp_path: Path) -> None:
    sizes = [96, 96, 96, 500, 96, 96]  # an item of one leaf has four bytes more
    forebay.pack([b"x" * size for size in sizes], tmp_path / "d", chunk_bytes=200)
    assert open_folder(tmp_path / "d").index.item_counts.tolist() == [2, 1, 1, 2]


def test_one_chunk_at_a_time_is_in_memory(tmp_path: Path) -> None:
    """Risk K6: packing streams, it does not collect."""
    import tracemalloc

    tracemalloc.start()
    try:
        forebay.pack((bytes(1 << 20) for _ in range(64)), tmp_path / "d", chunk_bytes="4MiB")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 << 20


def test_nothing_to_pack_is_an_empty_dataset_Q5(tmp_path: Path) -> None:
    assert forebay.pack([], tmp_path / "d").items == 0
    assert open_folder(tmp_path / "d").index.items == 0
    assert files(tmp_path / "d") == {"index.json"}


class Boom(Exception):
    """Somebody else's."""


def failing(error: BaseException, after: int = 20) -> Iterator[dict[str, Any]]:
    for number in range(after):
        yield {"a": number, "b": bytes(100)}
    raise error


@pytest.mark.parametrize("error", [Boom("mine"), KeyboardInterrupt()])
def test_a_failing_iterable_leaves_nothing_and_comes_through(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        forebay.pack(failing(error), tmp_path / "new" / "deep", chunk_bytes=500)
    assert caught.value is error
    assert files(tmp_path) == set()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "note.txt").write_text("mine")
    with pytest.raises(type(error)):
        forebay.pack(failing(error), tmp_path / "old", chunk_bytes=500)
    assert files(tmp_path / "old") == {"note.txt"}


def test_a_failed_overwrite_leaves_the_old_dataset_as_it_was(tmp_path: Path) -> None:
    forebay.pack([{"a": 1, "b": b"old"}], tmp_path / "d")
    before = {name: (tmp_path / "d" / name).read_bytes() for name in files(tmp_path / "d")}
    with pytest.raises(Boom):
        forebay.pack(failing(Boom()), tmp_path / "d", chunk_bytes=500, overwrite=True)
    assert {name: (tmp_path / "d" / name).read_bytes() for name in files(tmp_path / "d")} == before


def test_a_disk_that_fails_while_the_index_is_published_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def full(source: Any, target: Any) -> None:
        if str(target).endswith("index.json"):
            raise OSError(28, "No space left on device", str(target))
        link(source, target)

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OSError, match="No space"):
        forebay.pack(FULL, tmp_path / "d")
    assert files(tmp_path) == set()


def test_a_file_system_without_hard_links_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(source: Any, target: Any) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", unsupported)
    forebay.pack(FULL, tmp_path / "d", chunk_bytes=3000)
    assert len(read_folder(tmp_path / "d", tmp_path)) == 30
    assert not any(name.endswith(".tmp") for name in files(tmp_path / "d"))


def test_a_dataset_is_not_overwritten_by_accident_and_no_item_is_taken(tmp_path: Path) -> None:
    forebay.pack([1, 2], tmp_path / "d")
    taken: list[int] = []

    def items() -> Iterator[int]:
        taken.append(1)
        yield 1

    with pytest.raises(DatasetError, match="overwrite=True"):
        forebay.pack(items(), tmp_path / "d")
    assert not taken
    assert read_folder(tmp_path / "d", tmp_path) == [1, 2]


def test_an_overwrite_never_mixes_old_chunks_with_the_new_index_R1(tmp_path: Path) -> None:
    """While it runs the old dataset is whole; afterwards no name means two things, and old chunks are gone."""
    folder = tmp_path / "d"
    forebay.pack([f"old {number}" for number in range(9)], folder, chunk_bytes=30)
    old = set(open_folder(folder).index.names)
    seen: list[list[Any]] = []

    def items() -> Iterator[str]:
        for number in range(9):
            seen.append(read_folder(folder, tmp_path))
            yield f"new {number}"

    (folder / "note.txt").write_text("mine")
    forebay.pack(items(), folder, chunk_bytes=30, overwrite=True)
    assert all(each == [f"old {number}" for number in range(9)] for each in seen)
    assert read_folder(folder, tmp_path) == [f"new {number}" for number in range(9)]
    new = set(open_folder(folder).index.names)
    assert not new & old
    assert files(folder) == {"index.json", "note.txt", *new}


def test_an_overwrite_removes_nothing_outside_that_an_old_index_names_T4(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    (tmp_path / "victim").write_text("x")
    row = {"filename": "../victim", "chunk_size": 1, "chunk_bytes": 99}
    (folder / "index.json").write_text(json.dumps({"chunks": [row], "config": {}}))
    forebay.pack([1], folder, overwrite=True)
    assert (tmp_path / "victim").read_text() == "x"


def test_leftovers_of_a_killed_run_are_not_taken_for_ours(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "chunk-0-0.bin").write_bytes(b"left over")
    forebay.pack([1, 2], folder)
    assert (folder / "chunk-0-0.bin").read_bytes() == b"left over"
    assert read_folder(folder, tmp_path) == [1, 2]


def test_two_packs_at_one_place_do_not_mix(tmp_path: Path) -> None:
    folder = tmp_path / "d"

    def items() -> Iterator[int]:
        forebay.pack([7], folder)
        yield 1

    with pytest.raises(DatasetError, match="appeared"):
        forebay.pack(items(), folder)
    assert read_folder(folder, tmp_path) == [7]


FIRST = {"a": 1, "b": "x", "c": [1.0, b"y"]}


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"a": 1, "b": "x"}, r"item 2: item has other keys.*missing \['c'\]"),
        ({"a": 1, "b": "x", "c": [1.0, b"y"], "d": 0}, r"new \['d'\]"),
        ([1, "x", [1.0, b"y"]], "item 2: item is a list.*a dict"),
        ({"a": 1, "b": "x", "c": [1.0]}, r"item 2: item\['c'\] has 1 entries, in the first item it has 2"),
        ({"a": 1, "b": "x", "c": (1.0, b"y")}, r"item\['c'\] is a tuple.*a list"),
        ({"a": "1", "b": "x", "c": [1.0, b"y"]}, r"item 2: item\['a'\] is a str.*'int'"),
        ({"a": True, "b": "x", "c": [1.0, b"y"]}, r"item\['a'\] is a bool.*'int'"),
        ({"a": 2**63, "b": "x", "c": [1.0, b"y"]}, r"item\['a'\] is 9223372036854775808.*64 bits"),
        ({"a": 1, "b": "\ud800", "c": [1.0, b"y"]}, r"item\['b'\].*UTF-8"),
        ({"a": 1, "b": None, "c": [1.0, b"y"]}, r"item\['b'\] is a NoneType"),
        ({"a": 1, "b": "x", "c": [1, b"y"]}, r"item\['c'\]\[0\] is a int.*'float'"),
        ({"a": 1, "b": {"z": 1}, "c": [1.0, b"y"]}, r"item\['b'\] is a dict.*one value"),
    ],
)
def test_an_item_unlike_the_first_is_named_and_nothing_is_left(tmp_path: Path, item: object, words: str) -> None:
    with pytest.raises(DatasetError, match=words):
        forebay.pack([FIRST, FIRST, item], tmp_path / "d", chunk_bytes=50)
    assert files(tmp_path) == set()


def test_keys_in_another_order_are_the_same_item(tmp_path: Path) -> None:
    forebay.pack([{"a": 1, "b": "x"}, {"b": "y", "a": 2}], tmp_path / "d")
    assert read_folder(tmp_path / "d", tmp_path) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


def test_arrays_may_change_shape_but_not_type_or_rank(tmp_path: Path) -> None:
    forebay.pack([np.zeros((2, 2)), np.zeros((5, 1))], tmp_path / "a")
    for second in (np.zeros(2), np.zeros((2, 2), "M8[s]")):
        with pytest.raises(DatasetError, match="item 1: item is a"):
            forebay.pack([np.zeros((2, 2)), second], tmp_path / "b")
    with pytest.raises(DatasetError, match=r"item 1: item is a .*ndarray of float32"):
        forebay.pack([np.zeros(2), np.zeros(2, np.float32)], tmp_path / "b")
    with pytest.raises(DatasetError, match=r"item 1: item is a torch\.Tensor of torch\.int8"):
        forebay.pack([torch.zeros(2), torch.zeros(2, dtype=torch.int8)], tmp_path / "b")


def test_awkward_arrays_and_tensors_are_stored_by_value(tmp_path: Path) -> None:
    base = np.arange(12.0).reshape(3, 4)
    given = {"t": base.T, "step": base[:, ::2], "big": base.astype(">f4"), "np": np.float32(0.5), "n": np.int8(3),
             "yes": np.bool_(True), "tt": torch.arange(6).reshape(2, 3).t(), "grad": torch.ones(2, requires_grad=True),
             "conj": torch.tensor([1 + 2j]).conj(), "view": memoryview(b"abcd")[::2],
             "array": bytearray(b"xy")}  # fmt: skip
    forebay.pack([given], tmp_path / "d")
    (item,) = read_folder(tmp_path / "d", tmp_path)
    np.testing.assert_array_equal(item["t"], base.T)
    np.testing.assert_array_equal(item["step"], base[:, ::2])
    np.testing.assert_array_equal(item["big"], base)
    assert (item["np"], item["n"], item["yes"], item["view"], item["array"]) == (0.5, 3, True, b"ac", b"xy")
    assert item["tt"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert (item["grad"].tolist(), item["conj"].tolist()) == ([1.0, 1.0], [1 - 2j])


def test_a_reused_buffer_is_copied_when_it_is_given(tmp_path: Path) -> None:
    buffer, array = bytearray(4), np.zeros(3)

    def items() -> Iterator[dict[str, Any]]:
        for number in range(5):
            buffer[:] = bytes([number] * 4)
            array[:] = number
            yield {"b": buffer, "m": memoryview(buffer), "a": array}

    forebay.pack(items(), tmp_path / "d")
    for number, item in enumerate(read_folder(tmp_path / "d", tmp_path)):
        assert (item["b"], item["m"], item["a"].tolist()) == (bytes([number] * 4), bytes([number] * 4), [number] * 3)


def test_jpeg_files_keep_their_bytes_and_touched_ones_their_pixels(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.effect_noise((32, 24), 80).convert("RGB").save(path, quality=60)
    with ExitStack() as files_of_images:

        def image() -> Image.Image:
            return files_of_images.enter_context(Image.open(path))

        pixels = image().tobytes()
        forebay.pack([{"i": image()} for _ in range(3)], tmp_path / "d")
        assert path.read_bytes() in (tmp_path / "d" / "chunk-0-0.bin").read_bytes()
        assert all(item["i"].tobytes() == pixels for item in read_folder(tmp_path / "d", tmp_path))
        touched = image()
        touched.paste((1, 2, 3), (0, 0, 8, 8))
        forebay.pack([{"i": touched}], tmp_path / "e")
        assert read_folder(tmp_path / "e", tmp_path)[0]["i"].tobytes() == touched.tobytes() != pixels
        with pytest.raises(DatasetError, match=r"item 1.*JPEG"):
            forebay.pack([{"i": image()}, {"i": touched}], tmp_path / "f")
    with pytest.raises(DatasetError, match="palette"):
        forebay.pack([Image.new("P", (2, 2))], tmp_path / "f")


@pytest.mark.parametrize("value", [None, {1, 2}, object, np.array([None])])
def test_other_types_need_pickle_which_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(UnsafePickleError, match=r"item 0: item\['x'\] is a .*allow_pickle=True"):
        forebay.pack([{"x": value}], tmp_path / "d")
    assert files(tmp_path) == set()
    forebay.pack([{"x": value}], tmp_path / "d", allow_pickle=True)
    with pytest.raises(UnsafePickleError):
        open_folder(tmp_path / "d")
    assert len(read_folder(tmp_path / "d", tmp_path, allow_pickle=True)) == 1


@pytest.mark.parametrize("item", [{}, [], {"a": ()}])
def test_an_item_without_a_value_is_refused(tmp_path: Path, item: object) -> None:
    with pytest.raises(DatasetError, match="item 0 holds no value"):
        forebay.pack([item], tmp_path / "d")


def test_keys_that_json_would_change_are_refused(tmp_path: Path) -> None:
    forebay.pack([{1: "a", "b": "c"}], tmp_path / "d")
    assert read_folder(tmp_path / "d", tmp_path) == [{1: "a", "b": "c"}]
    for key in ((1, 2), 1.5, None, True):
        with pytest.raises(DatasetError, match="keys of a dict are str or int"):
            forebay.pack([{key: "a"}], tmp_path / "e")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda to: forebay.pack([1], to, chunk_bytes=0), "chunk_bytes"),
        (lambda to: forebay.pack([1], to, chunk_bytes="5GiB"), "5368709120"),
        (lambda to: forebay.pack([1], to, chunk_bytes="many"), "many"),
        (lambda to: forebay.pack([1], to, compression="gzip"), "'gzip'"),
        (lambda to: forebay.pack([1], to, compression_level=3), "compression_level"),
        (lambda to: forebay.pack([1], to, compression="zstd", compression_level=23), "23"),
        (lambda to: forebay.pack([1], to, options={"colour": 1}), "colour"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(
    tmp_path: Path, call: Callable[[Path], object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        call(tmp_path / "d")
    assert files(tmp_path) == set()


def test_what_is_no_iterable_is_the_callers_type_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="iterable"):
        forebay.pack(5, tmp_path / "d")  # type: ignore[arg-type]
    assert files(tmp_path) == set()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DatasetError, match="is a file"):
            forebay.pack([1], target)
