"""One object from a store to a local file: requests, retries, checks, decompression."""

from __future__ import annotations

from forebay._transfer._digest import file_digest
from forebay._transfer._object import read_object, stat_object, transfer
from forebay._transfer._pool import DaemonPool
from forebay._transfer._types import Limiter, Room, Source, TransferPolicy, TransferResult

__all__ = [
    "DaemonPool",
    "Limiter",
    "Room",
    "Source",
    "TransferPolicy",
    "TransferResult",
    "file_digest",
    "read_object",
    "stat_object",
    "transfer",
]
