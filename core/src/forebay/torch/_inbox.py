"""Messages of a queue between processes, read so that a writer who dies in the middle of one keeps nobody waiting."""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Iterable
from multiprocessing.reduction import ForkingPickler
from typing import Any

from forebay import _config

__all__ = ["Inbox", "Message"]

#: Bytes that are read at a time; a pipe holds as many.
_PIECE = 1 << 16


class Message:
    """A message that arrived whole."""

    def __init__(self, data: bytearray) -> None:
        self._data = data

    def load(self) -> Any:
        """The object that was sent."""
        return ForkingPickler.loads(self._data)


class Inbox:
    """The receiving end of a ``multiprocessing.Queue``, in the only process that receives.

    ``Queue.get`` waits for the first byte of a message with a deadline, and for the rest of it without one.
    """

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._fd = queue._reader.fileno()
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._watched: set[int] = set()
        self._received = bytearray()

    def receive(self, sentinels: Iterable[int], deadline: float) -> Message | None:
        """Return the next message, None where none came whole before ``deadline``.

        Raises:
            BrokenPipeError: None came, and one of ``sentinels``, descriptors of the writing processes, says that its
                process is dead.
        """
        self._watch(set(sentinels))
        while True:
            message = self._take()
            if message is not None:
                self._queue._sem.release()
                return message
            left = deadline - _config.monotonic()
            ready = [fd for fd, _ in self._poll.poll(max(left, 0) * 1000)]
            if self._fd in ready:
                piece = os.read(self._fd, _PIECE)
                if not piece:
                    raise BrokenPipeError
                self._received += piece
            elif ready:
                raise BrokenPipeError
            elif left <= 0:
                return None

    def _watch(self, sentinels: set[int]) -> None:
        for fd in self._watched - sentinels:
            self._poll.unregister(fd)
        for fd in sentinels - self._watched:
            self._poll.register(fd, select.POLLIN)
        self._watched = sentinels

    def _take(self) -> Message | None:
        """Cut a whole message off what was received: its length, in four bytes or in eight after -1, then itself."""
        received = self._received
        if len(received) < 4:
            return None
        begin = 4
        (length,) = struct.unpack_from("!i", received)
        if length == -1:
            begin = 12
            if len(received) < begin:
                return None
            (length,) = struct.unpack_from("!Q", received, 4)
        if len(received) < begin + length:
            return None
        data = received[begin : begin + length]
        del received[: begin + length]
        return Message(data)
