"""Writes chunks and indexes of the litdata layout by hand: a second way to the bytes, independent of `forebay.pack`."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forebay._formats import ChunkReader
from forebay._formats.litdata import LitdataFormat

__all__ = ["chunk_bytes", "leaf_spec", "one_chunk"]


def leaf_spec(leaves: int) -> str:
    """Return the structure of a tuple of leaves, or of a bare leaf."""
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    if leaves == 1:
        return json.dumps([1, leaf])
    return json.dumps([1, {"type": "builtins.tuple", "context": "null", "children_spec": [leaf] * leaves}])


def chunk_bytes(items: Sequence[Sequence[bytes]]) -> bytes:
    """Return the bytes of a chunk; each item is the bytes of its leaves."""
    bodies = [struct.pack(f"<{len(item)}I", *map(len, item)) + b"".join(item) for item in items]
    offsets = [4 * (len(bodies) + 2)]
    for body in bodies:
        offsets.append(offsets[-1] + len(body))
    return struct.pack(f"<{len(offsets) + 1}I", len(bodies), *offsets) + b"".join(bodies)


def one_chunk(
    folder: Path,
    data_format: Sequence[str],
    items: Sequence[Sequence[bytes]],
    *,
    data: bytes | None = None,
    allow_pickle: bool = False,
    data_spec: str | None = None,
) -> ChunkReader:
    """Write one chunk, ``data`` in place of the right bytes where given, and open it."""
    right = chunk_bytes(items)
    written = right if data is None else data
    (folder / "c.bin").write_bytes(written)
    row = {"filename": "c.bin", "chunk_size": len(items), "chunk_bytes": len(written)}
    config = {"data_format": list(data_format), "data_spec": data_spec or leaf_spec(len(data_format))}
    index = json.dumps({"chunks": [row], "config": config}).encode()
    layout = LitdataFormat(index, url="memory://data", options={}, allow_pickle=allow_pickle)
    return layout.open_chunk(folder / "c.bin", 0)
