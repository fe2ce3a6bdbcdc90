"""What child processes of tests run; a module of its own, since ``spawn`` imports it by name."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import numpy as np
from formats.canon import canon

import forebay
from forebay._plan import EpochPlan

__all__ = ["read_digests", "read_in_step", "send_digests", "send_indices", "send_part"]


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


def send_part(
    connection: Any, barrier: Any, rank: int, ranks: int, epochs: int, url: str, arguments: dict[str, Any]
) -> None:
    """Read every ``ranks``-th chunk of each epoch's plan, in step with the other ranks; send chunks and statistics.

    For each epoch it sends the chunks that it read and how many it has fetched so far. ``barrier`` None: not in step.
    """
    with forebay.open_dataset(url, **arguments) as ds:
        sizes, window = np.diff(ds._index.starts), int(ds._spec.shuffle)
        plans = [EpochPlan(sizes=sizes, seed=ds._spec.seed, epoch=epoch, window=window) for epoch in range(epochs + 1)]
        parts = [plan.chunks()[rank::ranks] for plan in plans]
        for now, then in pairwise(parts):
            session = ds._source.session(now, ahead=ds._spec.ahead, then=then)
            numbers: list[int] = []
            for place, chunk in enumerate(now.tolist()):
                if barrier is not None:
                    barrier.wait(60)
                reader = ds._layout.open_chunk(session.take(place), chunk)
                numbers += [item["index"] for item in reader.read_many(range(len(reader)))]
                session.done(place)
            session.close()
            connection.send((numbers, ds.stats().chunks_fetched))


def read_in_step(connection: Any, barrier: Any, urls: list[str], arguments: dict[str, Any]) -> None:
    """Read datasets side by side, item by item in step with the other processes, and send the items' numbers."""
    with ExitStack() as stack:
        sets = [stack.enter_context(forebay.open_dataset(url, **arguments)) for url in urls]
        found = []
        for items in zip(*sets, strict=True):
            barrier.wait(60)
            found.append([item["index"] for item in items])
        connection.send(found)
