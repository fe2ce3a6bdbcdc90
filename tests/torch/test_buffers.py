"""Batches in memory that is used again: none changes while anybody refers to it, whoever that is (issue 5, item 8)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import forebay
from forebay.torch import StreamingDataLoader, StreamingDataset
from forebay.torch._buffers import SPARE

#: Items of 400 kB, and batches of four: too large for a message.
COUNT, BATCH, LENGTH = 120, 4, 400_000
AHEAD = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large") / "data"
    forebay.pack(({"number": n, "data": torch.full((LENGTH,), n, dtype=torch.uint8)} for n in range(COUNT)), folder)
    return folder


@pytest.fixture
def dataset(folder: Path) -> Iterator[StreamingDataset]:
    with StreamingDataset(folder) as dataset:
        yield dataset


def load(
    dataset: StreamingDataset, method: str = "forkserver", workers: int = 1, **more: object
) -> StreamingDataLoader:
    return StreamingDataLoader(
        dataset,
        batch_size=BATCH,
        num_workers=workers,
        prefetch_factor=AHEAD,
        multiprocessing_context=method,
        **more,  # type: ignore[arg-type]
    )


def is_whole(batch: dict[str, torch.Tensor]) -> bool:
    """Whether each row is what its number says."""
    return bool((batch["data"] == batch["number"][:, None]).all())


@pytest.mark.parametrize(
    ("method", "workers"),
    [("fork", 2), ("forkserver", 1), ("forkserver", 2), pytest.param("spawn", 1, marks=pytest.mark.slow)],
)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_batches_that_are_all_kept_stay_what_they_were(dataset: StreamingDataset, method: str, workers: int) -> None:
    """Risk: more batches are held than there are buffers."""
    batches = list(load(dataset, method, workers))
    assert torch.cat([batch["number"] for batch in batches]).tolist() == list(range(COUNT))
    assert all(is_whole(batch) for batch in batches)


def test_a_part_of_a_batch_keeps_all_of_its_memory(dataset: StreamingDataset) -> None:
    """Risk: the batch is gone, and a row, an array over it, or a tensor of another kind over it is not."""
    kept: deque[tuple[int, np.ndarray]] = deque(maxlen=3)
    rows: deque[tuple[int, torch.Tensor]] = deque(maxlen=2)
    for batch in load(dataset, workers=2):
        number = int(batch["number"][1])
        kept.append((number, batch["data"][1].numpy()[5:]))
        rows.append((number, batch["data"][1].view(torch.int32)))
        del batch
        assert all((array == number).all() for number, array in kept)
        assert all((row.view(torch.uint8) == number).all() for number, row in rows)


def test_memory_is_used_again_also_in_the_next_epoch(dataset: StreamingDataset) -> None:
    loader = load(dataset, persistent_workers=True)
    places = set()
    for _ in range(3):
        for batch in loader:
            places.add(batch["data"].data_ptr())
            batch["data"].add_(1)  # it is the loop's to write to
            assert not is_whole(batch)
    assert 1 < len(places) <= AHEAD + SPARE


def test_an_epoch_that_was_left_early_leaves_no_buffer_taken(dataset: StreamingDataset) -> None:
    """Risk: what workers have read ahead reaches nobody."""
    loader = load(dataset, persistent_workers=True)
    places = set()
    for _ in range(3 * (AHEAD + SPARE)):
        batch = next(iter(loader))
        assert batch["number"].tolist() == list(range(BATCH))
        assert is_whole(batch)
        assert not batch["data"].is_shared()  # torch's own way
        places.add(batch["data"].data_ptr())
        del batch
    assert len(places) <= AHEAD + SPARE


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_keeps_what_it_was_forked_with(dataset: StreamingDataset) -> None:
    """Risk: it holds the batch in the same memory, and the trainer does not know for how long."""
    batches = iter(load(dataset))
    batch = next(batches)
    held, right = batch["data"].numpy(), batch["number"].numpy()[:, None]  # torch's own threads are not in the child
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            os.close(writer)
            os.read(reader, 1)  # until the trainer has gone on
            code = 0 if (held == right).all() else 1
        finally:
            os._exit(code)
    os.close(reader)
    del batch, held, right
    assert all(is_whole(later) for later in batches)
    os.close(writer)
    assert os.waitpid(pid, 0)[1] == 0


def test_letting_go_of_a_batch_runs_no_code_of_ours(dataset: StreamingDataset) -> None:
    """Risk J11: Ctrl-C that arrives in a destructor is printed, and lost."""
    batches = iter(load(dataset))
    next(batches)
    batch = next(batches)
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_filename) if event == "call" else None)
    try:
        del batch
    finally:
        sys.setprofile(None)
    assert [name for name in called if "forebay" in name] == []


SCRIPT = """
import resource, sys
if len(sys.argv) > 2:
    resource.setrlimit(getattr(resource, sys.argv[2]), (int(sys.argv[3]), resource.RLIM_INFINITY))
from forebay.torch import StreamingDataLoader, StreamingDataset
if __name__ == "__main__":
    with StreamingDataset(sys.argv[1]) as dataset:
        for batch in StreamingDataLoader(dataset, batch_size=4, num_workers=1):
            assert (batch["data"] == batch["number"][:, None]).all()
            print(batch["data"].is_shared())
"""
UNSHARE = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"', "sh"]


def run_script(folder: Path, *limit: str, before: Sequence[str] = ()) -> str:
    """Read an epoch within a limit, and return what it says of each batch: whether it came torch's way."""
    script = folder.parent / "script.py"
    script.write_text(SCRIPT)
    command = [*before, sys.executable, str(script), str(folder), *limit]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("name", "limit"), [("RLIMIT_FSIZE", 1 << 30), ("RLIMIT_AS", 1 << 40)])
def test_without_such_memory_batches_go_torchs_way(folder: Path, name: str, limit: int) -> None:
    """Risk: a limit of the user's refuses it, or leaves the program no addresses beside it; slower is no failure."""
    assert run_script(folder, name, str(limit)) == "True\n" * (COUNT // BATCH)


@pytest.mark.slow
@pytest.mark.skipif(subprocess.run([*UNSHARE, "true"], capture_output=True).returncode != 0, reason="mounts need root")
def test_a_small_dev_shm_holds_large_batches(folder: Path) -> None:
    """Risk: containers have 64 MiB there, and a batch that finds no room is an error, or SIGBUS."""
    assert run_script(folder, before=UNSHARE) == "False\n" * (COUNT // BATCH)
