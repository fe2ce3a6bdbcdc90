"""What loaders' workers run in tests; a module of its own, since ``forkserver`` and ``spawn`` import it by name."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from servers.process import wait_until
from torch.utils.data import get_worker_info

import forebay

__all__ = [
    "Broken",
    "BrokenDownloader",
    "FolderDownloader",
    "NamelessDownloader",
    "all_gone",
    "arrays_of_all_kinds",
    "as_closure",
    "as_lock",
    "as_pairs",
    "as_tensors",
    "die_at_start",
    "die_nameless",
    "die_with",
    "indices",
    "loop_locals",
    "raise_nameless",
    "raise_stranger",
    "stop_at_twelve",
    "tensors_of_all_kinds",
    "threads",
]


class Broken(Exception):
    """A stranger's exception."""


class FolderDownloader(forebay.Downloader):
    """Objects of a folder; the whole of somebody's own backend."""

    def download_fileobj(self, key: str, fileobj: Any) -> None:
        """Copy the file."""
        fileobj.write(Path("/" + self.root.partition("://")[2], key).read_bytes())


def nameless_error(text: str) -> Exception:
    """An exception whose class no other process can import, as botocore makes one for each client."""
    made: Exception = type("NoSuchKey", (Exception,), {})(text)
    return made


class NamelessDownloader(FolderDownloader):
    """Fails for one chunk with an error whose class has no name."""

    def download_fileobj(self, key: str, fileobj: Any) -> None:
        """Copy what is not the third chunk."""
        if "-2." in key:
            raise nameless_error("the lake is frozen")
        super().download_fileobj(key, fileobj)


def raise_nameless(items: list[Any]) -> list[Any]:
    """A collate function that fails so."""
    raise nameless_error(f"no batch of {len(items)}")


def die_nameless(number: int) -> None:
    """A ``worker_init_fn`` that fails so."""
    raise nameless_error(f"worker {number} cannot begin")


def stop_at_twelve(items: list[int]) -> list[int]:
    """A collate function with a bare ``next`` that finds nothing, in the batch of the twelfth item."""
    return items if 12 not in items else next(iter([]))


class BrokenDownloader(FolderDownloader):
    """Gives the index and no chunk."""

    def download_fileobj(self, key: str, fileobj: Any) -> None:
        """Copy the index, and fail for the rest."""
        if key != "index.json":
            raise Broken(f"the lake has no {key} today")
        super().download_fileobj(key, fileobj)


def as_tensors(items: list[int]) -> dict[str, Any]:
    """A batch whose parts grow with the number of its only item, up to some megabytes."""
    (number,) = items
    return {
        "number": torch.tensor([number]),
        "bytes": bytes([number]) * (number * 100_000),
        "tensor": torch.full((number * 50_000,), number, dtype=torch.uint8),
    }


def tensors_of_all_kinds(items: list[int]) -> dict[str, torch.Tensor]:
    """The same tensors, whatever the items are."""
    return {
        "int64": torch.arange(6).reshape(2, 3),
        "no dimension": torch.tensor(1.5),
        "no element": torch.empty(0, 3),
        "bfloat16": torch.arange(5).bfloat16(),
        "bool": torch.tensor([True, False]),
        "complex64": torch.tensor([1 + 2j, 3 - 4j]),
        "conjugated": torch.tensor([1 + 2j, 3 - 4j]).conj(),
        "transposed": torch.arange(12).reshape(3, 4).t(),
        "part of another": torch.arange(1000)[10:20],
        "as large as may be": torch.arange(1 << 16),
        "larger": torch.arange((1 << 19) + 1).to(torch.uint8),
        "with gradient": torch.ones(3, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "sparse": torch.eye(3).to_sparse(),
        "one row of a column": torch.arange(2).reshape(1, 2)[:, 0],
    }


def arrays_of_all_kinds(items: list[int]) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays that are too large for a message, and some that cannot lie in a buffer."""
    fixed = np.arange(1 << 18, dtype=np.float32)
    fixed.flags.writeable = False
    return {
        "float32": np.arange(1 << 18, dtype=np.float32).reshape(256, -1),
        "not to be written": fixed,
        "structured": np.array([(n, n / 2) for n in range(1 << 17)], dtype=[("a", "<i4"), ("b", "<f8")]),
        "time": np.arange(1 << 17).astype("datetime64[s]"),
        "transposed": np.arange(1 << 18).reshape(512, -1).T,
        "objects": np.array([["a"] * (1 << 17)], dtype=object),
        "small": np.arange(5),
    }


def as_closure(items: list[int]) -> Callable[[], list[int]]:
    """A batch that no process can send."""
    return lambda: items


def as_lock(items: list[int]) -> Any:
    """Another."""
    return threading.Lock()


def indices(items: list[dict[str, Any]]) -> list[int]:
    """The numbers of a batch's items."""
    return [item["index"] for item in items]


def as_pairs(items: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """The numbers of a batch's items, each with the pid of who read it."""
    return [(item["index"], os.getpid()) for item in items]


def threads(items: list[dict[str, Any]]) -> tuple[int, int]:
    """How many items there are, and how many threads the worker has."""
    return len(items), psutil.Process().num_threads()


def raise_stranger(items: list[dict[str, Any]]) -> list[int]:
    """Fail with a stranger's exception at item 20."""
    if any(item["index"] == 20 for item in items):
        raise Broken("item 20 cannot be used")
    return indices(items)


def loop_locals() -> dict[str, Any]:
    """The variables of torch's loop in this worker."""
    frame = sys._getframe()
    while frame.f_code.co_name != "_worker_loop":
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_locals


def die_at_start(number: int) -> None:
    """Kill worker 1, as it starts."""
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)


class die_with:
    """Collates, until worker 0 comes to its second batch, takes what ``what`` says and is killed.

    ``once``: a file that is made then; where it is there nobody is killed any more.
    """

    def __init__(self, what: str, once: Path) -> None:
        self.what, self.once = what, once

    def __call__(self, items: list[dict[str, Any]]) -> list[tuple[int, int]]:
        """Collate, or die."""
        info = get_worker_info()
        assert info is not None
        if info.id == 0 and items[0]["index"] >= 8 and not self.once.exists():
            self.once.touch()
            self._take(loop_locals())
            os.kill(os.getpid(), signal.SIGKILL)
        return as_pairs(items)

    def _take(self, loop: dict[str, Any]) -> None:
        if self.what == "result queue":
            loop["data_queue"]._wlock.acquire()
        elif self.what == "done event":
            loop["done_event"]._cond.acquire()
        elif self.what == "half a message":
            loop["data_queue"]._wlock.acquire()
            os.write(loop["data_queue"]._writer.fileno(), b"\0\0\1\0half")
        else:
            assert self.what == "nothing"


def all_gone(pids: set[int], deadline: float = 10.0) -> None:
    """Wait until none of the processes runs; a zombie that nobody waited for yet is gone too."""
    wait_until(lambda: not any(_runs(pid) for pid in pids), deadline=deadline, what=f"the end of {pids}")


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
