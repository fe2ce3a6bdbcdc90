"""Streaming decompressors: bytes of a stored object in, bytes of a chunk out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

__all__ = ["Codec"]


class Codec(ABC):
    """The decompressor of one object; made anew for each object and each attempt.

    Args:
        max_output: The number of bytes that the index promises; output past it is an error, raised early.
    """

    def __init__(self, *, max_output: int | None = None) -> None:
        self.max_output = max_output

    @abstractmethod
    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[bytes]:
        """Take stored bytes and yield what they decompress to.

        Raises:
            DecompressionError: The bytes are damaged, or the output would pass ``max_output``.
        """

    @abstractmethod
    def finish(self) -> Iterator[bytes]:
        """Yield what is left.

        Raises:
            DecompressionError: The last frame is cut off.
        """
