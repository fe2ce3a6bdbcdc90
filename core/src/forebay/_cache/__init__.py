"""The cache of a machine: a directory of ready chunks and the ledger of who holds them."""

from forebay._cache._api import Cache
from forebay._cache._flight import Flight
from forebay._cache._opening import open_cache
from forebay._cache._plans import PlanReader
from forebay._cache._public import ChunkCache
from forebay._cache._types import Busy, ChunkKey, FlightLostError, Problem, Ready

__all__ = [
    "Busy",
    "Cache",
    "ChunkCache",
    "ChunkKey",
    "Flight",
    "FlightLostError",
    "PlanReader",
    "Problem",
    "Ready",
    "open_cache",
]
