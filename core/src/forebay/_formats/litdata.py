"""The litdata layout: ``index.json`` beside chunks of items, as litdata 0.2.65 writes it and its later versions do.

A chunk is ``uint32`` number of items n, ``uint32[n + 1]`` offsets from the start of the chunk, and the items. An item
is the ``uint32`` size of each leaf, then the leaves. ``config.data_format`` names the type of each leaf,
``config.data_spec`` the structure around them. A chunk of tokens has the same head, then elements without sizes; items
are blocks of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay._formats import ChunkReader, DatasetFormat, check_options
from forebay._formats._items import ItemLayout, ItemReader
from forebay._formats._leaves import ChunkBytes, Leaf
from forebay._formats._litdata_index import Rows, parse_index
from forebay._formats._litdata_leaves import make_leaf
from forebay._formats._map import map_private
from forebay._formats._tokens import TokenLayout, TokenReader
from forebay._formats._tree import LEAF, Node, leaf_paths, parse_spec
from forebay._index import DatasetIndex
from forebay.exceptions import (
    ConfigError,
    DatasetError,
    IntegrityError,
    InvalidIndexError,
    SizeMismatchError,
    UnsupportedFormatError,
)

__all__ = ["LitdataFormat"]

_MAX_LEAVES = 10_000


class LitdataFormat(DatasetFormat):
    """A dataset that litdata wrote.

    Options: ``block_size``, the elements in an item of a dataset of tokens; ``bytes_as``, "bytes" or "memoryview".
    """

    name = "litdata"

    def __init__(self, data: bytes, *, url: str, options: Mapping[str, object], allow_pickle: bool) -> None:
        super().__init__(data, url=url, options=options, allow_pickle=allow_pickle)
        check_options(options, ("block_size", "bytes_as"), format_name=self.name)
        rows, config = parse_index(data, self.url)
        self._tokens: TokenLayout | None = None
        self._layout: ItemLayout | None = None
        self._views = self._bytes_as() == "memoryview"
        if not rows.names:  # an empty dataset need not say what its items would have been
            self._block_size()
            self.index = self._columns(rows, np.zeros(0, dtype=np.int64), None)
            return
        config = config or {}
        self._refuse_what_we_do_not_read(config)
        self._sizes = np.array(rows.items, dtype=np.int64)
        loader = config.get("item_loader") or "PyTreeLoader"
        if loader == "TokensLoader":
            counts = self._set_up_tokens(rows, config)
        elif loader == "PyTreeLoader":
            counts = self._set_up_items(rows, config)
        else:
            raise UnsupportedFormatError(f"the dataset {self.url} needs the item loader {loader!r}", url=self.url)
        self.index = self._columns(rows, counts, self._codec(config))

    def open_chunk(self, path: Path, chunk: int) -> ChunkReader:
        """Map the chunk and check its head against the index."""
        entry = self.index.chunk(chunk)
        where = f"chunk {entry.name!r} of {self.url}"
        array = map_private(path)
        if entry.decoded_bytes is not None and len(array) != entry.decoded_bytes:
            raise SizeMismatchError(
                f"{where} has {len(array)} bytes, the index promises {entry.decoded_bytes}",
                url=self.url,
                expected=str(entry.decoded_bytes),
                actual=str(len(array)),
            )
        offsets = _read_head(array, int(self._sizes[chunk]), where)
        if self._tokens is not None:
            return TokenReader(array, int(offsets[0]), entry.items, self._tokens)
        assert self._layout is not None  # a dataset with a chunk has one or the other
        return ItemReader(ChunkBytes(array), offsets, self._layout, where)

    def _refuse_what_we_do_not_read(self, config: Mapping[str, Any]) -> None:
        for field, meaning in (
            ("encryption", "encrypted chunks"),
            ("ipc_compression", "items as Arrow tables"),
        ):
            if config.get(field):
                raise UnsupportedFormatError(f"the dataset {self.url} has {meaning}, which are not read", url=self.url)
        level = config.get("compression_level")
        if level not in (None, "", "chunk"):
            raise UnsupportedFormatError(
                f"the dataset {self.url} is compressed inside of its chunks (compression_level={level!r}); "
                "only compression_level='chunk' is read",
                url=self.url,
            )

    def _codec(self, config: Mapping[str, Any]) -> str | None:
        name = config.get("compression")
        if name is None or name == "":
            return None
        if not isinstance(name, str):
            raise self._invalid(f"config.compression is {name!r}, not a text")
        return name.partition(":")[0]  # "zstd:7": the level matters only to the writer

    def _invalid(self, what: str) -> InvalidIndexError:
        return InvalidIndexError(f"the index of {self.url} is damaged: {what}", url=self.url)

    def _set_up_items(self, rows: Rows, config: Mapping[str, Any]) -> npt.NDArray[np.int64]:
        if self._block_size() is not None:
            raise ConfigError(
                f"block_size (from format_options) is for datasets of tokens; {self.url} is one of items",
                option="block_size",
                origin="format_options",
            )
        names = self._data_format(config)
        spec = self._structure(config, len(names))
        leaves = [self._leaf(name, path) for name, path in zip(names, leaf_paths(spec), strict=True)]
        self._layout = ItemLayout.compile(spec, leaves)
        self._check_sizes(rows, self._sizes * 4 + 8)
        return self._sizes

    def _set_up_tokens(self, rows: Rows, config: Mapping[str, Any]) -> npt.NDArray[np.int64]:
        names = self._data_format(config)
        block_size = self._block_size()
        if block_size is None:
            raise ConfigError(
                f"{self.url} is a dataset of tokens: pass format_options={{'block_size': N}}, the elements in an item",
                option="block_size",
                origin="format_options",
            )
        if len(names) != 1:
            raise self._invalid(f"a dataset of tokens has one leaf, config.data_format names {len(names)}")
        try:
            self._tokens = TokenLayout.parse(names[0], block_size)
        except DatasetError as error:
            raise type(error)(f"the dataset {self.url}: config.data_format: {error}", url=self.url) from error
        dims = np.array(rows.dims, dtype=np.int64)
        if bool((dims < 0).any()):
            raise self._row_fault(rows, dims < 0, "dim, the number of its tokens, is missing")
        self._check_sizes(rows, self._sizes * 4 + 8 + dims * self._tokens.itemsize, exact=True)
        largest = int(dims.max(initial=0))
        if 0 < largest < block_size:
            raise ConfigError(
                f"block_size (from format_options) is {block_size}, and the largest chunk of {self.url} has"
                f" {largest} tokens: no block fits. Blocks do not span chunks; give at most {largest}, or pack larger"
                " chunks",
                option="block_size",
                origin="format_options",
            )
        return dims // block_size

    def _check_sizes(self, rows: Rows, wanted: npt.NDArray[np.int64], *, exact: bool = False) -> None:
        given = np.array(rows.bytes, dtype=np.int64)
        wrong = (given != wanted) if exact else (given < wanted)
        wrong &= ~((given == 0) & (self._sizes == 0))  # an empty chunk may be an empty file
        if bool(wrong.any()):
            row = int(wrong.argmax())
            least = "" if exact else "at least "
            what = f"chunk_bytes is {given[row]}, its {self._sizes[row]} items take {least}{wanted[row]}"
            raise self._row_fault(rows, wrong, what)

    def _row_fault(self, rows: Rows, wrong: npt.NDArray[np.bool_], what: str) -> InvalidIndexError:
        row = int(wrong.argmax())
        return rows.fault(row, f"({rows.names[row]}) {what}")

    def _data_format(self, config: Mapping[str, Any]) -> list[str]:
        names = config.get("data_format")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise self._invalid(f"config.data_format is {names!r:.80}, not a list of leaf types")
        if len(names) > _MAX_LEAVES:
            raise UnsupportedFormatError(
                f"the dataset {self.url} has {len(names)} leaves an item; at most {_MAX_LEAVES}"
            )
        return names

    def _structure(self, config: Mapping[str, Any], leaves: int) -> Node:
        text = config.get("data_spec")
        if text is None and leaves == 1:
            return LEAF
        if not isinstance(text, str):
            raise self._invalid(f"config.data_spec is {text!r:.80}, not a text")
        try:
            spec = parse_spec(text)
        except DatasetError as error:
            raise type(error)(f"the index of {self.url}: {error}", url=self.url) from error
        if len(leaf_paths(spec)) != leaves:
            raise self._invalid(
                f"config.data_spec has {len(leaf_paths(spec))} leaves, config.data_format names {leaves}"
            )
        return spec

    def _leaf(self, name: str, path: str) -> Leaf:
        try:
            return make_leaf(name, allow_pickle=self.allow_pickle, views=self._views)
        except DatasetError as error:
            raise type(error)(f"the dataset {self.url}: {path}: {error}", url=self.url) from error

    def _block_size(self) -> int | None:
        value = self.options.get("block_size")
        if value is not None and (type(value) is not int or value < 1):
            raise ConfigError(
                f"block_size (from format_options) is {value!r}, not a positive int",
                option="block_size",
                origin="format_options",
            )
        return value

    def _bytes_as(self) -> object:
        value = self.options.get("bytes_as", "bytes")
        if value not in ("bytes", "memoryview"):
            raise ConfigError(
                f"bytes_as (from format_options) is {value!r}, not 'bytes' or 'memoryview'",
                option="bytes_as",
                origin="format_options",
            )
        return value

    def _columns(self, rows: Rows, items: npt.NDArray[np.int64], codec: str | None) -> DatasetIndex:
        decoded, stored = np.array(rows.bytes, dtype=np.int64), np.array(rows.stored, dtype=np.int64)
        if codec is None and len(stored):
            clash = (stored >= 0) & (stored != decoded)
            if bool(clash.any()):
                raise self._row_fault(rows, clash, "stored_bytes differs from chunk_bytes, and nothing is compressed")
            stored = decoded
        digests = rows.digests if any(digest is not None for digest in rows.digests) else None
        return DatasetIndex(
            names=rows.names, items=items, decoded_bytes=decoded, stored_bytes=stored, digests=digests, codec=codec
        )


def _read_head(array: npt.NDArray[np.uint8], items: int, where: str) -> npt.NDArray[np.uint32]:
    """Return the offsets of a chunk's items, after checking that each item lies in the chunk, behind the one before."""
    if not len(array) and not items:
        return np.zeros(1, dtype=np.uint32)
    head = 4 * (items + 2)
    if len(array) < head:
        raise IntegrityError(f"{where} is damaged: {len(array)} bytes are less than the head of {items} items")
    numbers = array[:head].view("<u4")
    if int(numbers[0]) != items:
        raise IntegrityError(f"{where} is damaged: it says that it has {numbers[0]} items, the index says {items}")
    offsets = numbers[1:]
    if int(offsets[0]) != head or int(offsets[-1]) > len(array) or bool((offsets[1:] < offsets[:-1]).any()):
        raise IntegrityError(f"{where} is damaged: its offsets are out of order or lead out of its {len(array)} bytes")
    return offsets
