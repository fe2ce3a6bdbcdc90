"""Memory that workers and the trainer share, used again from batch to batch.

torch sends a large tensor in shared memory that is made for it: the kernel clears every page, maps it into two
processes and takes it back, which takes several times as long as writing the data. Here a worker writes a batch where
an earlier one was, as soon as nothing in the trainer refers to that any more. The memory is part of no file system: how
large /dev/shm is does not matter, and a killed run leaves nothing behind.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import os
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import reduction
from typing import Any

import torch

__all__ = ["Buffers", "BuffersOfWorker", "batch_buffer", "in_this_worker", "serve_worker"]

#: Address space of one buffer: what a batch may fill. Memory is taken by what was filled, not before.
SIZE = 256 << 20
#: Buffers of a worker beyond the batches that it reads ahead: what the training loop holds, and what a fork keeps.
SPARE = 4
#: Bytes at the beginning that say which buffers are taken, one each.
_FLAGS = mmap.PAGESIZE
_FREE, _TAKEN = 0, 1
_ALIGNMENT = 64

_Array = ctypes.c_ubyte * SIZE
_numbers = itertools.count()


class Buffers:
    """The trainer's side: some buffers for each worker of an iterator.

    A worker takes a free one, and says so in its flag. Here it becomes free again once the last tensor over it is gone.

    Args:
        workers: How many workers there are.
        ahead: Batches that each reads ahead.

    Raises:
        OSError: There is no such memory, here or now.
    """

    def __init__(self, workers: int, ahead: int) -> None:
        self._each = ahead + SPARE
        count = workers * self._each
        if not hasattr(os, "memfd_create") or count > _FLAGS or _is_short_of_addresses():
            raise OSError("buffers are for Linux, for so many workers, and where a process may have any address")
        self._descriptor = os.memfd_create("forebay-batches", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._descriptor, _FLAGS + count * SIZE)
            self._memory = mmap.mmap(self._descriptor, _FLAGS + count * SIZE)
        except BaseException:
            self.close_descriptor()
            raise
        self._lent: dict[int, tuple[weakref.ref[Any], int]] = {}  # by the reference's id
        self._returned: deque[weakref.ref[Any]] = deque()
        self._number = next(_numbers)
        _buffers[self._number] = self

    def close_descriptor(self) -> None:
        """All workers have theirs."""
        os.close(self._descriptor)

    def lend(self, number: int) -> Any:
        """A buffer that a worker filled, as an array of bytes; whoever refers to it, or to a part, has it."""
        array = _Array.from_buffer(self._memory, _FLAGS + number * SIZE)
        # A method in C: it is called wherever the last reference goes, and an interrupt in code of ours would be lost.
        reference = weakref.ref(array, self._returned.append)
        self._lent[id(reference)] = reference, number
        return array

    def take_back(self) -> None:
        """Let workers have what was let go of since the last call."""
        while self._returned:
            known = self._lent.pop(id(self._returned.popleft()), None)
            if known is not None:
                self._memory[known[1]] = _FREE

    def keep(self) -> None:
        """What is lent now never becomes free: a process that is forked has it too, and does not say for how long."""
        self._lent.clear()

    def __getstate__(self) -> tuple[int, Any, int]:
        return self._number, reduction.DupFd(self._descriptor), self._each

    def __setstate__(self, state: tuple[int, Any, int]) -> None:
        self._number, descriptor, self._each = state
        self._descriptor = descriptor.detach()

    def of_worker(self, worker: int) -> BuffersOfWorker:
        """The side of a worker; called once, in it."""
        try:
            return BuffersOfWorker(self._number, self._descriptor, worker * self._each, self._each)
        finally:
            self.close_descriptor()


class BuffersOfWorker:
    """A worker's side: at most one buffer at a time is being filled, for the batch at hand."""

    def __init__(self, number: int, descriptor: int, first: int, count: int) -> None:
        self._number, self._first, self._count = number, first, count
        self._flags = mmap.mmap(descriptor, _FLAGS)
        self._memory = torch.frombuffer(
            mmap.mmap(descriptor, count * SIZE, offset=_FLAGS + first * SIZE), dtype=torch.uint8
        )
        self._lease: _Lease | None = None
        self._filled = 0
        self._sent = False

    def empty(self, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor | None:
        """Room for a tensor of this batch; None for one too large, and where all buffers are the trainer's."""
        size = math.prod(shape) * dtype.itemsize
        if self._filled + size > SIZE:
            return None
        if self._lease is None:
            number = self._flags.find(bytes([_FREE]), self._first, self._first + self._count)
            if number < 0:
                return None
            self._flags[number] = _TAKEN
            self._lease = _Lease(self._number, number)
        begin = self._offset_of(self._lease) + self._filled
        self._filled += -(-size // _ALIGNMENT) * _ALIGNMENT
        return self._memory[begin : begin + size].view(dtype).view(shape)

    def find(self, tensor: torch.Tensor) -> tuple[_Lease, int] | None:
        """`place`, where the tensor lies in this batch's buffer; else None."""
        if self._lease is None:
            return None
        offset = tensor.data_ptr() - self._memory.data_ptr() - self._offset_of(self._lease)
        if not 0 <= offset < self._filled:
            return None
        self._sent = True
        return self._lease, offset

    def place(self, room: torch.Tensor) -> tuple[_Lease, int]:
        """What a message says of a tensor in the buffer: which it is, and how many bytes lie before."""
        found = self.find(room)
        assert found is not None
        return found

    def end_batch(self, *, sent: bool) -> None:
        """The batch was pickled or given up; nobody will let go of a buffer that the trainer does not hear of."""
        if self._lease is not None and not (sent and self._sent):
            self._flags[self._lease.number] = _FREE
        self._lease, self._filled, self._sent = None, 0, False

    def _offset_of(self, lease: _Lease) -> int:
        return (lease.number - self._first) * SIZE


class _Lease:
    """A buffer in a message; all tensors of the message that lie in it get one array."""

    def __init__(self, buffers: int, number: int) -> None:
        self.number = number
        self._buffers = buffers

    def __reduce__(self) -> tuple[Any, ...]:
        return _lend, (self._buffers, self.number)


_buffers: weakref.WeakValueDictionary[int, Buffers] = weakref.WeakValueDictionary()
_mine: BuffersOfWorker | None = None


def _lend(buffers: int, number: int) -> Any:
    return _buffers[buffers].lend(number)


def serve_worker(buffers: Buffers | None, worker: int) -> None:
    """Use ``buffers`` in this process from now on, which is ``worker``."""
    global _mine
    _mine = None if buffers is None else buffers.of_worker(worker)


def in_this_worker() -> BuffersOfWorker | None:
    """What this worker has; None where there is nothing of the kind."""
    return _mine


@contextmanager
def batch_buffer() -> Iterator[None]:
    """Within, a worker makes and pickles one batch."""
    sent = False
    try:
        yield
        sent = True
    finally:
        if _mine is not None:
            _mine.end_batch(sent=sent)


def _is_short_of_addresses() -> bool:
    import resource  # for Unix only

    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def _keep_all() -> None:
    for buffers in list(_buffers.values()):
        buffers.keep()


os.register_at_fork(before=_keep_all)
