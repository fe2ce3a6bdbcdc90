"""Reads a local litdata folder with our format alone, without engine and cache."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import zstandard

from forebay._formats import ChunkReader
from forebay._formats.litdata import LitdataFormat

__all__ = ["FIXTURES", "edit_index", "open_folder", "read_folder", "readers"]

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


def open_folder(
    folder: Path, options: Mapping[str, object] | None = None, *, allow_pickle: bool = False
) -> LitdataFormat:
    """Read the folder's index."""
    data = (folder / "index.json").read_bytes()
    return LitdataFormat(data, url=str(folder), options=options or {}, allow_pickle=allow_pickle)


def readers(layout: LitdataFormat, folder: Path, scratch: Path) -> Iterator[ChunkReader]:
    """Open one chunk after the other; compressed ones are decompressed into ``scratch``."""
    for number in range(len(layout.index)):
        path = folder / layout.index.chunk(number).name
        if layout.index.codec is not None:
            raw = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
            path = scratch / f"{folder.name}-{number}.bin"
            path.write_bytes(raw)
        yield layout.open_chunk(path, number)


def read_folder(
    folder: Path, scratch: Path, options: Mapping[str, object] | None = None, *, allow_pickle: bool = False
) -> list[Any]:
    """Return every item, in storage order."""
    layout = open_folder(folder, options, allow_pickle=allow_pickle)
    return [item for reader in readers(layout, folder, scratch) for item in reader.read_many(range(len(reader)))]


def edit_index(data: bytes, **config: Any) -> bytes:
    """Return the index with some of its ``config`` replaced."""
    index = json.loads(data)
    index["config"].update(config)
    return json.dumps(index).encode()
