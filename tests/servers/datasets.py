"""Small datasets for tests, put into any server that has ``put``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import forebay

__all__ = ["CHUNKS", "ITEMS", "expected_items", "put_dataset"]

#: The dataset of `put_dataset`: so many items in so many chunks of equal size.
ITEMS = 40
CHUNKS = 8


class Remote(Protocol):
    """What a test server offers."""

    def put(self, key: str, data: bytes) -> None:
        """Hold ``data`` under ``key``."""
        ...


def expected_items(count: int = ITEMS, size: int = 1000) -> list[dict[str, Any]]:
    """The items of `put_dataset`, in storage order."""
    return [{"index": i, "blob": bytes([i % 251]) * size} for i in range(count)]


def put_dataset(
    remote: Remote,
    folder: Path,
    *,
    prefix: str = "",
    count: int = ITEMS,
    size: int = 1000,
    per_chunk: int = ITEMS // CHUNKS,
    compression: str | None = None,
) -> list[str]:
    """Pack items below ``folder``, put every file under ``prefix`` and return the names of the chunks in order."""
    # 12 bytes of lengths and 8 of index an item, and what a chunk has of its own, which is less than one more item.
    target = folder / (prefix.strip("/") or "dataset")
    chunk_bytes = per_chunk * (size + 40) + 60
    forebay.pack(expected_items(count, size), target, chunk_bytes=chunk_bytes, compression=compression)
    files = sorted(target.iterdir())
    for file in files:
        remote.put(f"{prefix}{file.name}", file.read_bytes())
    return [file.name for file in files if file.name.startswith("chunk-")]
