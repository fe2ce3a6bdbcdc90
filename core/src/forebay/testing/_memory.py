"""Put objects into the ``memory://`` store of this process."""

from __future__ import annotations

from forebay._backends.memory import STORE

__all__ = ["memory_put"]


def memory_put(url: str, data: bytes | bytearray | memoryview) -> None:
    """Store ``data`` as the object ``url`` (``memory://NAME/KEY``), where `open_dataset` and the rest find it."""
    STORE.put(url, data)
