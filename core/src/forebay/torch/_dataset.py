"""`StreamingDataset`: one dataset as a stream for PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, SupportsIndex

from forebay._dataset import ChunkedDataset
from forebay._open import open_dataset
from forebay.torch._mixture import Mixture, Single
from forebay.torch._overrides import refuse_own_getitem
from forebay.torch._stream import Stream

__all__ = ["StreamingDataset"]


class StreamingDataset(Stream):
    """The items of a dataset in any store, divided among ranks and workers, each once an epoch.

    The order is a pure function of seed, epoch and canonical partitions: where the global batch (``batch_size`` times
    ranks) is the same, each global step holds the same samples, whatever the ranks and workers.

    Transform items in the loader's ``collate_fn``: an overridden ``__getitem__`` would not be called by an iteration,
    and is refused.

    Args:
        url: Where the dataset's index lies; a bare path is a local directory.
        cache_dir: The cache directory; see `forebay.open_dataset`, as for the other arguments that both have.
        max_cache_bytes: The cache's budget, an int of bytes or text like ``"200GiB"``.
        format: The layout's name; None finds it by the index file.
        shuffle: Whether chunks, and samples within a window of chunks, are shuffled anew each epoch.
        seed: Seed of the shuffle; the same on all ranks.
        shuffle_window: Chunks whose samples are mixed at one time.
        prefetch: Chunks to fetch ahead of each reader; None decides by the scheme.
        verify: How chunks that an earlier run left in the cache are checked, ``"digest"`` or ``"size"``.
        options: Options of the backend.
        format_options: Options of the layout.
        allow_pickle: Whether pickled items may be read, which runs code from the dataset.
        on_error: ``"raise"``, or ``"skip"`` to leave out a chunk that cannot be had, and count it.
        batch_size: Samples a rank and step. `StreamingDataLoader` says so itself; with a plain ``DataLoader`` give the
            same here. Without it each sample comes once an epoch, and what a step holds is not promised.
        drop_last: Whether the incomplete last global batch is left out; else it is dealt so that ranks differ by at
            most one sample, and ranks that would get none repeat one (``stats().padded``).
        rank: This rank, with ``world_size``; None asks ``torch.distributed``, then ``RANK`` and ``WORLD_SIZE``.
        world_size: Number of ranks; 1 with ``rank=0`` switches the division off.
        partitions: Canonical partitions, the parts that machines read by themselves; None is the number of machines
            at the first run, then what a loaded state says. Give a number that all machine counts to come divide.

    Raises:
        ConfigError: Something above cannot be used, or a subclass overrides ``__getitem__``; nothing was read.
        ObjectNotFoundError: There is no index at ``url``.
        DatasetError: The index cannot be read.
        BudgetTooSmallError: The budget cannot hold what one reader needs at one time.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        max_cache_bytes: int | str | None = None,
        format: str | None = None,
        shuffle: bool = False,
        seed: int = 0,
        shuffle_window: int = 8,
        prefetch: bool | int | None = None,
        verify: str = "digest",
        options: Mapping[str, object] | None = None,
        format_options: Mapping[str, object] | None = None,
        allow_pickle: bool = False,
        on_error: str = "raise",
        batch_size: int | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        partitions: int | None = None,
    ) -> None:
        refuse_own_getitem(type(self), StreamingDataset)
        super().__init__(
            batch_size=batch_size, drop_last=drop_last, rank=rank, world_size=world_size, partitions=partitions
        )
        self._members = (
            open_dataset(
                url,
                cache_dir=cache_dir,
                max_cache_bytes=max_cache_bytes,
                format=format,
                shuffle=shuffle,
                seed=seed,
                shuffle_window=shuffle_window,
                prefetch=prefetch,
                verify=verify,
                options=options,
                format_options=format_options,
                allow_pickle=allow_pickle,
                on_error=on_error,
            ),
        )

    @property
    def url(self) -> str:
        """The dataset's URL without secrets."""
        return self._members[0].url

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        """Return an item, or a list of them, in storage order and whatever the rank; see `ChunkedDataset`."""
        return self._members[0][index]

    def __repr__(self) -> str:
        return f"<StreamingDataset {self.url}: {len(self._members[0])} items>"

    @property
    def chunked(self) -> ChunkedDataset:
        """The dataset itself, as `forebay.open_dataset` gives it: random access, and no ranks."""
        return self._members[0]

    def _mixture(self, epoch: int, partitions: int) -> Mixture:
        return Single([self._members[0].epoch_plan(epoch, partitions)])

    def _description(self) -> dict[str, Any]:
        return {"kind": "StreamingDataset", "datasets": [self._members[0].describe_order()]}
