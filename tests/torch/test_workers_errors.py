"""What goes wrong in a worker is an error in the loop, and never a shorter epoch or a wait for ever (issue 5)."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.loaders import NamelessDownloader, die_nameless, raise_nameless, stop_at_twelve
from servers.streams import as_list, pack_numbers
from torch.utils.data import DataLoader

import forebay
from forebay.exceptions import StorageError, WorkerCrashedError
from forebay.torch import StreamingDataLoader, StreamingDataset

COUNT, PER_CHUNK, BATCH = 48, 8, 4


@pytest.fixture
def url(tmp_path: Path) -> str:
    return pack_numbers(tmp_path / "data", COUNT, PER_CHUNK)


@pytest.fixture
def nameless(url: str) -> Iterator[str]:
    """The URL of the same dataset, one of whose chunks fails with an error whose class has no name."""
    forebay.register_downloader("nameless", NamelessDownloader)
    yield f"nameless://{url}"
    forebay.unregister_downloader("nameless")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("loader_class", [StreamingDataLoader, DataLoader])
def test_a_stores_error_that_cannot_be_sent_is_a_storage_error_and_no_short_epoch(
    nameless: str, tmp_path: Path, workers: int, loader_class: type[DataLoader[Any]]
) -> None:
    """Risk A1, A2: torch loses an error whose class it cannot pickle, and takes what is left for the end."""
    with StreamingDataset(nameless, cache_dir=tmp_path / "cache", batch_size=BATCH) as dataset:
        loader = loader_class(
            dataset,
            batch_size=BATCH,
            num_workers=workers,
            collate_fn=as_list,
            timeout=60,
            multiprocessing_context="forkserver",
        )
        with pytest.raises(StorageError, match=r"NoSuchKey: the lake is frozen") as caught:
            list(loader)
        assert "chunk-0-2.bin" in str(caught.value)
        assert dataset.epoch == 0
        assert dataset[0] == 0, "the dataset stays usable"
        del loader, caught
        gc.collect()  # the error holds torch's iterator


@pytest.mark.parametrize("function", ["collate_fn", "worker_init_fn"])
@pytest.mark.parametrize("persistent", [False, True])
def test_an_error_of_the_users_functions_that_cannot_be_sent_comes_as_text(
    url: str, function: str, persistent: bool
) -> None:
    """Risk A2: the loop waited for ever."""
    given: dict[str, Any] = {"collate_fn": as_list}
    given[function] = {"collate_fn": raise_nameless, "worker_init_fn": die_nameless}[function]
    with StreamingDataset(url) as dataset:
        loader = StreamingDataLoader(
            dataset, batch_size=BATCH, num_workers=2, timeout=60, persistent_workers=persistent, **given
        )
        with pytest.raises(RuntimeError, match=r"NoSuchKey: (no batch of 4|worker \d cannot begin)"):
            list(loader)
        assert dataset.epoch == 0
        del loader
        gc.collect()  # persistent workers live as long as their loader


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stop_iteration_of_the_collate_function_does_not_end_the_epoch(url: str, workers: int) -> None:
    """Risk H2: to torch it is the end; what came after would be left out, and the state would say that it was read."""
    with StreamingDataset(url) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=stop_at_twelve)
        batches = iter(loader)
        assert [next(batches) for _ in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        with pytest.raises(RuntimeError, match="collate_fn raised StopIteration"):
            next(batches)
        assert (dataset.epoch, loader.state_dict()["consumed"]) == (0, 12)


def test_an_epoch_that_ends_too_early_is_an_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever made torch's iterator stop before the last batch: the position stays behind what came."""
    ending: Callable[..., Any] = DataLoader.__iter__

    def cut(loader: DataLoader[Any]) -> Any:
        return iter([next(made) for made in [ending(loader)] for _ in range(2)])

    monkeypatch.setattr(DataLoader, "__iter__", cut)
    with StreamingDataset(url) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=as_list)
        with pytest.raises(WorkerCrashedError, match="after 2 of 12 batches"):
            list(loader)
        assert (dataset.epoch, loader.state_dict()["consumed"]) == (0, 8)
