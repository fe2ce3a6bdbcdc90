"""The state itself: plain, small, and refused where it belongs to another order; the field at fault is named."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from servers.streams import as_list, flat, pack_numbers

import forebay
from forebay.exceptions import ConfigError
from forebay.torch import (
    CombinedStreamingDataset,
    ParallelStreamingDataset,
    StreamingDataLoader,
    StreamingDataset,
)

ORDER: dict[str, Any] = {"shuffle": True, "seed": 4, "shuffle_window": 3}
BATCH = 8
PLAIN = (int, str, bool, float, type(None))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return pack_numbers(tmp_path_factory.mktemp("state") / "data", 44, 7)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    return pack_numbers(tmp_path_factory.mktemp("state") / "other", 44, 11)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("state") / "tokens"
    forebay.pack((np.arange(64, dtype=np.int32) for _ in range(12)), folder, tokens=True, chunk_bytes=1024)
    return str(folder)


def all_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and all_plain(inner) for key, inner in value.items())
    if isinstance(value, list):
        return all(all_plain(inner) for inner in value)
    return type(value) in PLAIN


MAKERS: dict[str, Callable[[str, str], Any]] = {
    "single": lambda one, _: StreamingDataset(one, **ORDER),
    "combined": lambda one, other: CombinedStreamingDataset(
        [StreamingDataset(one, **ORDER), StreamingDataset(other, **ORDER)], weights=[0.5, 2], cycle=True
    ),
    "parallel": lambda one, other: ParallelStreamingDataset([StreamingDataset(one, **ORDER), StreamingDataset(other)]),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_state_is_plain_goes_through_json_and_weights_only(url: str, other: str, kind: str) -> None:
    """Risk H15: it loads from a checkpoint that may hold nothing but tensors and plain values."""
    dataset = MAKERS[kind](url, other)
    loader = StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=as_list)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = list(iterator)
    assert all_plain(state), state
    checkpoint = io.BytesIO()
    torch.save({"loader": state, "weights": torch.ones(2)}, checkpoint)
    checkpoint.seek(0)
    for loaded in (
        json.loads(json.dumps(state)),
        torch.load(checkpoint, weights_only=True)["loader"],
    ):
        assert loaded == state
        loader.load_state_dict(loaded)
        assert list(loader) == rest
    dataset.close()


def test_an_item_by_item_state_within_a_step_is_plain_too(url: str) -> None:
    """Risk H15: the fields that say what it depends on."""
    with StreamingDataset(url, rank=1, world_size=2, **ORDER) as dataset:
        next(iter(dataset))
        state = dataset.state_dict()
    assert all_plain(state)
    assert (state["inside"], state["shape"][1]) == (1, 2)


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("seed", {"seed": 5}),
    ("shuffle", {"shuffle": False}),
    ("shuffle_window", {"shuffle_window": 4}),
    ("partitions", {"partitions": 2}),
]


@pytest.mark.parametrize(("field", "change"), CHANGES, ids=[field for field, _ in CHANGES])
@pytest.mark.parametrize("kind", ["dataset", "loader"])
def test_a_changed_order_is_refused_and_the_field_named(
    url: str, field: str, change: dict[str, Any], kind: str
) -> None:
    """Risk H14: before any worker starts, and without touching the position that was there."""
    with StreamingDataset(url, partitions=1, **ORDER) as dataset:
        state = {**dataset.state_dict(), "consumed": 16}
    with StreamingDataset(url, **{"partitions": 1, **ORDER, **change}) as dataset:
        target: Any = StreamingDataLoader(dataset, batch_size=4, num_workers=2) if kind == "loader" else dataset
        before = target.state_dict()
        with pytest.raises(ConfigError, match=rf"saved with {field}=.* this dataset has {field}=") as caught:
            target.load_state_dict(state)
        assert caught.value.option == field
        assert target.state_dict() == before


def test_another_dataset_is_refused(url: str, other: str) -> None:
    """Risk H14: as many samples of other chunks are another order."""
    with StreamingDataset(url, **ORDER) as dataset:
        state = dataset.state_dict()
    with StreamingDataset(other, **ORDER) as dataset:
        with pytest.raises(ConfigError) as caught:
            dataset.load_state_dict(state)
        assert caught.value.option == "dataset"


def test_a_dataset_that_was_moved_is_the_same(url: str, tmp_path: Path) -> None:
    """Risk H14: what counts is what it holds, not where it lies."""
    for file in Path(url).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with StreamingDataset(url, **ORDER) as dataset:
        state = {**dataset.state_dict(), "consumed": 40}
    with StreamingDataset(tmp_path, **ORDER) as dataset:
        dataset.load_state_dict(state)
        assert len(list(dataset)) == 4


def test_another_block_size_of_tokens_is_refused(tokens: str) -> None:
    """Risk H14."""
    with StreamingDataset(tokens, format_options={"block_size": 16}) as dataset:
        state = dataset.state_dict()
        dataset.load_state_dict(state)
    with StreamingDataset(tokens, format_options={"block_size": 32}) as dataset:
        with pytest.raises(ConfigError) as caught:
            dataset.load_state_dict(state)
        assert caught.value.option == "block_size"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2),
        ("version", None),
        ("epoch", -1),
        ("epoch", "3"),
        ("epoch", True),
        ("consumed", 45),
        ("consumed", 1.5),
        ("consumed", None),
        ("inside", -2),
        ("partitions", None),
        ("partitions", 0),
        ("shape", "8x2"),
        ("shape", [8, None]),
        ("kind", "CombinedStreamingDataset"),
        ("datasets", []),
        ("datasets", None),
    ],
)
def test_a_spoilt_state_is_refused_and_the_field_named(url: str, field: str, value: object) -> None:
    """Risk H14: never a wrong order for a wrong value."""
    with StreamingDataset(url, **ORDER) as dataset:
        state = dataset.state_dict()
        with pytest.raises(ConfigError) as caught:
            dataset.load_state_dict({**state, field: value})
        assert caught.value.option == field
        without = {name: kept for name, kept in state.items() if name != field}
        if field != "shape":
            with pytest.raises(ConfigError):
                dataset.load_state_dict(without)
        assert dataset.state_dict() == state


@pytest.mark.parametrize("state", [None, [], "state", 3])
def test_what_is_no_state_at_all_is_refused(url: str, state: Any) -> None:
    with StreamingDataset(url, **ORDER) as dataset, pytest.raises(ConfigError, match="a state is a mapping"):
        dataset.load_state_dict(state)


def test_mixtures_refuse_what_changes_their_order(url: str, other: str) -> None:
    """Risk H4, H14: each field of the mixture, and each of its members."""

    def combined(seed: int = 0, weights: Any = (1, 2), cycle: bool = False, first: Any = ORDER, count: int = 2) -> Any:
        members = [StreamingDataset(url, **first), StreamingDataset(other, **ORDER)][:count]
        return CombinedStreamingDataset(members, weights=weights[:count], seed=seed, cycle=cycle)

    with combined() as mixture:
        state = mixture.state_dict()
    changes: list[tuple[str, dict[str, Any]]] = [
        ("mixture_seed", {"seed": 1}),
        ("weights", {"weights": (1, 3)}),
        ("cycle", {"cycle": True}),
        ("seed", {"first": {**ORDER, "seed": 9}}),
        ("datasets", {"count": 1}),
    ]
    for field, change in changes:
        with combined(**change) as mixture:
            with pytest.raises(ConfigError) as caught:
                mixture.load_state_dict(state)
            assert caught.value.option == field
    with ParallelStreamingDataset([StreamingDataset(url), StreamingDataset(other)]) as mixture:
        with pytest.raises(ConfigError) as caught:
            mixture.load_state_dict(state)
        assert caught.value.option in ("kind", "datasets", "seed")


def test_the_state_of_a_hundred_thousand_chunks_is_small(url: str, tmp_path: Path) -> None:
    """Risk H17: no list of chunks or samples is in it."""
    index = json.loads((Path(url) / "index.json").read_text())
    row = index["chunks"][0]
    index["chunks"] = [{**row, "filename": f"chunk-0-{number}.bin"} for number in range(100_000)]
    (tmp_path / "index.json").write_text(json.dumps(index))
    with StreamingDataset(tmp_path, partitions=8, rank=3, world_size=16, batch_size=4, **ORDER) as dataset:
        state = {**dataset.state_dict(), "consumed": 64 * 4321, "epoch": 7}
        dataset.load_state_dict(state)
        loader = StreamingDataLoader(dataset, batch_size=4)
        assert len(loader) == 700_000 // 64 + 1
        assert len(json.dumps(loader.state_dict())) < 2_000  # 10 kB are allowed


def test_an_empty_or_finished_rest_is_the_next_epoch(url: str) -> None:
    """Risk H7: loading the end gives epoch one, and says so."""
    with StreamingDataset(url, **ORDER) as dataset:
        first = list(dataset)
        state = dataset.state_dict()
        second = list(dataset)
        dataset.load_state_dict(state)
        assert dataset.epoch == 1
        assert list(dataset) == second != first
        assert sorted(flat([second])) == list(range(44))
