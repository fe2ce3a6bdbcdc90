"""What child processes of tests run; a module of its own, since ``spawn`` imports it by name."""

from __future__ import annotations

from typing import Any

from formats.canon import canon

import forebay

__all__ = ["read_digests", "send_digests", "send_indices"]


def read_digests(url: str, cache: str, options: dict[str, object] | None) -> list[str]:
    """The canonical digest of each item, in storage order."""
    with forebay.open_dataset(url, cache_dir=cache, format_options=options) as ds:
        return [canon(item) for item in ds]


def send_digests(
    connection: Any, barrier: Any, cache: str, work: list[tuple[str, str, dict[str, object] | None]]
) -> None:
    """Read dataset after dataset, each started together with the other processes, and send what was read."""
    found = {}
    for name, url, options in work:
        barrier.wait(60)
        found[name] = read_digests(url, cache, options)
    connection.send(found)


def send_indices(connection: Any, ds: Any, url: str, cache: str) -> None:
    """Read all through an inherited dataset, or through one of its own, and send the items' numbers."""
    with forebay.open_dataset(url, cache_dir=cache) if ds is None else ds as opened:
        connection.send([item["index"] for item in opened])
