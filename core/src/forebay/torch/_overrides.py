"""What a subclass may not override: it would be left out, or be called with something else, and nobody told."""

from __future__ import annotations

from forebay.exceptions import ConfigError
from forebay.torch._stream import Stream

__all__ = ["refuse_own_getitem", "refuse_own_iter"]

_REMEDY = "transform the items in collate_fn, which runs in the workers, or in a generator around the loader"


def refuse_own_getitem(kind: type[Stream], base: type[Stream]) -> None:
    """An iteration reads batches of items, and calls no ``__getitem__``.

    Raises:
        ConfigError: ``kind`` has another one than ``base``.
    """
    if vars(base)["__getitem__"] is not getattr(kind, "__getitem__", None):
        raise ConfigError(
            f"{kind.__name__} overrides __getitem__, which an iteration does not call: {_REMEDY}", option="__getitem__"
        )


def refuse_own_iter(dataset: Stream) -> None:
    """A loader reads whole steps, and a mixture the items themselves; neither calls an ``__iter__`` of somebody else.

    Raises:
        ConfigError: The dataset's class overrides ``__iter__``.
    """
    if type(dataset).__iter__ is not Stream.__iter__:
        raise ConfigError(
            f"{type(dataset).__name__} overrides __iter__, which would not be called with single items: {_REMEDY}",
            option="__iter__",
        )
