"""The lock that the collector cannot wait for itself with, and that no fork carries over (risk J1)."""

from __future__ import annotations

import os
import signal
import threading

from forebay._mutex import Mutex
from forebay._stats import Counters


def test_a_finalizer_may_take_it_again_in_the_same_thread() -> None:
    mutex, done = Mutex(), threading.Event()

    def twice() -> None:
        with mutex, mutex:
            done.set()

    threading.Thread(target=twice, daemon=True).start()
    assert done.wait(10)


def test_another_thread_waits() -> None:
    mutex, inside = Mutex(), threading.Event()

    def enter() -> None:
        with mutex:
            inside.set()

    with mutex:
        thread = threading.Thread(target=enter)
        thread.start()
        assert not inside.wait(0.1)
    thread.join(10)
    assert inside.is_set()


def test_a_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    mutex, held, go = Mutex(), threading.Event(), threading.Event()

    def hold() -> None:
        with mutex:
            held.set()
            go.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        with mutex:
            os._exit(0)
    status = os.waitpid(pid, 0)[1]
    go.set()
    thread.join(10)
    assert os.waitstatus_to_exitcode(status) == 0
    with mutex:
        pass


def test_a_child_counts_though_a_thread_of_its_parent_did() -> None:
    """Risk J1: the I/O thread counts at any moment; a worker that was forked then waited with its first item."""
    counters, held, go = Counters(), threading.Event(), threading.Event()

    class Slow(dict[str, float]):
        """Somebody counts, and is not done with it."""

        def get(self, name: str, default: float = 0) -> float:  # type: ignore[override]
            if threading.current_thread() is thread:
                held.set()
                go.wait(60)
            return super().get(name, default)

    counters._counts = Slow()
    thread = threading.Thread(target=counters.decoded, args=(1,))
    thread.start()
    assert held.wait(10)
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        counters.decoded(1)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    go.set()
    thread.join(10)
    assert os.waitstatus_to_exitcode(status) == 0
    assert counters.snapshot().items == 1
