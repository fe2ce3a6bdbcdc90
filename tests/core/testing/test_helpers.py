"""`run_async` is strict, `memory_put` reaches the store, and only the conformance suite costs an import of pytest."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

import forebay
from forebay import testing
from forebay._backends.memory import STORE
from forebay.exceptions import ForebayError
from forebay.testing import memory_put, run_async


def test_run_async_returns_the_result_of_a_debug_loop() -> None:
    async def main() -> bool:
        return asyncio.get_running_loop().get_debug()

    assert run_async(main()) is True


def test_a13_task_left_running_is_an_error() -> None:
    cancelled: list[str] = []

    async def sleeper() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("yes")
            raise

    async def main() -> None:
        task = asyncio.create_task(sleeper(), name="the-one-left")
        await asyncio.sleep(0)
        assert not task.done()

    with pytest.raises(AssertionError, match="the-one-left"):
        run_async(main())
    assert cancelled == ["yes"], "it is cancelled all the same"


def test_error_that_nobody_retrieved_is_an_error() -> None:
    async def fails() -> None:
        raise ValueError("lost in a task")

    async def main() -> None:
        task = asyncio.create_task(fails())
        await asyncio.wait([task])
        del task

    with pytest.raises(AssertionError, match="lost in a task"):
        run_async(main())


def test_run_async_has_a_deadline() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run_async(main(), timeout=0.05)


def test_run_async_lets_errors_through() -> None:
    async def main() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_async(main())


def test_memory_put_is_seen_by_the_memory_backend() -> None:
    memory_put("memory://helpers/a b%20#?.bin", bytearray(b"data"))
    try:
        assert forebay.open_downloader("memory://helpers").download_bytes("a b%20#?.bin") == b"data"
        memory_put("memory://helpers/a b%20#?.bin", b"more")
        assert forebay.open_downloader("memory://helpers").download_bytes("a b%20#?.bin") == b"more"
    finally:
        STORE.clear("memory://helpers")
    with pytest.raises(ForebayError):
        memory_put("file:///tmp/x", b"data")


def test_public_names() -> None:
    assert testing.__all__ == sorted(testing.__all__)
    for name in testing.__all__:
        assert getattr(testing, name).__name__ == name
    assert set(testing.__all__) <= set(dir(testing))
    with pytest.raises(AttributeError, match="nothing_here"):
        testing.nothing_here  # noqa: B018


def test_only_the_suite_needs_pytest() -> None:
    code = (
        "import sys; from forebay.testing import Fault, FaultServer, Gate, ServedRequest, memory_put, run_async;"
        "assert 'pytest' not in sys.modules; sys.modules['pytest'] = None;"
        "from forebay.testing import DownloaderConformance"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "ImportError: the conformance suite needs pytest: pip install pytest" in done.stderr
