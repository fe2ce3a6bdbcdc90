"""Reads the ``index.json`` of a litdata dataset into columns; every damage is an `InvalidIndexError` with its place.

A million chunks are 120 MB of JSON; as dicts they would take half a GB more. The decoder hands each object to a hook as
soon as it is complete: rows go into columns and leave a number behind.
"""

from __future__ import annotations

import json
import re
from array import array
from typing import Any

from forebay._index import first_bad_name
from forebay.exceptions import InvalidIndexError

__all__ = ["Rows", "parse_index"]

_DIGEST = re.compile(r"[a-z0-9][a-z0-9\-]*:[0-9a-f]{8,128}").fullmatch
#: More than any store holds in one object; keeps sums far inside of int64.
_MAX_BYTES = 1 << 48
_MAX_ITEMS = (1 << 32) - 1  # the chunk's own header counts in uint32
_UNKNOWN = -1


class Rows:
    """The chunks in columns. ``dims`` and ``stored`` are -1 where the index does not say; ``digests`` None for none."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.names: list[str] = []
        self.items = array("q")
        self.bytes = array("q")
        self.dims = array("q")
        self.stored = array("q")
        self.digests: list[str | None] = []

    def take(self, record: dict[str, Any]) -> Any:
        """JSON object hook: a chunk's row becomes its number, anything else stays."""
        if "filename" not in record or not ("chunk_size" in record or "chunk_bytes" in record):
            return record
        number = len(self.names)
        name, digest = record["filename"], record.get("digest")
        if type(name) is not str:
            raise self.fault(number, f"filename is {name!r}, not a text")
        if digest is not None and not (type(digest) is str and _DIGEST(digest)):
            raise self.fault(number, f"digest is {digest!r}, not 'algorithm:hex'")
        self.items.append(self._number(record, number, "chunk_size", _MAX_ITEMS))
        self.bytes.append(self._number(record, number, "chunk_bytes", _MAX_BYTES))
        self.dims.append(self._number(record, number, "dim", _MAX_BYTES, optional=True))
        self.stored.append(self._number(record, number, "stored_bytes", _MAX_BYTES, optional=True))
        self.digests.append(digest)
        self.names.append(name)
        return number

    def _number(self, record: dict[str, Any], number: int, field: str, limit: int, *, optional: bool = False) -> int:
        value = record.get(field)
        if value is None:
            if optional:
                return _UNKNOWN
            raise self.fault(number, f"{field} is {'null' if field in record else 'missing'}")
        if type(value) is not int or not 0 <= value <= limit:
            raise self.fault(number, f"{field} is {value!r}, not a number from 0 to {limit}")
        return value

    def fault(self, number: int, what: str) -> InvalidIndexError:
        """Return the error for one row."""
        return InvalidIndexError(f"the index of {self._url} is damaged: chunk {number}: {what}", url=self._url)


def parse_index(data: bytes, url: str) -> tuple[Rows, dict[str, Any] | None]:
    """Return the chunks and the ``config`` (None only where there are no chunks).

    Raises:
        InvalidIndexError: Anything is missing, of a wrong type, or points out of the dataset.
    """
    rows = Rows(url)

    def fault(what: str) -> InvalidIndexError:
        return InvalidIndexError(f"the index of {url} is damaged: {what}", url=url)

    try:
        loaded = json.loads(data, object_hook=rows.take)
    except (ValueError, RecursionError) as error:  # JSON, UTF-8, or a number with too many digits
        raise fault(f"{len(data)} bytes that are not JSON ({error}); was it cut off?") from error
    if not isinstance(loaded, dict):
        raise fault("the top is not an object")
    for field in ("chunks", "config"):
        if field not in loaded:
            raise fault(f"{field!r} is missing")
    chunks, config = loaded["chunks"], loaded["config"]
    if config is not None and not isinstance(config, dict):
        raise fault("'config' is not an object")
    _check_rows(rows, [] if chunks is None and config is None else chunks, fault)
    if rows.names and config is None:
        raise fault("there are chunks and 'config' is null")
    return rows, config


def _check_rows(rows: Rows, chunks: Any, fault: Any) -> None:
    if not isinstance(chunks, list):
        raise fault("'chunks' is not a list")
    if len(chunks) != len(rows.names) or any(number != row for number, row in enumerate(chunks)):
        for number, row in enumerate(chunks):
            if type(row) is not int or number != row:
                missing = (
                    "filename is missing"
                    if isinstance(row, dict) and "filename" not in row
                    else "it is not a chunk's row"
                )
                raise rows.fault(number, missing)
        raise fault("rows of chunks lie outside of 'chunks'")
    bad = first_bad_name(rows.names)
    if bad is not None:
        raise rows.fault(bad[0], f"the name {rows.names[bad[0]]!r} {bad[1]}")
    if len(set(rows.names)) != len(rows.names):
        seen: set[str] = set()
        for number, name in enumerate(rows.names):
            if name in seen:
                raise rows.fault(number, f"the name {name!r} stands twice")
            seen.add(name)
