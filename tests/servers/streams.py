"""Small numbered datasets for the tests of `forebay.torch`, and what all ranks of a job get of them.

A module of its own and not part of a test, since workers and child processes import it by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import forebay
from forebay.testing import FaultServer
from forebay.torch import StreamingDataLoader

__all__ = ["TOO_MANY_WORKERS", "Job", "as_list", "flat", "pack_numbers", "serve_numbers", "set_of"]

#: torch warns where there are more workers than processors; these have next to nothing to do.
TOO_MANY_WORKERS = "ignore:This DataLoader will create:UserWarning"
#: A packed int: its own length and its value.
_BYTES = 12


def pack_numbers(folder: Path, count: int, per_chunk: int, *, first: int = 0) -> str:
    """Pack the numbers from ``first`` on, so many a chunk, and return the dataset's URL."""
    forebay.pack(range(first, first + count), folder, chunk_bytes=_BYTES * per_chunk)
    return str(folder)


@contextmanager
def serve_numbers(folder: Path, count: int, per_chunk: int) -> Iterator[tuple[FaultServer, list[str]]]:
    """Serve such a dataset over HTTP; gives the server and the names of the chunks in order."""
    pack_numbers(folder, count, per_chunk)
    with FaultServer() as server:
        for file in sorted(folder.iterdir()):
            server.put(f"data/{file.name}", file.read_bytes())
        index = json.loads((folder / "index.json").read_text())
        yield server, [chunk["filename"] for chunk in index["chunks"]]


def as_list(items: list[Any]) -> list[Any]:
    """A collate function that leaves a batch as it is."""
    return items


def set_of(step: Sequence[list[Any]]) -> list[Any]:
    """What all ranks got at a step, without its order and without repeats."""
    return sorted({item for batch in step for item in batch})


def flat(lists: Iterable[list[Any]]) -> list[Any]:
    """The items of some lists in one."""
    return list(chain.from_iterable(lists))


class Job:
    """All ranks of one job, in this process: a loader each, read in step with one another.

    Args:
        make: Makes a rank's dataset from ``rank`` and ``world_size``.
        ranks: Number of ranks.
        workers: Workers of each; they live on from epoch to epoch, unless ``persistent`` is False.
        whole: Global batch size; a multiple of the ranks.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        *,
        ranks: int = 1,
        workers: int = 0,
        whole: int = 8,
        persistent: bool = True,
        drop_last: bool | None = None,
    ) -> None:
        self.datasets = [make(rank=rank, world_size=ranks) for rank in range(ranks)]
        self.loaders = [
            StreamingDataLoader(
                dataset,
                batch_size=whole // ranks,
                num_workers=workers,
                collate_fn=as_list,
                persistent_workers=persistent and workers > 0,
                drop_last=drop_last,
            )
            for dataset in self.datasets
        ]

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.loaders.clear()
        for dataset in self.datasets:
            dataset.close()

    def steps(self) -> Iterator[list[list[Any]]]:
        """The rest of the epoch: at each step the batch of each rank. Ranks must have equally many."""
        return (list(step) for step in zip(*self.loaders, strict=True))

    def epoch(self) -> list[list[Any]]:
        """What all ranks together got at each step of the rest of the epoch."""
        return [set_of(step) for step in self.steps()]

    def state(self) -> dict[str, Any]:
        """The state, which has to be the same on all ranks, by way of JSON."""
        states = [loader.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states), states
        loaded: dict[str, Any] = json.loads(json.dumps(states[0]))
        return loaded

    def load(self, state: dict[str, Any]) -> Job:
        """Load a state on every rank."""
        for loader in self.loaders:
            loader.load_state_dict(state)
        return self

    def states(self) -> list[dict[str, Any]]:
        """Read an epoch, and return the state before each step and after the last."""
        states = [self.state()]
        for _ in self.steps():
            states.append(self.state())
        return states
