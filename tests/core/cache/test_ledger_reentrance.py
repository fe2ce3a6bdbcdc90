"""A stranger's finalizer, or a signal handler, may come to the ledger at any moment, also amid a step in its thread."""

from __future__ import annotations

import logging
import sqlite3
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import cast

import pytest

from forebay._cache import Cache
from forebay._cache._ledger import Ledger
from forebay._cache._shared import SharedCache


def _count(connection: sqlite3.Connection) -> int:
    (found,) = connection.execute("SELECT count(*) FROM holders").fetchone()
    return int(found)


def _mark(connection: sqlite3.Connection) -> int:
    return connection.execute("UPDATE chunks SET early = 0 WHERE id = -1").rowcount + 1


STEPS: dict[str, Callable[[Ledger], object]] = {
    "write": lambda ledger: ledger.write(_count),
    "quick": lambda ledger: ledger.quick(_mark, lambda _: None),
    "read": lambda ledger: ledger.read(_count),
    "version": lambda ledger: ledger.version() > 0,
}
EXPECTED = {"write": 1, "quick": 1, "read": 1, "version": True}


def _everywhere(step: Callable[[], object], meanwhile: Callable[[], object]) -> Iterator[object]:
    """Run ``step`` again and again, with ``meanwhile`` at each place in turn where the ledger's code calls or returns.

    Gives what each run returned, and ends with the first one that was over before its place came.
    """
    at, seen = 0, 0

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal seen
        if frame.f_code.co_filename.endswith("_ledger.py"):
            seen += 1
            if seen == at:
                sys.setprofile(None)
                meanwhile()

    while seen >= at:
        at, seen = at + 1, 0
        before = sys.getprofile()
        sys.setprofile(look)
        try:
            result = step()
        finally:
            sys.setprofile(before)
        yield result
    assert at > 8


@pytest.fixture
def ledger(cache: Cache) -> Ledger:
    return cast(SharedCache, cache).member.ledger


@pytest.mark.parametrize("kind", STEPS)
def test_what_comes_amid_a_step_is_done_with_the_next_change(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """Between ``BEGIN`` and the note that said so, it began a transaction within the transaction, and was refused."""
    caplog.set_level(logging.WARNING)
    done: list[int] = []

    def meanwhile() -> None:
        ledger.write_or_defer(lambda _: done.append(1))

    for result in _everywhere(lambda: STEPS[kind](ledger), meanwhile):
        # `quick` gives way where there is something to put right first.
        assert result == EXPECTED[kind] or (kind == "quick" and result is None)
        ledger.write(_count)
    assert not caplog.records
    asked = done.copy()
    ledger.write(_count)
    assert done == asked


@pytest.mark.parametrize("kind", STEPS)
def test_a_cache_that_is_closed_amid_a_step_takes_no_connection_from_it(ledger: Ledger, kind: str) -> None:
    """The step failed with "Cannot operate on a closed database"."""
    for result in _everywhere(lambda: STEPS[kind](ledger), ledger.close):
        assert result == EXPECTED[kind]
