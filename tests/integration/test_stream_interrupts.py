"""Ctrl-C, and handlers of signals that close a dataset, at the worst moments: no deadlock, and no lease that stays.

Another dataset of the process keeps the cache open, or what was lost would go with that.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from servers.datasets import put_dataset
from servers.ledger import reading, rows

import forebay
from forebay._cache._ledger import Ledger
from forebay._prefetch import IOFuture, IOThread, Session, open_engine
from forebay._prefetch._session import CLOSE_DEADLINE
from forebay.exceptions import PrefetchClosedError
from forebay.testing import Fault, FaultServer, Gate


@contextmanager
def on_signal(work: Callable[[], object]) -> Iterator[None]:
    """What a program does that closes its dataset when it is told to end."""

    def handle(_signal: int, _frame: FrameType | None) -> None:
        work()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def cache(server: FaultServer, tmp_path: Path) -> Iterator[Path]:
    put_dataset(server, tmp_path)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache"


def left(cache: Path) -> set[str]:
    return set(rows(reading(cache / "ledger.sqlite")))


class Order(list[int]):
    """An order of chunks in which one is looked up when a signal arrives."""

    def __getitem__(self, place: Any) -> Any:
        if place == 2:
            signal.raise_signal(signal.SIGUSR1)
        return super().__getitem__(place)


@pytest.mark.timeout(60)
def test_a_handler_may_close_the_dataset_while_requests_are_started(server: FaultServer, cache: Path) -> None:
    """Risk C10: the thread waited for a lock that it held itself."""
    ds = forebay.open_dataset(server.url(), cache_dir=cache)
    session = ds._source.session(Order(range(8)), ahead=4)
    with on_signal(ds.close), pytest.raises(PrefetchClosedError):
        session.take(0)
    assert left(cache) == {"holders"}


@pytest.mark.timeout(60)
def test_a_handler_may_close_the_dataset_while_a_lease_is_made_hard(server: FaultServer, cache: Path) -> None:
    """Risk C10: as above, with the lock of one request, held for the length of a transaction."""
    keeper = open_engine(cache, max_bytes=None)
    ds = forebay.open_dataset(server.url(), cache_dir=cache)
    session = ds._source.session(range(8), ahead=4)
    session.take(0)
    armed = [True]

    def changed() -> None:  # called at the end of each change, in the thread that made it
        if threading.current_thread() is threading.main_thread() and armed:
            armed.clear()
            signal.raise_signal(signal.SIGUSR1)

    (inner,) = ds._source._sessions  # type: ignore[attr-defined]
    future = inner._places[1].future
    future.result(60)
    unsubscribe = keeper.cache.subscribe(changed)
    with on_signal(ds.close), pytest.raises(PrefetchClosedError):
        session.take(1)
    unsubscribe()
    assert not armed
    keeper.close()
    assert left(cache) == {"holders"}


@pytest.mark.parametrize("place", ["done", "close"])
def test_an_interrupt_while_a_lease_is_given_back_leaves_none(
    server: FaultServer, cache: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Risk C10: our own account said that it was gone, and the ledger was never told."""
    attempt = Ledger._attempt
    armed: list[bool] = []

    def interrupted(ledger: Ledger, step: Any) -> Any:
        if armed and threading.current_thread() is threading.main_thread():
            armed.clear()
            raise KeyboardInterrupt
        return attempt(ledger, step)

    monkeypatch.setattr(Ledger, "_attempt", interrupted)
    with forebay.open_dataset(server.url(), cache_dir=cache, prefetch=4) as ds:
        session = ds._source.session(range(8), ahead=4)
        session.take(0)
        session.take(1)
        armed.append(True)
        with pytest.raises(KeyboardInterrupt):
            session.done(0) if place == "done" else session.close()
        assert not armed
        session.close()
    assert left(cache) == {"holders"}


@pytest.mark.parametrize("place", ["harden", "window"])
def test_an_interrupt_right_after_a_change_leaves_nothing_of_it(
    server: FaultServer, cache: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Risk C10: what the ledger had given already was nobody's: a hard lease, or a window that others want."""
    attempt = Ledger._attempt
    armed: list[bool] = []

    def interrupted(ledger: Ledger, step: Any) -> Any:
        done = attempt(ledger, step)
        if armed and threading.current_thread() is threading.main_thread():
            armed.clear()
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(Ledger, "_attempt", interrupted)
    with forebay.open_dataset(server.url(), cache_dir=cache, prefetch=4, shuffle=True, shuffle_window=2) as ds:
        session = ds._source.session(range(8), ahead=4)
        session.take(0)
        (inner,) = ds._source._sessions  # type: ignore[attr-defined]
        inner._places[1].future.result(60)
        armed.append(True)
        with pytest.raises(KeyboardInterrupt):
            session.take(1) if place == "harden" else next(iter(ds))
        assert not armed
        session.close()
        assert left(cache) == {"holders"}


def test_an_interrupt_while_a_session_waits_for_its_end_leaves_no_lease(
    server: FaultServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Risk C10: Ctrl-C ends an iteration, which waits for what is under way; whoever cannot wait presses it again."""
    gate = Gate()
    server.script("chunk-0-3.bin", Fault(gate=gate), times=None)

    def interrupted(futures: list[IOFuture[Any]], timeout: float) -> Any:
        if timeout == CLOSE_DEADLINE:
            raise KeyboardInterrupt
        return wait(futures, timeout)

    with forebay.open_dataset(server.url(), cache_dir=cache, prefetch=4) as ds:
        iterator: Any = iter(ds)
        next(iterator)
        (inner,) = ds._source._sessions  # type: ignore[attr-defined]
        assert isinstance(inner, Session)
        futures = [entry.future for entry in inner._places.values()]
        monkeypatch.setattr("forebay._prefetch._session.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            iterator.close()
        monkeypatch.undo()
        wait(futures, 30)
        gate.open()
        del iterator, inner, futures
        assert left(cache) == {"holders", "plans", "orders"}
    assert left(cache) == {"holders"}


def test_an_interrupt_while_a_dataset_is_opened_ends_its_request(
    server: FaultServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Risk C10: the request went on for nobody, in a downloader that was closed, for as many tries as there are."""
    gate, ended = Gate(), threading.Event()
    server.script("index.json", Fault(gate=gate), times=None)

    def interrupted(future: IOFuture[Any], thread: IOThread) -> None:
        future.add_done_callback(lambda _: ended.set())
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("forebay._open.wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt):
            forebay.open_dataset(server.url(), cache_dir=cache)
    assert ended.wait(30)
    gate.open()
    assert left(cache) == {"holders"}
