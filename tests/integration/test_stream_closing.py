"""A dataset that one thread closes while another begins to read: an error for the reader, and nothing left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from servers.datasets import put_dataset
from servers.ledger import reading, rows

import forebay
from forebay._cached_source import CachedSource
from forebay._prefetch import open_engine
from forebay.exceptions import CacheFullError, PrefetchClosedError
from forebay.testing import FaultServer


class Late:
    """A thread that begins to use a dataset and comes no further than a step, until `finish`."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.arrived, self._go = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run)

    def wait(self) -> None:
        self.arrived.set()
        assert self._go.wait(60)

    def start(self) -> None:
        self._thread.start()
        assert self.arrived.wait(60)

    def finish(self) -> BaseException | None:
        self._go.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.error

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as exc:  # noqa: BLE001 - the edge of a thread: the test looks at it
            self.error = exc


@contextmanager
def other_dataset(server: FaultServer, cache: Path) -> Iterator[None]:
    """Another dataset of this process keeps the cache and its engine open."""
    with forebay.open_dataset(server.url(), cache_dir=cache):
        yield


def test_a_reader_that_begins_while_the_dataset_is_closed_holds_no_window(server: FaultServer, tmp_path: Path) -> None:
    """Risk C10: the closed cache became a holder again, with a window that no other process could have."""
    put_dataset(server, tmp_path)
    cache = tmp_path / "cache"
    ds = forebay.open_dataset(server.url(), cache_dir=cache, shuffle=True, shuffle_window=2)
    source = ds._source
    assert isinstance(source, CachedSource)
    add, late = source._claims._add, Late(lambda: list(ds))

    def held(claim: Any) -> None:
        late.wait()
        add(claim)

    source._claims._add = held  # type: ignore[method-assign]
    late.start()
    ds.close()
    assert isinstance(late.finish(), PrefetchClosedError)
    assert rows(reading(cache / "ledger.sqlite")) == {}
    assert not list((cache / "holders").iterdir())


def test_a_reader_that_begins_while_the_dataset_is_closed_is_told_so(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Risk C10: whoever closed had looked for sessions before this one was there, and it read on without a store."""
    put_dataset(server, tmp_path)
    cache = tmp_path / "cache"
    with other_dataset(server, cache):
        ds = forebay.open_dataset(server.url(), cache_dir=cache)
        got: list[object] = []
        late = Late(lambda: got.extend(ds))
        session = CachedSource.session

        def made(*arguments: Any, **options: Any) -> Any:
            try:
                return session(*arguments, **options)
            finally:
                late.wait()

        monkeypatch.setattr(CachedSource, "session", made)
        late.start()
        # The dataset's own list does not have it yet; the source's has.
        monkeypatch.setattr(ds._source, "close", lambda: None)
        ds.close()
        assert isinstance(late.finish(), PrefetchClosedError)
        assert not got
        monkeypatch.undo()
        ds._source.close()
        assert set(rows(reading(cache / "ledger.sqlite"))) == {"holders"}


def test_readers_that_begin_while_the_dataset_is_closed_do_not_break_the_closing(
    server: FaultServer, tmp_path: Path
) -> None:
    """Risk C10: "Set changed size during iteration", and neither downloader nor engine was closed."""
    put_dataset(server, tmp_path)
    cache = tmp_path / "cache"
    ds = forebay.open_dataset(server.url(), cache_dir=cache)
    begun = [iter(ds) for _ in range(3)]
    for each in begun:
        next(each)

    class Watched(type(ds._sessions)):  # type: ignore[misc]
        """Somebody begins to read in the midst of a walk through the sessions."""

        def __iter__(self) -> Iterator[Any]:
            for number, each in enumerate(super().__iter__()):
                if number == 0:
                    reader.start()
                    reader_done.wait(0.2)  # for ever, where it has to wait for the end of this walk
                yield each

    reader_done = threading.Event()
    kept: list[object] = []

    def begin() -> None:
        try:
            kept.append(ds._hold([0], ahead=0))
        except PrefetchClosedError:
            kept.append(None)
        reader_done.set()

    reader = threading.Thread(target=begin)
    watched = Watched(ds._sessions)
    ds._sessions = watched
    ds.close()
    reader.join(60)
    assert kept == [None]
    for each in begun:
        with pytest.raises(PrefetchClosedError):
            list(each)
    assert rows(reading(cache / "ledger.sqlite")) == {}


def test_a_session_that_cannot_be_told_to_the_cache_leaves_no_lease(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Risk C10: what it shares with others was leased before its plan was refused, and nobody had it to close."""
    put_dataset(server, tmp_path)
    cache = tmp_path / "cache"
    keeper = open_engine(cache, max_bytes=None)
    with forebay.open_dataset(server.url(), cache_dir=cache) as ds:
        next(iter(ds))  # its plan rests
        read = reading(cache / "ledger.sqlite")
        members = keeper.cache

        def full(*_: object) -> None:
            raise CacheFullError("no room for the plan")

        monkeypatch.setattr(members.member.plans, "declare", full)  # type: ignore[attr-defined]
        now = ds.epoch_plan(0).chunks()
        with pytest.raises(CacheFullError, match="no room for the plan"):
            ds._source.session([0, 1], ahead=0, now=now, then=now, shared={0, 1})
        assert set(rows(read)) == {"holders"}
    keeper.close()
