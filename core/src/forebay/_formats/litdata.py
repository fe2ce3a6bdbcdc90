"""The litdata layout: ``index.json`` beside chunks of items, as litdata 0.2.65 writes it and its later versions do.

A chunk is ``uint32`` number of items n, ``uint32[n + 1]`` offsets from the start of the chunk, and the items. An item
is the ``uint32`` size of each leaf, then the leaves. ``config.data_format`` names the type of each leaf,
``config.data_spec`` the structure around them. A chunk of tokens has the same head, then elements without sizes; items
are blocks of them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay._formats import ChunkReader, DatasetFormat, check_options
from forebay._formats._leaves import ChunkBytes, Leaf
from forebay._formats._litdata_index import Rows, parse_index
from forebay._formats._litdata_leaves import make_leaf
from forebay._formats._map import map_private
from forebay._formats._tokens import TokenLayout, TokenReader
from forebay._formats._tree import LEAF, Builders, Node, compile_builders, leaf_paths, parse_spec
from forebay._index import DatasetIndex
from forebay.exceptions import (
    ConfigError,
    DatasetError,
    IntegrityError,
    InvalidIndexError,
    MissingDependencyError,
    SizeMismatchError,
    UnsupportedFormatError,
)

__all__ = ["ItemReader", "LitdataFormat"]

#: Below this number of items the vectorised way costs more than one item after the other.
_FEW = 16
#: What a decoder raises for damaged bytes; a pickled object may raise anything, and that is the user's to see.
_DAMAGE = (IntegrityError, UnsupportedFormatError, ValueError, IndexError, OverflowError, struct.error)
_MAX_LEAVES = 10_000
_U4 = np.dtype("<u4")


class LitdataFormat(DatasetFormat):
    """A dataset that litdata wrote. Option ``block_size``: elements in an item of a dataset of tokens."""

    name = "litdata"

    def __init__(self, data: bytes, *, url: str, options: Mapping[str, object], allow_pickle: bool) -> None:
        super().__init__(data, url=url, options=options, allow_pickle=allow_pickle)
        check_options(options, ("block_size",), format_name=self.name)
        rows, config = parse_index(data, self.url)
        self._tokens: TokenLayout | None = None
        self._leaves: list[Leaf] = []
        self._paths: list[str] = []
        self._builders: Builders = compile_builders(LEAF)
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
        return ItemReader(array, offsets, self._leaves, self._builders, self._paths, where)

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
        self._paths = leaf_paths(spec)
        self._leaves = [self._leaf(name, path) for name, path in zip(names, self._paths, strict=True)]
        self._builders = compile_builders(spec)
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
            return make_leaf(name, allow_pickle=self.allow_pickle)
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


class ItemReader(ChunkReader):
    """The items of one chunk."""

    def __init__(
        self,
        array: npt.NDArray[np.uint8],
        offsets: npt.NDArray[np.uint32],
        leaves: Sequence[Leaf],
        builders: Builders,
        paths: Sequence[str],
        where: str,
    ) -> None:
        self._items = len(offsets) - 1
        self._offsets: npt.NDArray[np.uint32] | None = offsets
        self._chunk = ChunkBytes(array)
        self._leaves = leaves
        self._decoders = [leaf.one for leaf in leaves]
        self._builders = builders
        self._paths = paths
        self._where = where
        fixed = [place for place, leaf in enumerate(leaves) if leaf.width is not None]
        self._fixed = np.array(fixed) if fixed else None
        self._widths = np.array([leaves[place].width for place in fixed], dtype=np.int64)
        self._bounds = struct.Struct("<II").unpack_from
        self._sizes = struct.Struct(f"<{len(leaves)}I").unpack_from

    def __len__(self) -> int:
        return self._items

    def read(self, item: int) -> Any:
        """Return one item."""
        if not 0 <= item < self._items:
            raise self._outside(item)
        chunk = self._chunk
        start, end = self._bounds(chunk.view, 4 + 4 * item)
        values: list[Any] = []
        begin = start + 4 * len(self._leaves)
        try:
            if begin > end:
                raise IntegrityError(f"{end - start} bytes are less than the sizes of {len(self._leaves)} leaves")
            for decode, size in zip(self._decoders, self._sizes(chunk.view, start), strict=True):
                stop = begin + size
                if stop > end:
                    raise IntegrityError(f"{size} bytes do not fit into the {end - begin} that are left of the item")
                values.append(decode(chunk, begin, stop))
                begin = stop
            if begin != end:
                raise IntegrityError(f"{end - begin} bytes are left over behind the last leaf")
        except MissingDependencyError:  # a ValueError that says nothing of the bytes
            raise
        except _DAMAGE as error:
            raise self._damaged(item, len(values), error) from error
        return self._builders.one(*values)

    def read_many(self, items: Sequence[int] | range | npt.NDArray[np.integer[Any]]) -> list[Any]:
        """Return several items: bounds of all leaves in a few array operations, then one decoder call a leaf."""
        if len(items) < _FEW:
            return [self.read(int(item)) for item in items]
        if isinstance(items, range):
            places = np.arange(items.start, items.stop, items.step, dtype=np.int64)
        else:
            places = np.asarray(items, dtype=np.int64)
        if int(places.view(np.uint64).max()) >= self._items:  # a negative number is a huge one here
            raise self._outside(int(places[(places < 0) | (places >= self._items)][0]))
        try:
            edges = self._edges(places)
            columns = [leaf.many(self._chunk, edges[n], edges[n + 1]) for n, leaf in enumerate(self._leaves)]
        except _DAMAGE:
            # The slow way finds the item and says which leaf of it is damaged.
            return [self.read(item) for item in places.tolist()]
        return self._builders.many(*columns)

    def _edges(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return where each leaf of each item begins: one row a leaf, and a last one with the ends of the items."""
        offsets = self._offsets
        if offsets is None:
            raise ValueError(f"the reader of {self._where} is closed")
        leaves = len(self._leaves)
        edges = np.empty((leaves + 1, len(places)), dtype=np.int64)
        starts = edges[0]
        starts[:] = offsets[places]
        sizes = self._chunk.gather(starts, 4 * leaves).view(_U4).reshape(len(places), leaves)
        if self._fixed is not None and (sizes[:, self._fixed] != self._widths).any():
            raise IntegrityError("a number does not have its width")
        starts += 4 * leaves
        edges[1:] = sizes.T
        np.cumsum(edges, axis=0, out=edges)
        # Sizes are not negative: an item smaller than its own head cannot pass either.
        if (edges[-1] != offsets[places + 1]).any():
            raise IntegrityError("the leaves do not fill their item")
        return edges

    def close(self) -> None:
        """Let go of the map; views that are out keep it."""
        self._offsets = None
        self._items = 0
        self._chunk = ChunkBytes(np.empty(0, dtype=np.uint8))

    def _outside(self, item: int) -> Exception:
        if self._offsets is None:
            return ValueError(f"the reader of {self._where} is closed")
        return IndexError(f"item {item} of the {self._items} in {self._where}")

    def _damaged(self, item: int, leaf: int, error: Exception) -> Exception:
        if self._offsets is None:
            return ValueError(f"the reader of {self._where} is closed")
        path = self._paths[leaf] if leaf < len(self._paths) else "its end"
        # An Arrow footer replaces the items' bytes; litdata 0.2.76 writes one where pyarrow is installed.
        if bytes(self._chunk.view[-8:]) == b"LDARW01\0":
            return UnsupportedFormatError(f"{self._where} holds its items as an Arrow table, which is not read")
        kind = UnsupportedFormatError if isinstance(error, UnsupportedFormatError) else IntegrityError
        return kind(f"{self._where}: item {item}: {path}: {error}")
