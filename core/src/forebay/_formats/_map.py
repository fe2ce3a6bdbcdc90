"""A chunk as memory: mapped privately, copy-on-write, without a descriptor that stays open.

A view in the user's hands keeps its map alive for as long as it likes. Before Python 3.13 the ``mmap`` module keeps
a descriptor open for the life of the map, so that a list of tensors out of a thousand chunks would end in "too many
open files"; there the C library's ``mmap`` is called directly. Copy-on-write because writing to a view of a read-only
map kills the process.
"""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ByteArray", "OpenFile", "map_file", "map_private"]

ByteArray = npt.NDArray[np.uint8]

#: Descriptors kept by this process; past this number files are only mapped, so that many open chunks never end in "too
#: many open files". A plain set: it is right in a forked child too, which has copies of the descriptors.
_MOST_KEPT = 64
_kept: set[int] = set()


class OpenFile:
    """A descriptor beside a map, closed when this object goes."""

    __slots__ = ("__weakref__", "_number")

    def __init__(self, number: int) -> None:
        self._number = number
        _kept.add(number)
        weakref.finalize(self, _close, number).atexit = False

    def read(self, start: int, end: int) -> bytes | None:
        """Return the bytes from ``start`` to ``end``, None where the system gave fewer."""
        data = os.pread(self._number, end - start, start)
        return data if len(data) == end - start else None


def _close(number: int) -> None:
    _kept.discard(number)
    os.close(number)


def map_private(path: Path) -> ByteArray:
    """Map a whole file. Writing to the array changes neither file nor other maps; an empty file gives an empty array.

    The pages go when the last view of the array goes; nothing has to be closed.
    """
    return map_file(path, keep=False)[0]


def map_file(path: Path, *, keep: bool) -> tuple[ByteArray, OpenFile | None]:
    """Map a whole file as `map_private` does, and with ``keep`` leave it open too, where that is possible."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    file = None
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:  # mapping nothing is an error everywhere
            return np.empty(0, dtype=np.uint8), None
        array = np.frombuffer(_map(descriptor, size), dtype=np.uint8)
        if keep and len(_kept) < _MOST_KEPT and hasattr(os, "pread"):
            file = OpenFile(descriptor)
        return array, file
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
    finally:
        if file is None:
            os.close(descriptor)


if sys.version_info >= (3, 13):

    def _map(descriptor: int, size: int) -> Any:
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY, trackfd=False)

elif sys.platform == "win32":

    def _map(descriptor: int, size: int) -> Any:
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)

else:
    import ctypes

    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_longlong,
    ]
    _libc.munmap.restype = ctypes.c_int
    _libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    _FAILED = ctypes.c_void_p(-1).value

    def _map(descriptor: int, size: int) -> Any:
        address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, descriptor, 0)
        if address is None or address == _FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        block = (ctypes.c_ubyte * size).from_address(address)
        # Views keep `block` alive, and the pages go with it. Not at exit: other exit handlers may use views.
        weakref.finalize(block, _libc.munmap, address, size).atexit = False
        return block
