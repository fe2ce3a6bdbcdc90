"""Several datasets as one stream: a weighted mixture of their samples, or one sample of each at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from forebay.exceptions import ConfigError
from forebay.torch._dataset import StreamingDataset
from forebay.torch._mixture import Choice, Mixture, Zip
from forebay.torch._overrides import refuse_own_iter
from forebay.torch._stream import Stream

__all__ = ["CombinedStreamingDataset", "ParallelStreamingDataset"]


class _Several(Stream):
    """Common part: the datasets' own batch size, ranks and positions do not count, their order does."""

    def __init__(
        self,
        datasets: Sequence[StreamingDataset],
        *,
        cycle: bool,
        batch_size: int | None,
        drop_last: bool,
        rank: int | None,
        world_size: int | None,
        partitions: int | None,
    ) -> None:
        super().__init__(
            batch_size=batch_size, drop_last=drop_last, rank=rank, world_size=world_size, partitions=partitions
        )
        if not datasets:
            raise ConfigError("datasets is empty: give at least one StreamingDataset", option="datasets")
        for dataset in datasets:
            if not isinstance(dataset, StreamingDataset):
                raise ConfigError(
                    f"datasets must be StreamingDataset objects, not {type(dataset).__name__}", option="datasets"
                )
            refuse_own_iter(dataset)
        if not isinstance(cycle, bool):
            raise ConfigError(f"cycle must be True or False, not {cycle!r}", option="cycle")
        self._cycle = cycle
        self._datasets = tuple(datasets)
        self._members = tuple(dataset.chunked for dataset in datasets)

    @property
    def datasets(self) -> tuple[StreamingDataset, ...]:
        """The datasets, in the order given."""
        return self._datasets

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(dataset.url for dataset in self._datasets)}>"

    def _lengths(self) -> list[int]:
        return [len(member) for member in self._members]

    def _check_partitions(self, counts: Sequence[int], partitions: int) -> None:
        for member, count in zip(self._members, counts, strict=True):
            if count > len(member) and len(member) < partitions:
                raise ConfigError(
                    f"{member.url} has {len(member)} items, too few to be read again in each of {partitions}"
                    " partitions; give fewer partitions",
                    option="partitions",
                )

    def _describe_datasets(self) -> list[dict[str, Any]]:
        return [member.describe_order() for member in self._members]


class CombinedStreamingDataset(_Several):
    """Samples of several datasets, mixed at random in exact proportions.

    Each epoch holds a fixed number of samples of each dataset, in a random order that is a pure function of seed and
    epoch. Within its share, a dataset's samples come in its own order, shuffled or not, beginning anew each epoch.

    Args:
        datasets: What is mixed; they keep their own ``shuffle``, ``seed`` and ``shuffle_window``.
        weights: How many samples of each there are, in proportion; None reads each dataset once, whole.
        seed: Seed of the mixture.
        cycle: Where the weights would exhaust one dataset before the others: False ends the epoch there, True reads it
            again, in a new order, until each has been read to its end.
        batch_size: As in `StreamingDataset`, as are ``drop_last``, ``rank``, ``world_size`` and ``partitions``; what
            the datasets were told of these does not count.

    Raises:
        ConfigError: An argument cannot be used.
    """

    def __init__(
        self,
        datasets: Sequence[StreamingDataset],
        *,
        weights: Sequence[float] | None = None,
        seed: int = 0,
        cycle: bool = False,
        batch_size: int | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        partitions: int | None = None,
    ) -> None:
        super().__init__(
            datasets,
            cycle=cycle,
            batch_size=batch_size,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
            partitions=partitions,
        )
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ConfigError(f"seed must be an int, not {seed!r}", option="seed")
        self._seed = seed
        self._weights = None if weights is None else _checked_weights(weights, len(self._members))
        self._counts = (
            self._lengths() if self._weights is None else _in_proportion(self._lengths(), self._weights, cycle)
        )

    def _mixture(self, epoch: int, partitions: int) -> Mixture:
        self._check_partitions(self._counts, partitions)
        plans = [member.epoch_plan(epoch, partitions) for member in self._members]
        return Choice(plans, self._counts, seed=self._seed)

    def _description(self) -> dict[str, Any]:
        return {
            "kind": "CombinedStreamingDataset",
            "datasets": self._describe_datasets(),
            "weights": self._weights,
            "cycle": self._cycle,
            "mixture_seed": self._seed,
        }


class ParallelStreamingDataset(_Several):
    """One sample of each of several datasets at a time, as a tuple.

    Args:
        datasets: What is read side by side; they keep their own ``shuffle``, ``seed`` and ``shuffle_window``.
        cycle: False ends the epoch with the shortest dataset; True ends it with the longest, and the others are read
            again, each time in a new order where they are shuffled.
        batch_size: As in `StreamingDataset`, as are ``drop_last``, ``rank``, ``world_size`` and ``partitions``; what
            the datasets were told of these does not count.

    Raises:
        ConfigError: An argument cannot be used.
    """

    def __init__(
        self,
        datasets: Sequence[StreamingDataset],
        *,
        cycle: bool = False,
        batch_size: int | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        partitions: int | None = None,
    ) -> None:
        super().__init__(
            datasets,
            cycle=cycle,
            batch_size=batch_size,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
            partitions=partitions,
        )
        lengths = self._lengths()
        if cycle and not all(lengths) and any(lengths):
            empty = self._members[lengths.index(0)].url
            raise ConfigError(f"{empty} is empty, and cannot be read again and again", option="cycle")
        self._count = max(lengths) if cycle else min(lengths)

    def _mixture(self, epoch: int, partitions: int) -> Mixture:
        self._check_partitions([self._count] * len(self._members), partitions)
        return Zip([member.epoch_plan(epoch, partitions) for member in self._members], self._count)

    def _description(self) -> dict[str, Any]:
        return {"kind": "ParallelStreamingDataset", "datasets": self._describe_datasets(), "cycle": self._cycle}


def _checked_weights(weights: Sequence[float], datasets: int) -> list[float]:
    if len(weights) != datasets:
        raise ConfigError(f"weights has {len(weights)} numbers for {datasets} datasets", option="weights")
    try:
        values = [float(weight) for weight in weights]
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"weights must be numbers, not {list(weights)!r}", option="weights") from exc
    if not all(math.isfinite(value) and value >= 0 for value in values) or not any(values):
        raise ConfigError(f"weights must be at least 0, and one of them more, not {list(weights)!r}", option="weights")
    return values


def _in_proportion(lengths: Sequence[int], weights: Sequence[float], cycle: bool) -> list[int]:
    """Samples of each dataset in an epoch that ends as the first of them ends, or the last where they ``cycle``."""
    used = [(length, weight) for length, weight in zip(lengths, weights, strict=True) if weight]
    ends = [length / weight for length, weight in used]
    if cycle:
        if not all(length for length, _ in used) and any(length for length, _ in used):
            raise ConfigError("an empty dataset with a weight cannot be read again and again", option="cycle")
        return [math.ceil(max(ends) * weight - 1e-9) for weight in weights]
    # An end that rounding moved up must not ask for a sample more than there is.
    return [min(math.floor(min(ends) * weight + 1e-9), length) for length, weight in zip(lengths, weights, strict=True)]
