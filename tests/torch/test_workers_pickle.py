"""Datasets travel after use, inside of anything; and one dataset serves several loaders, threads and the parent."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import torch
from servers.datasets import expected_items, put_dataset
from servers.loaders import indices
from torch.utils.data import DataLoader, Dataset

from forebay.testing import FaultServer
from forebay.torch import CombinedStreamingDataset, ParallelStreamingDataset, StreamingDataLoader, StreamingDataset

pytestmark = pytest.mark.slow


@pytest.fixture
def dataset(server: FaultServer, tmp_path: Path) -> Iterator[StreamingDataset]:
    put_dataset(server, tmp_path)
    with StreamingDataset(server.url(), cache_dir=tmp_path / "cache", shuffle=True, seed=3) as opened:
        yield opened


def numbers(item: Any) -> Any:
    return [part["index"] for part in item] if isinstance(item, tuple) else item["index"]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda dataset: dataset,
        lambda dataset: CombinedStreamingDataset([dataset, dataset], weights=[2, 1]),
        lambda dataset: ParallelStreamingDataset([dataset, dataset]),
    ],
    ids=["streaming", "combined", "parallel"],
)
def test_pickles_after_use(
    server: FaultServer, dataset: StreamingDataset, wrap: Callable[[StreamingDataset], Any]
) -> None:
    """J9: with its position and its epoch, in the middle of an iteration, and without another request for the index."""
    stream = wrap(dataset)
    first = list(map(numbers, stream))
    going = iter(stream)
    begun = [numbers(next(going)) for _ in range(5)]
    assert begun != first[:5], "the second epoch has an order of its own"
    state = stream.state_dict()
    again = pickle.loads(pickle.dumps(stream))
    assert again.epoch == stream.epoch == 1
    assert again.state_dict()["epoch"] == 1
    again.load_state_dict(state)
    assert list(map(numbers, again)) == list(map(numbers, going)), "the rest of the epoch"
    again.close()
    assert len(server.requests_for("index.json")) == 1


class Trainset(Dataset[int]):
    """A map-style dataset of somebody's that holds ours."""

    def __init__(self, inner: StreamingDataset) -> None:
        self.parts = {"inner": inner, "list": [inner]}

    def __len__(self) -> int:
        return len(self.parts["inner"])  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> int:
        inner: Any = self.parts["inner"]
        assert self.parts["list"] == [inner], "one object stays one"
        return int(inner[index]["index"])


@pytest.mark.parametrize("context", ["fork", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_travels_inside_of_another_object(dataset: StreamingDataset, context: str) -> None:
    """J9: with torch's own loader."""
    assert dataset[7]["index"] == 7
    loader = DataLoader(Trainset(dataset), batch_size=8, num_workers=2, multiprocessing_context=context)
    assert torch.cat(list(loader)).tolist() == list(range(40))


def test_pickle_holds_what_the_options_hold(server: FaultServer, tmp_path: Path) -> None:
    """It is documented: a pickle is as secret as the options; the text of the dataset is not."""
    put_dataset(server, tmp_path)
    options = {"headers": {"x-key": "s3cr3t"}}
    with StreamingDataset(server.url(), cache_dir=tmp_path / "cache", options=options) as dataset:
        assert b"s3cr3t" in pickle.dumps(dataset)
        assert "s3cr3t" not in repr(dataset) + str(dataset.state_dict())
        loader = StreamingDataLoader(dataset, batch_size=8, num_workers=1, collate_fn=indices)
        assert sum(map(len, loader)) == 40
    assert all(request.headers.get("x-key") == "s3cr3t" for request in server.requests)
    guide = Path(__file__).parents[2] / "docs" / "pytorch.md"
    assert "The pickle holds `options=`, secrets included" in guide.read_text()


def test_copies_are_streams_of_their_own(dataset: StreamingDataset) -> None:
    other = copy.deepcopy(dataset)
    order = list(map(numbers, dataset))
    assert (dataset.epoch, other.epoch) == (1, 0)
    assert list(map(numbers, other)) == order
    other.close()


def test_parent_reads_while_workers_do(dataset: StreamingDataset) -> None:
    """The parent's own iteration, and random access, in the middle of a loader's."""
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=2, collate_fn=indices)
    plain = copy.deepcopy(dataset)
    expected = list(map(numbers, plain))
    plain.close()
    batches = iter(loader)
    got = [*next(batches), *next(batches)]
    assert dataset[11] == expected_items()[11]
    assert list(map(numbers, dataset)) == expected
    got += [index for batch in batches for index in batch]
    assert got == expected


def test_two_loaders_on_one_dataset_at_once(dataset: StreamingDataset) -> None:
    plain = copy.deepcopy(dataset)
    expected = list(map(numbers, plain))
    plain.close()
    loaders = [
        StreamingDataLoader(dataset, batch_size=batch, num_workers=workers, collate_fn=indices)
        for batch, workers in ((4, 2), (5, 1), (8, 0))
    ]
    going = [iter(loader) for loader in loaders]
    got: list[list[int]] = [[], [], []]
    while going:
        for batches in list(going):
            batch = next(batches, None)
            if batch is None:
                going.remove(batches)
            else:
                got[len(batch) and [4, 5, 8].index(len(batch))] += batch
    assert got == [expected, expected, expected]


def test_threads_make_iterators_at_the_same_time(dataset: StreamingDataset) -> None:
    """J7: one that iterates the dataset while another starts workers gets items, not what workers get."""
    dataset.set_epoch(0)
    expected = list(map(numbers, dataset))
    barrier = threading.Barrier(6)
    found: list[Any] = [None] * 6

    def read(number: int) -> None:
        try:
            barrier.wait(60)
            results = []
            for _ in range(2):
                if number % 2:
                    loader = StreamingDataLoader(dataset, batch_size=8, num_workers=number // 2, collate_fn=indices)
                    results.append([index for batch in loader for index in batch])
                else:
                    results.append([numbers(item) for item in dataset])
            found[number] = results
        except BaseException as error:  # noqa: BLE001 - the main thread shows it
            found[number] = error

    threads = [threading.Thread(target=read, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == [[expected] * 2] * 6


def left_segments() -> list[str]:
    """Segments of shared memory whose names tell of this process or of one that is gone; others test beside us."""
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    makers = [(name, int(found[1])) for name in names if (found := re.match(r"torch_(\d+)_", name))]
    return [name for name, pid in makers if pid == os.getpid() or not psutil.pid_exists(pid)]


def counts(port: int) -> dict[str, int]:
    """What this process has of each, but for the connections of the test's server, on ``port``."""
    gc.collect()
    process = psutil.Process()
    served = [one for one in process.net_connections() if one.laddr and one.laddr.port == port]
    return {
        "descriptors": process.num_fds() - len(served),
        "threads": process.num_threads(),
        "segments": len(left_segments()),
        "children": len([child for child in process.children(recursive=True) if child.status() != "zombie"]),
    }


def test_many_loaders_leave_nothing(server: FaultServer, tmp_path: Path) -> None:
    """K1, K4, K5: descriptors, threads, processes, segments of shared memory; read to the end, left, and not begun."""
    put_dataset(server, tmp_path)

    def use() -> None:
        with StreamingDataset(server.url(), cache_dir=tmp_path / "cache") as dataset:
            loader = StreamingDataLoader(dataset, batch_size=8, num_workers=2)
            assert len(loader) == 5
            for batch in loader:
                assert len(batch["index"]) == 8
            for _ in loader:
                break
            iter(loader)

    port = urlsplit(server.url()).port or 0
    use()
    before = counts(port)
    for _ in range(6):
        use()
    after = counts(port)
    for name, count in before.items():
        assert after[name] <= count + 4, (name, before, after)  # one a loop would be six


def test_memory_stays_flat_over_fifty_epochs(server: FaultServer, tmp_path: Path) -> None:
    """K2: in the parent and in persistent workers; one epoch has some megabytes."""
    put_dataset(server, tmp_path, count=40, size=50_000)
    with StreamingDataset(server.url(), cache_dir=tmp_path / "cache", shuffle=True, shuffle_window=2) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=4, num_workers=2, collate_fn=sizes, persistent_workers=True)
        pids: set[int] = set()

        def memory() -> int:
            gc.collect()
            return sum(psutil.Process(pid).memory_info().rss for pid in {os.getpid(), *pids})

        levels = []
        for epoch in range(50):
            for total, pid in loader:
                assert total == 4 * 50_000
                pids.add(pid)
            if epoch in (9, 49):
                levels.append(memory())
        assert len(pids) == 2, "the workers lived on"
        # 40 epochs of two megabytes each would show.
        assert levels[1] - levels[0] < 20 << 20


def sizes(items: list[dict[str, Any]]) -> tuple[int, int]:
    return sum(len(item["blob"]) for item in items), os.getpid()
