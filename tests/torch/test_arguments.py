"""The loader takes every argument of torch's, or says why not and what to do instead; none is ignored."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.streams import as_list, pack_numbers
from torch.utils.data import DataLoader

import forebay
from forebay.exceptions import ConfigError
from forebay.torch import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return pack_numbers(tmp_path_factory.mktemp("arguments") / "data", 20, 6)


def test_torchs_own_defaults_are_taken(url: str) -> None:
    """Somebody's program passes them all on, each as torch has it."""
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(DataLoader).parameters.items()
        if name not in ("dataset", "self")
    }
    loader = StreamingDataLoader(StreamingDataset(url), **{**defaults, "collate_fn": as_list})
    assert [len(batch) for batch in loader] == [1] * 20


def test_the_dataset_takes_every_argument_of_open_dataset() -> None:
    opening = inspect.signature(forebay.open_dataset).parameters
    streaming = inspect.signature(StreamingDataset).parameters
    for name, parameter in opening.items():
        assert (streaming[name].default, streaming[name].kind) == (parameter.default, parameter.kind)
    assert [name for name in streaming if name not in opening] == [
        *("batch_size", "drop_last", "rank", "world_size", "partitions"),
    ]


@pytest.mark.parametrize(
    ("arguments", "option", "remedy"),
    [
        ({"shuffle": True}, "shuffle", "give shuffle= to the dataset"),
        ({"sampler": [1]}, "sampler", "the order is the dataset's"),
        ({"batch_sampler": [[1]]}, "batch_sampler", "batches are dealt by the dataset"),
        ({"in_order": False}, "in_order", "no exact position"),
        ({"pin_memory_device": "cuda"}, "pin_memory_device", "current accelerator"),
        ({"batchsize": 3}, "batchsize", "no argument 'batchsize'"),
        ({"batch_size": 0}, "batch_size", "at least 1"),
        ({"batch_size": True}, "batch_size", "must be an int"),
        ({"num_workers": -1}, "num_workers", "at least 0"),
        ({"num_workers": 1.5}, "num_workers", "must be an int"),
        ({"num_workers": "2"}, "num_workers", "must be an int"),
        ({"timeout": 6}, "timeout", "needs workers"),
        ({"num_workers": 1, "timeout": -1}, "timeout", "at least 0"),
        ({"num_workers": 1, "timeout": "6"}, "timeout", "number of seconds"),
        ({"num_workers": 1, "timeout": float("nan")}, "timeout", "at least 0"),
        ({"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor", "at least 1"),
        ({"num_workers": 1, "multiprocessing_context": "threads"}, "multiprocessing_context", "none of fork"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(url: str, arguments: dict[str, Any], option: str, remedy: str) -> None:
    """Risk A8: a look-ahead of zero batches would never give one."""
    with pytest.raises(ConfigError, match=remedy) as caught:
        StreamingDataLoader(StreamingDataset(url), **arguments)
    assert caught.value.option == option


def test_what_is_no_stream_is_refused(tmp_path: Path, url: str) -> None:
    with forebay.open_dataset(url) as plain, pytest.raises(ConfigError, match="torch's own DataLoader"):
        StreamingDataLoader(plain)  # type: ignore[arg-type]


class Indexed(StreamingDataset):
    """How litdata's users transform."""

    def __getitem__(self, index: Any) -> Any:
        return -super().__getitem__(index)


class Iterated(StreamingDataset):
    """How users of an `IterableDataset` transform."""

    def __iter__(self) -> Iterator[Any]:
        return (-item for item in super().__iter__())


class Renamed(StreamingDataset):
    """A subclass that changes nothing about the items."""

    def __repr__(self) -> str:
        return "mine"


def test_a_transform_that_an_iteration_would_leave_out_is_refused(url: str) -> None:
    """A newcomer's risk: the model is trained on items that nobody transformed, and nothing says so."""
    with pytest.raises(ConfigError, match=r"Indexed overrides __getitem__.*collate_fn"):
        Indexed(url)
    with pytest.raises(ConfigError, match=r"Iterated overrides __iter__.*collate_fn"):
        StreamingDataLoader(Iterated(url), batch_size=2)
    with pytest.raises(ConfigError, match=r"Iterated overrides __iter__.*collate_fn"):
        CombinedStreamingDataset([Iterated(url)])


def test_a_subclass_that_leaves_the_items_alone_is_read(url: str) -> None:
    """And torch's own loader calls the ``__iter__`` that it is given, item by item."""
    assert len(list(StreamingDataLoader(Renamed(url), batch_size=5, collate_fn=as_list))) == 4
    assert [int(item) for item in DataLoader(Iterated(url), batch_size=None)] == [-number for number in range(20)]
