"""Who uses a cache directory, and for which datasets: what ``forebay cache info`` shows."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from forebay._cache import _inspect
from forebay.types import CacheInfo

__all__ = ["DatasetReport", "ProcessReport", "Report", "report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetReport:
    """The ready chunks of one dataset. ``url`` is the redacted URL of one of them, empty where none is known."""

    dataset: str
    url: str
    chunks: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """What one living process holds: chunks that it reads, chunks only prefetched or declared, and what it fetches."""

    pid: int
    host: str
    since: float
    budget: int
    reading: int
    prefetched: int
    fetching: int
    reserved_bytes: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A cache directory at one moment. ``dead``: processes that died with it open, whose leases were given back."""

    info: CacheInfo
    datasets: tuple[DatasetReport, ...] = ()
    processes: tuple[ProcessReport, ...] = ()
    dead: int = 0


def report(connection: sqlite3.Connection, fallback: int, dead: int) -> Report:
    """Everything above, at one moment."""
    return Report(
        info=_inspect.info(connection, fallback),
        datasets=_datasets(connection),
        processes=_processes(connection),
        dead=dead,
    )


def _datasets(connection: sqlite3.Connection) -> tuple[DatasetReport, ...]:
    """Every dataset that has a ready chunk, the largest first."""
    rows = connection.execute(
        "SELECT substr(name, 1, instr(name, '/') - 1) AS dataset, max(url), count(*), sum(bytes) AS total FROM chunks"
        " WHERE ready = 1 GROUP BY dataset ORDER BY total DESC, dataset"
    )
    return tuple(DatasetReport(dataset=name, url=url, chunks=count, bytes=size) for name, url, count, size in rows)


def _processes(connection: sqlite3.Connection) -> tuple[ProcessReport, ...]:
    """Every holder, the oldest first."""
    rows = connection.execute(
        "SELECT pid, host, since, budget,"
        " (SELECT count(*) FROM leases l JOIN chunks c ON c.id = l.chunk"
        "  WHERE l.holder = h.id AND l.hard > 0 AND c.ready = 1),"
        " (SELECT count(*) FROM leases l WHERE l.holder = h.id AND l.hard = 0),"
        " (SELECT count(*) FROM flights f WHERE f.holder = h.id),"
        " (SELECT coalesce(sum(reserved), 0) FROM flights f WHERE f.holder = h.id),"
        " (SELECT coalesce(sum(waiting), 0) FROM flights f WHERE f.holder = h.id)"
        " FROM holders h ORDER BY since"
    )
    return tuple(
        ProcessReport(
            pid=pid,
            host=host,
            since=since,
            budget=budget,
            reading=reading,
            prefetched=prefetched,
            fetching=fetching,
            reserved_bytes=reserved,
            waiting=waiting,
        )
        for pid, host, since, budget, reading, prefetched, fetching, reserved, waiting in rows
    )
