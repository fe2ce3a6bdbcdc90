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
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ByteArray", "map_private"]

ByteArray = npt.NDArray[np.uint8]


def map_private(path: Path) -> ByteArray:
    """Map a whole file. Writing to the array changes neither file nor other maps; an empty file gives an empty array.

    The pages go when the last view of the array goes; nothing has to be closed.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:  # mapping nothing is an error everywhere
            return np.empty(0, dtype=np.uint8)
        return np.frombuffer(_map(descriptor, size), dtype=np.uint8)
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
    finally:
        os.close(descriptor)


if sys.version_info >= (3, 13):

    def _map(descriptor: int, size: int) -> Any:
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY, trackfd=False)

elif sys.platform == "win32":

    def _map(descriptor: int, size: int) -> Any:
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)

else:
    import ctypes
    import weakref

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
