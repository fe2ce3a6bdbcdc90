"""References to a process's engine: given back once, never opened again by whoever is late, left behind by no error."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

import forebay
from forebay._prefetch import Engine, EngineHandle, _runtime, open_engine, wait_for
from forebay.exceptions import ConfigError, PrefetchClosedError


def holders(directory: Path) -> int:
    with forebay.ChunkCache(directory) as observer:
        return observer.info().holders


def test_who_asks_for_an_engine_while_it_is_closed_opens_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Risk C10: the engine that a late reader opened was nobody's, and lived as long as the process."""
    handle = open_engine(tmp_path / "cache", max_bytes=1000)
    refused: list[BaseException] = []

    def ask() -> None:
        try:
            handle.engine()
        except PrefetchClosedError as exc:
            refused.append(exc)

    give = _runtime._give

    def given(engine: Engine) -> None:
        give(engine)
        late = threading.Thread(target=ask)  # before whoever closes goes on
        late.start()
        late.join(30)

    monkeypatch.setattr(_runtime, "_give", given)
    handle.close()
    assert len(refused) == 1
    assert not _runtime._engines
    assert holders(tmp_path / "cache") == 0


def test_an_engine_that_cannot_be_made_leaves_no_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Risk C10: a setting that cannot be used is an error, and the directory is not held for ever after it."""
    monkeypatch.setenv("FOREBAY_WAIT_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match="FOREBAY_WAIT_TIMEOUT"):
        EngineHandle(tmp_path / "cache", 1000)
    assert holders(tmp_path / "cache") == 0


def test_a_directory_that_is_made_anew_has_an_engine_of_its_own(tmp_path: Path) -> None:
    """Risk C10: the engine of the removed one stood in its place, and the new one was never closed."""
    old = open_engine(tmp_path / "cache", max_bytes=1000)
    shutil.rmtree(tmp_path / "cache")
    new = open_engine(tmp_path / "cache", max_bytes=1000)
    assert new.cache is not old.cache
    old.close()
    assert holders(tmp_path / "cache") == 1
    new.close()
    assert holders(tmp_path / "cache") == 0


def test_a_call_that_is_cancelled_twice_is_seen_to_end(tmp_path: Path) -> None:
    """Risk C10: who closes, and who closes once more, had what the call did to the ledger go on behind the clean-up."""
    handle = open_engine(tmp_path / "cache", max_bytes=1000)
    engine, thread = handle.engine(), handle.thread
    started, go = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        go.wait(60)

    async def turns() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    future = thread.submit(lambda: engine.steady(work))
    assert started.wait(30)
    for _ in range(2):
        future.stop()
        wait_for(thread.submit(turns), thread)
    assert not future.done()
    go.set()
    with pytest.raises(PrefetchClosedError, match="closed"):
        wait_for(future, thread)
    handle.close()
