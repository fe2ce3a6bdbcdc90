"""Messages of a queue between processes, read so that a writer who dies in the middle of one keeps nobody waiting."""

from __future__ import annotations

import os
import select
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any

from forebay import _config

__all__ = ["Inbox", "Message"]

#: Bytes that the pipe may hold, so that a batch does not take many turns of two processes; what a user may have.
_PIPE = 1 << 20
#: Bytes in front of a message: its length, or -1 and then its length in eight more.
_SHORT, _LONG = 4, 12


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
        self._head = bytearray()
        self._body: bytearray | None = None
        self._filled = 0
        if sys.platform == "linux":
            import fcntl

            with suppress(OSError):  # pipes of the user take too much of the kernel's memory already
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _PIPE)

    def receive(self, sentinels: Iterable[int], deadline: float) -> Message | None:
        """Return the next message, None where none came whole before ``deadline``.

        Raises:
            BrokenPipeError: None came, and one of ``sentinels``, descriptors of the writing processes, says that its
                process is dead.
        """
        self._watch(set(sentinels))
        while True:
            left = deadline - _config.monotonic()
            ready = [fd for fd, _ in self._poll.poll(max(left, 0) * 1000)]
            if self._fd in ready:
                message = self._read()
                if message is not None:
                    self._queue._sem.release()
                    return message
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

    def _read(self) -> Message | None:
        """Read what is there of the next message; return it once it is whole."""
        if self._body is None:
            self._body = self._read_head()
        else:
            count = os.readv(self._fd, [memoryview(self._body)[self._filled :]])
            if not count:
                raise BrokenPipeError
            self._filled += count
        if self._body is None or self._filled < len(self._body):
            return None
        message, self._body, self._filled = Message(self._body), None, 0
        return message

    def _read_head(self) -> bytearray | None:
        """Read on in what stands in front of a message; return room for that once it is known how long it is."""
        head = self._head
        piece = os.read(self._fd, (_SHORT if len(head) < _SHORT else _LONG) - len(head))
        if not piece:
            raise BrokenPipeError
        head += piece
        if len(head) < _SHORT:
            return None
        (length,) = struct.unpack_from("!i", head)
        if length == -1:
            if len(head) < _LONG:
                return None
            (length,) = struct.unpack_from("!Q", head, _SHORT)
        head.clear()
        return bytearray(length)
