"""The engine that turns an order of chunks into ready files: one I/O thread, bounded, single flight, plan order."""

from forebay._prefetch._engine import Engine
from forebay._prefetch._io import IOFuture, IOThread, before_exit, io_thread, keep_thread, wait_for
from forebay._prefetch._request import ChunkRequest
from forebay._prefetch._runtime import EngineHandle, open_engine
from forebay._prefetch._session import Session

__all__ = [
    "ChunkRequest",
    "Engine",
    "EngineHandle",
    "IOFuture",
    "IOThread",
    "Session",
    "before_exit",
    "io_thread",
    "keep_thread",
    "open_engine",
    "wait_for",
]
