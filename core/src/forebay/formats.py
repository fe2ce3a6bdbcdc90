"""For authors of format plugins: what reads a dataset's index, and the items of one chunk on the local disk."""

from __future__ import annotations

from forebay._formats import ChunkReader, DatasetFormat, check_options
from forebay._index import ChunkEntry, DatasetIndex, first_bad_name, name_fault

__all__ = [
    "ChunkEntry",
    "ChunkReader",
    "DatasetFormat",
    "DatasetIndex",
    "check_options",
    "first_bad_name",
    "name_fault",
]
