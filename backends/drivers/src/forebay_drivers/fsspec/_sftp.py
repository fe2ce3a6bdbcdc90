"""fsspec's SFTP: paramiko asks for 32 KiB and waits for it, unless it is told what will be read."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from forebay_drivers.fsspec._dialect import Dialect

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["SftpDialect", "tidy"]

logger = logging.getLogger("forebay.drivers")

#: Asked for at once: measured on loopback, 9 MiB take 0.13 s so and 2.6 s one request after the other. What has come
#: and is not read yet lies in memory.
_WINDOW = 8 << 20
_PIECE = 1 << 20


class SftpDialect(Dialect):
    """Bodies in windows whose requests are all under way before the first answer."""

    def cat(self, fs: AbstractFileSystem, path: str, start: int, stop: int | None, size: int | None) -> bytes:
        """Bytes ``start`` to ``stop``."""
        end = size if stop is None else stop if size is None else min(stop, size)
        if end is None:
            return super().cat(fs, path, start, stop, size)
        with fs.open(path, "rb") as file:
            return b"".join(_windows(file, start, end))

    def pieces(self, fs: AbstractFileSystem, path: str, size: int | None) -> Generator[bytes, None, None]:
        """The whole body."""
        if size is None:
            yield from super().pieces(fs, path, size)
            return
        with fs.open(path, "rb") as file:
            yield from _windows(file, 0, size)


def tidy(cls: type[AbstractFileSystem]) -> type[AbstractFileSystem]:
    """``cls``, which lets go of a connection whose login is refused: paramiko's thread would live on with it."""
    known: Any = cls
    made: type[AbstractFileSystem] = _tidy(known)
    return made


@cache
def _tidy(cls: Any) -> Any:
    class Tidy(cls):  # type: ignore[misc] # fsspec ships no types
        def _connect(self) -> None:
            try:
                super()._connect()
            except BaseException:  # also a cancelled login leaves no thread; it is raised again
                self.client.close()
                raise

    Tidy.__name__ = cls.__name__
    return Tidy


def _windows(file: Any, start: int, stop: int) -> Iterator[bytes]:
    _quieten(file)
    while start < stop:
        end = min(start + _WINDOW, stop)
        file.seek(start)
        file.prefetch(end)
        while start < end:
            piece = file.read(min(_PIECE, end - start))
            if not piece:
                return  # shorter than was said: who asked compares the lengths
            start += len(piece)
            yield piece


def _quieten(file: Any) -> None:
    """Keep paramiko's thread that sends the requests from printing a traceback where the connection breaks.

    The reader of the answers meets the same break, and its error is the one that counts.
    """
    send = getattr(file, "_prefetch_thread", None)
    if send is None:
        return

    from paramiko import SSHException

    def quiet(*arguments: Any) -> None:
        try:
            send(*arguments)
        except (EOFError, OSError, SSHException):  # what paramiko raises for a connection that is gone
            logger.debug("a connection broke while requests were sent", exc_info=True)

    file._prefetch_thread = quiet
