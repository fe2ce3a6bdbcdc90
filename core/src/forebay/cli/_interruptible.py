"""Blocking calls that Ctrl-C can still leave."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["iterate"]

T = TypeVar("T")


class _End:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def iterate(make: Callable[[], Iterable[T]]) -> Iterator[T]:
    """Yield from ``make()``, which runs in a daemon thread.

    A native driver does not look at signals until its request is over; the main thread waits in a queue instead, which
    a signal does interrupt.
    """
    results: queue.Queue[T | _End] = queue.Queue(maxsize=1024)
    abandoned = threading.Event()

    def put(result: T | _End) -> None:
        while not abandoned.is_set():
            try:
                results.put(result, timeout=0.5)
            except queue.Full:
                continue
            return

    def work() -> None:
        try:
            for value in make():
                put(value)
                if abandoned.is_set():
                    return
        except BaseException as exc:  # noqa: BLE001  # the edge of a thread: the error is raised again by the reader
            put(_End(exc))
        else:
            put(_End(None))

    threading.Thread(target=work, name="forebay-cli", daemon=True).start()
    try:
        while True:
            result = results.get()
            if not isinstance(result, _End):
                yield result
            elif result.error is not None:
                raise result.error
            else:
                return
    finally:
        abandoned.set()
