"""Errors of workers, in a form that reaches the trainer.

torch sends the class of an error and its text, and pickles the class by name in a thread whose errors nobody hears of:
where it has no name to be imported by, as those that botocore makes for each client, the batch never comes. And a
``StopIteration`` of anybody's is the end of the epoch to torch.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from forebay.exceptions import StorageError

__all__ = ["sendable_errors", "with_sendable_errors"]

T = TypeVar("T")


@contextmanager
def sendable_errors(otherwise: type[Exception] = RuntimeError) -> Iterator[None]:
    """An error in the block that cannot be sent comes out as one of class ``otherwise``, with it as the cause."""
    try:
        yield
    except Exception as exc:
        if _can_be_sent(exc):
            raise
        kind = type(exc)
        text = "; ".join([f"{kind.__module__}.{kind.__qualname__}: {exc}", *map(str, getattr(exc, "__notes__", ()))])
        raise otherwise(text) from exc


def with_sendable_errors(items: Iterator[T]) -> Iterator[T]:
    """The items of a stream, whose errors can be sent: a store's that cannot is a `StorageError`."""
    with sendable_errors(StorageError):
        yield from items


def _can_be_sent(error: Exception) -> bool:
    """Whether the trainer can import its class and make one of it from a text."""
    kind = type(error)
    try:
        return kind is not StopIteration and pickle.loads(pickle.dumps(kind)) is kind and bool(kind(str(error)).args)
    except Exception:  # noqa: BLE001  # a class of a stranger, which wants other arguments or raises anything
        return False
