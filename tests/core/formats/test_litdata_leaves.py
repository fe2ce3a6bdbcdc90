"""Every leaf type, bytes written by hand: right values come back, damaged ones say which chunk, item and leaf."""

from __future__ import annotations

import io
import json
import pickle
import struct
import sys
from collections import OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from formats.chunks import one_chunk
from PIL import Image

from forebay.exceptions import IntegrityError, MissingDependencyError, UnsafePickleError, UnsupportedFormatError

FEW, MANY = 3, 60  # below and above the number from which a batch is vectorised


def jpeg(color: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 8), (color, color, color)).save(file, "JPEG")
    return file.getvalue()


def header(order: str, *numbers: int) -> bytes:
    return struct.pack(f"{order}{len(numbers)}I", *numbers)


def json_leaf(value: object, flag: int = 0) -> bytes:
    raw = json.dumps(value).encode()
    return struct.pack("<BI", flag, len(raw)) + raw


# name in data_format, value number i as bytes, what it has to become
PLAIN_LEAVES: list[tuple[str, Any, Any]] = [
    ("int", lambda i: struct.pack("<q", -i * 10**15), lambda i: -i * 10**15),
    ("float", lambda i: struct.pack("<d", i / 3), lambda i: i / 3),
    ("bool", lambda i: bytes([i % 3]), lambda i: i % 3 != 0),
    ("str", lambda i: ("é✓" * i).encode(), lambda i: "é✓" * i),
    ("text", lambda i: b"x" * i, lambda i: "x" * i),
    ("bytes", lambda i: b"\x00" * i, lambda i: b"\x00" * i),
    ("file:txt", lambda i: b"\x01" * i, lambda i: b"\x01" * i),
    ("video:mp4", lambda i: b"\x02" * i, lambda i: b"\x02" * i),
    ("json", lambda i: json_leaf({"a": [i, None, "é"]}), lambda i: {"a": [i, None, "é"]}),
]


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize(("name", "encode", "value"), PLAIN_LEAVES, ids=[leaf[0] for leaf in PLAIN_LEAVES])
def test_plain_leaves(tmp_path: Path, name: str, encode: Any, value: Any, count: int) -> None:
    reader = one_chunk(tmp_path, ["int", name], [(struct.pack("<q", i), encode(i)) for i in range(count)])
    items = reader.read_many(range(count))
    assert items == [(i, value(i)) for i in range(count)]
    assert [type(item[1]) for item in items] == [type(value(i)) for i in range(count)]
    assert items == [reader.read(i) for i in range(count)]


NUMPY = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
         "complex64", "complex128", "bool"]  # fmt: skip
TORCH = {0: "float32", 1: "float32", 2: "float64", 3: "float64", 5: "complex64", 7: "complex128", 9: "float16",
         10: "bfloat16", 11: "uint8", 12: "int8", 14: "int16", 16: "int32", 18: "int64", 19: "bool",
         20: "uint16"}  # fmt: skip


@pytest.mark.parametrize("same_shape", [True, False])
@pytest.mark.parametrize("number", range(len(NUMPY)))
def test_arrays_of_each_type(tmp_path: Path, number: int, same_shape: bool) -> None:
    wanted = [
        np.arange(6 if same_shape else 2 * (i % 4)).reshape(2, -1).astype(NUMPY[number]) + i % 2 for i in range(MANY)
    ]
    wanted = [array.astype(NUMPY[number]) for array in wanted]
    rows = [(header("<", number, 2, *array.shape) + array.tobytes(), array.tobytes()) for array in wanted]
    reader = one_chunk(tmp_path, ["numpy", f"no_header_numpy:{number}"], rows)
    for items in (reader.read_many(range(MANY)), [reader.read(i) for i in range(MANY)]):
        for (shaped, flat), array in zip(items, wanted, strict=True):
            np.testing.assert_array_equal(shaped, array)
            np.testing.assert_array_equal(flat, array.reshape(-1))
            assert shaped.dtype == flat.dtype == array.dtype
            assert shaped.flags.writeable
            assert flat.flags.writeable


@pytest.mark.parametrize("number", TORCH)
def test_tensors_of_each_type(tmp_path: Path, number: int) -> None:
    dtype = getattr(torch, TORCH[number])
    wanted = [torch.arange(2 * (i % 4)).reshape(2, -1).to(dtype) for i in range(MANY)]
    raw = [tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"" for tensor in wanted]
    rows = [(header(">", number, 2, *tensor.shape) + data, data) for tensor, data in zip(wanted, raw, strict=True)]
    reader = one_chunk(tmp_path, ["tensor", f"no_header_tensor:{number}"], rows)
    for items in (reader.read_many(range(MANY)), [reader.read(i) for i in range(MANY)]):
        for (shaped, flat), tensor in zip(items, wanted, strict=True):
            assert torch.equal(shaped, tensor)
            assert torch.equal(flat, tensor.reshape(-1))
            assert shaped.dtype is flat.dtype is dtype


def test_arrays_and_tensors_without_dimensions(tmp_path: Path) -> None:
    rows = [(header("<", 9, 0) + struct.pack("<f", i), header(">", 18, 0) + struct.pack("<q", i)) for i in range(MANY)]
    items = one_chunk(tmp_path, ["numpy", "tensor"], rows).read_many(range(MANY))
    assert all(type(array) is np.ndarray and array.shape == () and array == i for i, (array, _) in enumerate(items))
    assert all(tensor.shape == () and tensor.item() == i for i, (_, tensor) in enumerate(items))


def test_large_arrays_are_views_and_small_ones_do_not_keep_the_chunk(tmp_path: Path) -> None:
    large, small = np.arange(1000.0).reshape(10, 100), np.arange(6.0).reshape(2, 3)
    rows = [tuple(header("<", 10, 2, *array.shape) + array.tobytes() for array in (large, small)) for _ in range(MANY)]
    first = one_chunk(tmp_path, ["numpy", "numpy"], rows).read_many(range(MANY))[0]
    assert first[0].base.nbytes > MANY * large.nbytes
    assert first[1].base.nbytes == MANY * small.nbytes
    first[0][:] = 5
    first[1][:] = 5


def test_images_come_back_as_images(tmp_path: Path) -> None:
    gray = Image.new("L", (5, 3), 7)
    raw = header("<", 5, 3, 1) + b"L" + gray.tobytes()
    listed = [jpeg(10), jpeg(200), jpeg(30)]
    array = header("<", 3, *map(len, listed)) + b"".join(listed)
    reader = one_chunk(tmp_path, ["pil", "jpeg", "image:jpg", "jpeg_array"], [(raw, jpeg(99), jpeg(98), array)])
    pil, single, image, images = reader.read(0)
    assert (pil.mode, pil.size, pil.tobytes()) == ("L", (5, 3), gray.tobytes())
    assert abs(single.getpixel((3, 3))[0] - 99) < 4
    assert abs(image.getpixel((3, 3))[0] - 98) < 4
    assert [abs(entry.getpixel((1, 1))[0] - tone) < 4 for entry, tone in zip(images, (10, 200, 30), strict=True)]
    assert pickle.loads(pickle.dumps(single)).size == (16, 8)


def test_pickle_runs_only_where_it_is_allowed(tmp_path: Path) -> None:
    rows = [(pickle.dumps({"a": i}),) for i in range(MANY)]
    with pytest.raises(UnsafePickleError):
        one_chunk(tmp_path, ["pickle"], rows)
    reader = one_chunk(tmp_path, ["pickle"], rows, allow_pickle=True)
    assert reader.read_many(range(MANY)) == [{"a": i} for i in range(MANY)]


def test_a_missing_package_is_named_and_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, leaf, words in (("tifffile", "tifffile", "tifffile"), ("PIL.Image", "pil", "Pillow")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingDependencyError, match=words):
            one_chunk(tmp_path, [leaf], [(b"x" * 40,)]).read(0)


@pytest.mark.parametrize("flag", [1, 5, 11, 255])
def test_another_json_flag_is_named(tmp_path: Path, flag: int) -> None:
    rows = [(json_leaf([i], flag if i == 30 else 0),) for i in range(MANY)]
    reader = one_chunk(tmp_path, ["json"], rows)
    with pytest.raises(UnsupportedFormatError, match=rf"c\.bin.*item 30: item: .*flag {flag}"):
        reader.read_many(range(MANY))


DAMAGED: list[tuple[str, bytes]] = [
    ("int", b"1234567"), ("float", b"123456789"), ("bool", b""), ("bool", b"12"), ("str", b"\xff\xfe"),
    ("json", b""), ("json", b"\x00\x01"), ("json", struct.pack("<BI", 0, 9) + b"[]"),
    ("json", struct.pack("<BI", 0, 1) + b"["),
    ("numpy", b"123"), ("numpy", header("<", 9, 2, 3)), ("numpy", header("<", 9, 1, 3) + b"x" * 11),
    ("numpy", header("<", 9, 2**31)), ("numpy", header("<", 9, 70) + b"x" * 280),
    ("numpy", header("<", 9, 2, 2**31, 2**31)),
    ("no_header_numpy:9", b"12345"), ("no_header_tensor:18", b"12345"),
    ("tensor", b"123"), ("tensor", header(">", 1, 1, 3) + b"x" * 13), ("tensor", header("<", 1, 1, 3) + b"x" * 12),
    ("pil", b"12"), ("pil", header("<", 4, 4, 99) + b"RGB"), ("pil", header("<", 9, 9, 3) + b"RGB" + b"x"),
    ("pil", header("<", 2**31, 2**31, 3) + b"RGB" + b"x"),
    ("pil", header("<", 1, 1, 3) + b"zzz" + b"x"), ("jpeg", b""), ("jpeg", b"not a picture"), ("jpeg", jpeg(1)[:-200]),
    ("jpeg_array", b"1"), ("jpeg_array", header("<", 2**31)), ("jpeg_array", header("<", 1, 50) + b"x"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "raw"), DAMAGED)
@pytest.mark.parametrize("count", [FEW, MANY])
def test_a_damaged_leaf_says_where_it_is(tmp_path: Path, name: str, raw: bytes, count: int) -> None:
    good = {
        "int": struct.pack("<q", 1), "float": struct.pack("<d", 1), "bool": b"\x01", "str": b"x", "json": json_leaf(1),
        "numpy": header("<", 9, 1, 1) + b"1234", "no_header_numpy:9": b"1234", "no_header_tensor:18": b"12345678",
        "tensor": header(">", 1, 1, 1) + b"1234", "pil": header("<", 1, 1, 1) + b"Lx", "jpeg": jpeg(1),
        "jpeg_array": header("<", 1, len(jpeg(1))) + jpeg(1),
    }[name]  # fmt: skip
    rows = [(b"other", raw if i == 2 else good) for i in range(count)]
    reader = one_chunk(tmp_path, ["bytes", name], rows)
    with pytest.raises(
        (IntegrityError, UnsupportedFormatError), match=r"'c\.bin' of memory://data: item 2: item\[1\]: "
    ):
        reader.read_many(range(count))
    assert reader.read(0)[0] == b"other"


@pytest.mark.parametrize(
    ("kind", "context", "wanted"),
    [
        ("builtins.list", "null", [1, 2]),
        ("builtins.tuple", "null", (1, 2)),
        ("builtins.dict", '["a", 5]', {"a": 1, 5: 2}),
        ("collections.OrderedDict", '["b", "a"]', OrderedDict(b=1, a=2)),
        ("collections.deque", "null", deque([1, 2])),
        ("collections.deque", "7", deque([1, 2], maxlen=7)),
        ("collections.defaultdict",
         {"default_factory_module": "builtins", "default_factory_name": "int", "dict_context": ["a", "b"]},
         defaultdict(int, {"a": 1, "b": 2})),
    ],
)  # fmt: skip
def test_each_container_is_made_again(tmp_path: Path, kind: str, context: object, wanted: object) -> None:
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    spec = json.dumps([1, {"type": "builtins.list", "context": "null", "children_spec": [
        {"type": kind, "context": context, "children_spec": [leaf, leaf]}, leaf,
        {"type": "builtins.tuple", "context": "null", "children_spec": []}]}])  # fmt: skip
    rows = [tuple(struct.pack("<q", number) for number in (1, 2, 3))] * MANY
    reader = one_chunk(tmp_path, ["int"] * 3, rows, data_spec=spec)
    for item in (reader.read(0), reader.read_many(range(MANY))[MANY - 1]):
        assert item == [wanted, 3, ()]
        assert type(item[0]) is type(wanted)
    if isinstance(wanted, deque):
        assert item[0].maxlen == wanted.maxlen
