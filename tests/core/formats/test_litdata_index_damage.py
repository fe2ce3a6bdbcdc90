"""Risk B3, Q3, T4: a damaged index is an `InvalidIndexError` that says what and where, whatever the damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from formats.folder import FIXTURES, edit_index
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay._formats.litdata import LitdataFormat
from forebay._index import name_fault
from forebay.exceptions import ConfigError, DatasetError, InvalidIndexError, UnsafePickleError, UnsupportedFormatError

PLAIN = (FIXTURES / "litdata65-plain" / "index.json").read_bytes()
TOKENS = (FIXTURES / "litdata65-tokens" / "index.json").read_bytes()
URL = "s3://user:secret@bucket/data?X-Amz-Signature=0123456789abcdef"


def parse(data: bytes, *, allow_pickle: bool = False, **options: object) -> LitdataFormat:
    return LitdataFormat(data, url=URL, options=options, allow_pickle=allow_pickle)


def changed(change: Callable[[dict[str, Any]], object], data: bytes = PLAIN) -> bytes:
    index = json.loads(data)
    change(index)
    return json.dumps(index).encode()


def set_row(**fields: object) -> Callable[[dict[str, Any]], object]:
    return lambda index: index["chunks"][1].update(fields)


def test_an_index_cut_off_anywhere_is_refused_B3() -> None:
    for length in {0, 1, len(PLAIN) // 2, len(PLAIN) - 1}:
        with pytest.raises(InvalidIndexError, match="not JSON"):
            parse(PLAIN[:length])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"chunks": [], "config": ' + b"1" * 5000 + b"}", "not JSON"),
        (b"[]", "not an object"),
        (b'{"chunks": []}', "'config' is missing"),
        (b'{"config": null}', "'chunks' is missing"),
        (b'{"chunks": {}, "config": null}', "'chunks' is not a list"),
        (b'{"chunks": [], "config": 3}', "'config' is not an object"),
        (b'{"chunks": [7], "config": null}', "chunk 0: it is not a chunk's row"),
    ],
)
def test_what_is_no_index_at_all_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(InvalidIndexError, match=words):
        parse(data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda index: index["chunks"][1].pop("filename"), "chunk 1: filename is missing"),
        (lambda index: index["chunks"][1].pop("chunk_size"), "chunk 1: chunk_size is missing"),
        (lambda index: index["chunks"][1].pop("chunk_bytes"), "chunk 1: chunk_bytes is missing"),
        (set_row(chunk_size=None), "chunk 1: chunk_size is null"),
        (set_row(chunk_size=-1), "chunk 1: chunk_size is -1"),
        (set_row(chunk_size=1.5), r"chunk 1: chunk_size is 1\.5"),
        (set_row(chunk_size=True), "chunk 1: chunk_size is True"),
        (set_row(chunk_size="3"), "chunk 1: chunk_size is '3'"),
        (set_row(chunk_size=2**40), "chunk 1: chunk_size is 1099511627776"),
        (set_row(chunk_bytes=-5), "chunk 1: chunk_bytes is -5"),
        (set_row(chunk_bytes=10**30), "chunk 1: chunk_bytes is 1000"),
        (set_row(chunk_bytes=20), "chunk 1: .*chunk_bytes is 20, its 11 items take at least 52"),
        (set_row(stored_bytes=7), "chunk 1: .*stored_bytes differs"),
        (set_row(digest="xxh3-64"), "chunk 1: digest is 'xxh3-64'"),
        (set_row(digest=5), "chunk 1: digest is 5"),
        (set_row(filename=5), "chunk 1: filename is 5"),
        (set_row(filename="chunk-0-0.bin"), "chunk 1: the name 'chunk-0-0.bin' stands twice"),
        (lambda index: index.update(config=None), "'config' is null"),
        (lambda index: index["config"].pop("data_format"), "data_format is None"),
        (lambda index: index["config"].update(data_format=[]), r"data_format is \[\]"),
        (lambda index: index["config"].update(data_format=["int"]), "has 10 leaves, config.data_format names 1"),
        (lambda index: index["config"].update(data_format=[3]), "data_format is"),
        (lambda index: index["config"].pop("data_spec"), "data_spec is None"),
        (lambda index: index["config"].update(data_spec="[1"), "data_spec is not JSON"),
        (lambda index: index["config"].update(data_spec="[1, []]"), "data_spec is not a node"),
        (lambda index: index["config"].update(data_spec="5"), "data_spec is not a pair"),
        (lambda index: index["config"].update(compression=5), "compression is 5"),
        (lambda index: index.update(more={"filename": "x", "chunk_size": 1, "chunk_bytes": 99}), "outside of 'chunks'"),
    ],
)
def test_each_field_that_is_missing_or_wrong_is_named_with_its_place(
    change: Callable[[dict[str, Any]], object], words: str
) -> None:
    with pytest.raises(InvalidIndexError, match=words) as caught:
        parse(changed(change))
    assert "s3://" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "0123456789" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "../x.bin", "a/../../x.bin", "a/..", "..", ".", "./x", "a//b", "a\\b.bin", "C:x.bin", "c:/x",
     "a\x00b", "a\nb", "http://elsewhere/x", "x/"],
)  # fmt: skip
def test_a_name_that_could_leave_the_directory_is_refused_T4(name: str) -> None:
    with pytest.raises(InvalidIndexError, match="chunk 1: the name"):
        parse(changed(set_row(filename=name)))


@pytest.mark.parametrize("name", ["chunk-0-1.zstd:7.bin", "part 1/chunk é.bin", "..x", "x..bin", "-", "a%2e%2e"])
def test_an_unusual_name_that_stays_inside_is_taken(name: str) -> None:
    assert parse(changed(set_row(filename=name))).index.chunk(1).name == name


@given(st.text(max_size=20))
def test_no_accepted_name_leaves_its_directory_T4(name: str) -> None:
    import ntpath
    import posixpath

    if name_fault(name) is None:
        for path, root in ((posixpath, "/base/dir"), (ntpath, "r:\\root\\dir")):
            joined = path.normpath(path.join(root, name))
            assert joined.startswith(root + path.sep)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(PLAIN) - 1), st.integers(0, 255), st.sampled_from([1, 2, 10, 200]))
def test_any_overwritten_bytes_give_a_dataset_or_an_error_of_ours(place: int, byte: int, count: int) -> None:
    damaged = bytearray(PLAIN)
    damaged[place : place + count] = bytes([byte]) * len(damaged[place : place + count])
    try:
        layout = parse(bytes(damaged))
    except (DatasetError, ConfigError):  # a flipped item_loader asks for another option
        return
    assert layout.index.items >= 0


@pytest.mark.parametrize(
    "data", [b'{"chunks": [], "config": null}', b'{"chunks": null, "config": null}', b'{"chunks": [], "config": {}}']
)
def test_a_dataset_without_chunks_is_empty_Q3(data: bytes) -> None:
    index = parse(data).index
    assert (len(index), index.items, index.largest_decoded, index.codec) == (0, 0, 0, None)
    with pytest.raises(IndexError):
        index.locate(0)


def test_chunks_without_items_between_others_are_stepped_over() -> None:
    data = changed(lambda index: index["chunks"].insert(1, {"filename": "e.bin", "chunk_size": 0, "chunk_bytes": 0}))
    index = parse(data).index
    assert [index.locate(item) for item in (13, 14)] == [(0, 13), (2, 0)]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"encryption": {"algorithm": "fernet"}}, "encrypted"),
        ({"compression": "zstd", "compression_level": "batch"}, "compression_level='batch'"),
        ({"ipc_compression": "zstd"}, "Arrow"),
        ({"item_loader": "ParquetLoader"}, "ParquetLoader"),
        ({"data_spec": json.dumps([2, {}])}, "protocol 2"),
        ({"data_spec": json.dumps([1, {"type": "os.system", "context": "null", "children_spec": []}])}, r"os\.system"),
        ({"data_format": ["int", "str", "bytes", "float", "bool", "numpy", "graph", "pil", "int", "str"]},
         r"item\['emb'\]: 'graph'"),
        ({"data_format": ["int:5", "str", "bytes", "float", "bool", "numpy", "tensor", "pil", "int", "str"]},
         r"item\['index'\]: 'int:5'"),
        ({"data_format": ["int", "str", "bytes", "float", "bool", "numpy", "no_header_tensor:99", "pil", "int", "str"]},
         r"item\['emb'\].*99"),
    ],
)  # fmt: skip
def test_what_this_version_does_not_read_is_named(config: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedFormatError, match=words):
        parse(edit_index(PLAIN, **config))


def test_a_defaultdict_may_not_choose_what_we_import() -> None:
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    context = {"default_factory_module": "os", "default_factory_name": "getcwd", "dict_context": ["a"]}
    spec = [1, {"type": "collections.defaultdict", "context": context, "children_spec": [leaf]}]
    with pytest.raises(UnsupportedFormatError, match=r"os\.getcwd"):
        parse(edit_index(PLAIN, data_spec=json.dumps(spec), data_format=["int"]))


def test_pickled_items_are_refused_before_anything_is_fetched() -> None:
    data = edit_index(
        PLAIN, data_format=["int", "str", "bytes", "float", "bool", "pickle", "tensor", "pil", "int", "str"]
    )
    with pytest.raises(UnsafePickleError, match=r"item\['vec'\].*allow_pickle=True"):
        parse(data)
    assert parse(data, allow_pickle=True).index.items == 25


def test_an_unknown_option_is_an_error_with_the_near_one() -> None:
    with pytest.raises(ConfigError, match=r"'blok_size'.*did you mean 'block_size'"):
        parse(PLAIN, blok_size=3)


@pytest.mark.parametrize("value", [0, -1, "11", 1.0, True])
def test_a_block_size_that_is_no_positive_number_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="block_size"):
        parse(TOKENS, block_size=value)


def test_a_block_that_no_chunk_can_hold_is_refused_with_what_fits() -> None:
    """A newcomer's risk: blocks do not span chunks, so the dataset would be empty, and an epoch over at once."""
    largest = max(row["dim"] for row in json.loads(TOKENS)["chunks"])
    with pytest.raises(ConfigError, match=f"block_size .* is {largest + 1}, and .* {largest} tokens") as caught:
        parse(TOKENS, block_size=largest + 1)
    assert "secret" not in str(caught.value)
    assert parse(TOKENS, block_size=largest).index.items >= 1
    assert parse(changed(lambda index: index.update(chunks=[]), TOKENS), block_size=11).index.items == 0


def test_tokens_need_a_block_size_and_items_have_none() -> None:
    with pytest.raises(ConfigError, match="block_size"):
        parse(TOKENS)
    with pytest.raises(ConfigError, match="tokens"):
        parse(PLAIN, block_size=11)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_row(dim=None), "chunk 1: .*dim"),
        (set_row(dim=489), "chunk 1: .*chunk_bytes is 3964, its 13 items take 3972"),
        (set_row(chunk_size=12), "chunk 1: .*chunk_bytes"),
        (lambda index: index["config"].update(data_format=["int", "int"]), "names 2"),
    ],
)
def test_tokens_whose_sizes_contradict_each_other_are_refused(
    change: Callable[[dict[str, Any]], object], words: str
) -> None:
    with pytest.raises(InvalidIndexError, match=words):
        parse(changed(change, TOKENS), block_size=11)
