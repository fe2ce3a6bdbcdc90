"""`pack`: items into a dataset that `open_dataset` reads, and litdata 0.2.65 too."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from forebay import _config
from forebay._formats._encode import ItemEncoder
from forebay._pack_target import PackTarget, open_target
from forebay.exceptions import ConfigError

__all__ = ["PackResult", "pack"]

_OFFSET_LIMIT = (1 << 32) - 1  # offsets in a chunk are uint32
_DEFAULT_LEVEL = 4  # what litdata compresses with


@dataclass(frozen=True, slots=True, kw_only=True)
class PackResult:
    """What was written. ``bytes`` is the size of the chunks as they are read, ``stored_bytes`` as they are stored."""

    url: str
    items: int
    chunks: int
    bytes: int
    stored_bytes: int


def pack(
    items: Iterable[Any],
    url: str | os.PathLike[str],
    *,
    chunk_bytes: int | str = "64MiB",
    compression: str | None = None,
    compression_level: int | None = None,
    overwrite: bool = False,
    digests: bool = True,
    tokens: bool = False,
    allow_pickle: bool = False,
    options: Mapping[str, object] | None = None,
) -> PackResult:
    """Write a dataset; the index comes last, so that readers see all of it or nothing.

    An item is a number, text, bytes, a NumPy array, a torch tensor, a Pillow image, or dicts, lists and tuples of them.
    All items have the structure of the first one. Only one chunk is in memory at a time. On any failure, a failing
    iterable included, what was written is removed (a store keeps uploaded chunks, which no index names).

    Args:
        items: The items, consumed once.
        url: A local directory, or the URL of a store whose backend can upload.
        chunk_bytes: A chunk is closed before its items take more than this; a larger item gets a chunk of its own.
        compression: ``"zstd"``, or None.
        compression_level: From 1 to 22; 4 if it is not given.
        overwrite: Replace a dataset that is there. Its chunks stay until the new index is in place.
        digests: Write each chunk's xxh3-64 into the index; readers check it.
        tokens: Each item is an array or tensor of one dimension; they are joined, and cut into blocks when read.
        allow_pickle: Pickle values of other types. Whoever reads the dataset has to trust it.
        options: Options of the backend.

    Raises:
        ConfigError: An argument cannot be used.
        UnsupportedOperationError: The backend cannot upload, which is known before an item is consumed; or a server
            refuses to be written to, which shows when the first chunk is sent.
        DatasetError: There is a dataset already, or an item does not fit the first one.
        UnsafePickleError: A value needs pickle.
    """
    writer = _ChunkWriter(compression, compression_level, digests=digests)
    limit = _config.parse_size(chunk_bytes, option="chunk_bytes")
    if not 0 < limit < _OFFSET_LIMIT:
        raise ConfigError(f"chunk_bytes is {limit}, not from 1 to {_OFFSET_LIMIT - 1}", option="chunk_bytes")
    iterator = iter(items)
    target = open_target(url, overwrite=overwrite, options=options)
    try:
        encoder = ItemEncoder(allow_pickle=allow_pickle, tokens=tokens)
        pending = _Pending(limit)
        rows: list[dict[str, Any]] = []
        for number, item in enumerate(iterator):
            parts, size, dim = encoder.encode(item, number)
            if not pending.has_room(size):
                rows.append(writer.write(pending, target, len(rows)))
                pending = _Pending(limit)
            pending.add(b"".join(parts), dim)
        if pending.sizes:
            rows.append(writer.write(pending, target, len(rows)))
        target.publish_index(_index(rows, encoder, limit, compression=writer.compression, tokens=tokens))
        return PackResult(
            url=target.shown,
            items=sum(row["chunk_size"] for row in rows),
            chunks=len(rows),
            bytes=sum(row["chunk_bytes"] for row in rows),
            stored_bytes=writer.stored_bytes,
        )
    except BaseException:  # no half a dataset stays, whatever came; it is raised again
        target.abort()
        raise
    finally:
        target.close()


def _index(
    rows: list[dict[str, Any]], encoder: ItemEncoder, limit: int, *, compression: str | None, tokens: bool
) -> bytes:
    config = {
        "chunk_bytes": limit,
        "chunk_size": None,
        "compression": compression,
        "data_format": encoder.data_format or [],
        "data_spec": encoder.data_spec,
        "encryption": None,
        "item_loader": "TokensLoader" if tokens else "PyTreeLoader",
    }
    whole = {"chunks": rows, "config": config, "updated_at": str(_config.wall_clock())}
    return json.dumps(whole, sort_keys=True).encode()


class _Pending:
    """The items of the chunk that is being filled."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.items: list[bytes] = []
        self.sizes: list[int] = []
        self.total = 0
        self.dim: int | None = None

    def has_room(self, size: int) -> bool:
        """Whether one more item fits; an empty chunk takes any."""
        if not self.sizes:
            return True
        head = 4 * (len(self.sizes) + 3)
        return self.total + size <= self._limit and head + self.total + size <= _OFFSET_LIMIT

    def add(self, data: bytes, dim: int | None) -> None:
        """Take one item."""
        self.items.append(data)
        self.sizes.append(len(data))
        self.total += len(data)
        if dim is not None:
            self.dim = (self.dim or 0) + dim

    def head(self) -> bytes:
        """The number of items and where each begins."""
        count = len(self.sizes)
        offsets = np.full(count + 1, 4 * (count + 2), dtype=np.int64)
        offsets[1:] += np.cumsum(np.array(self.sizes, dtype=np.int64))
        return struct.pack("<I", count) + offsets.astype("<u4").tobytes()


class _ChunkWriter:
    """Writes chunks to temporary files, digest and compression on the way, and counts them."""

    def __init__(self, compression: str | None, level: int | None, *, digests: bool) -> None:
        if compression not in (None, "zstd"):
            raise ConfigError(
                f"compression is {compression!r}; chunks are written with 'zstd', or with None as they are",
                option="compression",
            )
        if level is not None and compression is None:
            raise ConfigError("compression_level is given and compression is not", option="compression_level")
        if level is not None and (type(level) is not int or not 1 <= level <= 22):
            raise ConfigError(f"compression_level is {level!r}, not from 1 to 22", option="compression_level")
        self.compression = compression
        self._level = _DEFAULT_LEVEL if level is None else level
        self._digests = digests
        self.stored_bytes = 0

    def write(self, pending: _Pending, target: PackTarget, number: int) -> dict[str, Any]:
        """Write and publish one chunk; returns its row of the index."""
        suffix = f".{self.compression}.bin" if self.compression else ".bin"
        name = target.chunk_name(number, suffix)
        head = pending.head()
        decoded = len(head) + pending.total
        with target.new_file(name) as (path, file):
            digest = self._fill(file, head, pending.items, decoded)
            file.flush()
            os.fsync(file.fileno())
            stored = Path(path).stat().st_size
        self.stored_bytes += stored
        row = {"chunk_bytes": decoded, "chunk_size": len(pending.sizes), "dim": pending.dim, "filename": name}
        # litdata ignores fields that it does not know.
        return row | ({"digest": digest} if digest else {}) | {"stored_bytes": stored}

    def _fill(self, file: IO[bytes], head: bytes, items: list[bytes], decoded: int) -> str | None:
        import xxhash

        hasher = xxhash.xxh3_64() if self._digests else None
        sink: Any = file
        if self.compression:
            import zstandard

            compressor = zstandard.ZstdCompressor(level=self._level, write_checksum=True, write_content_size=True)
            # The size in the frame's head: one-shot decoders, litdata's among them, need it.
            sink = compressor.stream_writer(file, size=decoded, closefd=False)
        for piece in (head, *items):
            if hasher is not None:
                hasher.update(piece)
            sink.write(piece)
        if sink is not file:
            sink.close()
        return None if hasher is None else f"xxh3-64:{hasher.hexdigest()}"
