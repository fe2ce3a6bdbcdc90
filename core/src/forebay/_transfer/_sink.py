"""Where the stored bytes of an object go, in order: through the codec and the digests into a file or into memory."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from forebay._checksums import Checksum, start_checksum
from forebay._codecs import Codec
from forebay._transfer._digest import OWN, new_digest
from forebay._transfer._types import Source
from forebay.exceptions import ChecksumMismatchError, SizeMismatchError, UnsupportedFormatError

__all__ = ["FileTarget", "MemoryTarget", "Sink", "Target"]

#: Bytes written by one call of `Sink.pump`: a cancelled transfer waits for one call, and so does a small one behind it.
_AT_ONCE = 16 << 20
#: The digest and the write of one piece follow each other while it is in a CPU cache.
_PIECE = 1 << 20


class Target(ABC):
    """Takes the decoded bytes. Its methods block and run in a helper thread, one at a time."""

    @abstractmethod
    def open(self) -> None:
        """Begin; what exists is never overwritten."""

    @abstractmethod
    def write(self, piece: memoryview) -> None:
        """Take all of ``piece``."""

    @abstractmethod
    def restart(self) -> None:
        """Forget what was written."""

    @abstractmethod
    def close(self) -> None:
        """Write no more. Closing twice is fine."""

    @abstractmethod
    def discard(self) -> None:
        """Close, and leave nothing behind."""


class FileTarget(Target):
    """A new file; ENOSPC and its like carry its path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self._mine = False

    def open(self) -> None:
        """Make the file, which must not exist."""
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._mine = True

    def write(self, piece: memoryview) -> None:
        """Append ``piece``."""
        try:
            while piece:
                piece = piece[os.write(self._descriptor, piece) :]
        except OSError as exc:
            exc.filename = str(self.path)
            raise

    def restart(self) -> None:
        """Empty the file."""
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def discard(self) -> None:
        """Close and remove the file, if this target made it."""
        try:
            self.close()
        finally:
            if self._mine:
                self._mine = False
                self.path.unlink(missing_ok=True)


class MemoryTarget(Target):
    """A buffer."""

    def __init__(self) -> None:
        self._data = bytearray()

    def open(self) -> None:
        """Nothing to do."""

    def write(self, piece: memoryview) -> None:
        """Append ``piece``."""
        self._data += piece

    def restart(self) -> None:
        """Empty the buffer."""
        self._data = bytearray()

    def close(self) -> None:
        """Nothing to do."""

    def discard(self) -> None:
        """Empty the buffer."""
        self._data = bytearray()

    def take(self) -> bytes:
        """The bytes; the buffer is empty afterwards."""
        data, self._data = bytes(self._data), bytearray()
        return data


class Sink:
    """Takes stored bytes in order, checks them, and writes what they decode to.

    ``start`` gives it stored bytes, ``pump`` works on them in a helper thread until they are used up or more room is
    needed. Never two calls at a time; between them its counters may be read from anywhere.

    Args:
        source: What is promised.
        target: Where the bytes go.
        ceiling: More decoded bytes than this are refused, whatever was promised.
    """

    def __init__(self, source: Source, target: Target, *, ceiling: int | None = None) -> None:
        self.source = source
        self.target = target
        #: Bytes that may lie in the target.
        self.allowed = 0
        #: A failure of the target itself, which is no reason to ask the store again.
        self.failure: OSError | None = None
        self.decompress_seconds = 0.0
        self._ceiling = ceiling
        self._begin()

    def _begin(self) -> None:
        source = self.source
        self.fed = 0
        self.written = 0
        self._held: memoryview | None = None
        self._pending: Iterator[bytes | memoryview] = iter(())
        self._stores: tuple[str, Checksum] | None = None
        self._adopted: str | None = None
        self._own = new_digest(OWN)
        algorithm = (source.digest or OWN).partition(":")[0]
        self._promised = self._own if algorithm == OWN else new_digest(algorithm)
        limits = [n for n in (source.expected_decoded, self._ceiling) if n is not None]
        self._codec = source.codec.load()(max_output=min(limits, default=None)) if source.codec else None

    def restart(self) -> None:
        """Forget everything; runs in a helper thread."""
        self._pending = iter(())
        self.target.restart()
        self._begin()

    @property
    def wants_checksums(self) -> bool:
        """Whether the store's own checksums say something that no promise says, and there is still time for them."""
        return self.source.digest is None and not self.fed and self._stores is None

    def expect(self, checksums: tuple[str, ...] | None) -> None:
        """Have the stored bytes compared with one of the store's own checksums; before the first of them."""
        if self.wants_checksums:
            self._stores = start_checksum(checksums or ())

    def start(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next stored bytes; those before have been pumped."""
        view = memoryview(data).cast("B")
        self.fed += len(view)
        self._pending = self._slices(view) if self._codec is None else self._decoded(self._codec, view)

    def start_end(self) -> None:
        """There are no more stored bytes."""
        self._pending = iter(()) if self._codec is None else self._codec.finish()

    def pump(self) -> int | None:
        """Write for a while.

        Returns:
            None once the bytes are used up; else call again, where the result is positive with room for so many
            bytes.
        """
        budget = _AT_ONCE
        while (piece := self._next()) is not None:
            total = self.written + len(piece)
            self._check(total)
            if total > self.allowed:
                self._held = piece
                return total
            self._held = None
            self._write(piece)
            budget -= len(piece)
            if budget <= 0:
                return 0
        return None

    def finish(self) -> None:
        """Compare the whole with what was promised.

        Raises:
            SizeMismatchError: Another number of bytes.
            ChecksumMismatchError: Another digest, or another checksum than the store's.
        """
        expected = self.source.expected_decoded
        if expected is not None and self.written != expected:
            raise self._size_error(self.written)
        if self.source.digest is not None:
            check_digest(self.source, self._promised.hexdigest())
        if self._stores is not None:
            told, checksum = self._stores
            algorithm, _, right = told.partition(":")
            if (actual := checksum.hexdigest()) != right.lower():
                raise ChecksumMismatchError(
                    f"the bytes of {self.source.where} have the {algorithm} {actual}, but the store says {right}",
                    url=self.source.url,
                    expected=told,
                    actual=f"{algorithm}:{actual}",
                )

    def adopt(self, size: int, digest: str) -> None:
        """A hook has written the target by itself."""
        self.fed = self.written = size
        self._adopted = digest

    @property
    def digest(self) -> str:
        """The ``"xxh3-64:hex"`` of what was written."""
        return self._adopted or f"{OWN}:{self._own.hexdigest()}"

    def _next(self) -> memoryview | None:
        if self._held is not None:
            return self._held
        if self._codec is None:
            piece = next(self._pending, None)
        else:
            begin = time.perf_counter()
            try:
                piece = next(self._pending, None)
            finally:
                self.decompress_seconds += time.perf_counter() - begin
        return None if piece is None else memoryview(piece)

    def _check(self, total: int) -> None:
        expected = self.source.expected_decoded
        if expected is not None and total > expected:
            raise self._size_error(total)
        if self._ceiling is not None and total > self._ceiling:
            raise SizeMismatchError(
                f"{self.source.where} is larger than the {self._ceiling} bytes that are read of it",
                url=self.source.url,
            )

    def _size_error(self, actual: int) -> SizeMismatchError:
        expected = self.source.expected_decoded
        more = " or more" if expected is not None and actual > expected else ""
        return SizeMismatchError(
            f"{self.source.where} has {actual} bytes{more}, but {expected} were promised",
            url=self.source.url,
            expected=str(expected),
            actual=str(actual),
        )

    def _write(self, piece: memoryview) -> None:
        self._own.update(piece)
        if self._promised is not self._own:
            self._promised.update(piece)
        try:
            self.target.write(piece)
        except OSError as exc:
            self.failure = exc
            raise
        self.written += len(piece)

    def _slices(self, view: memoryview) -> Iterator[memoryview]:
        for start in range(0, len(view), _PIECE):
            piece = view[start : start + _PIECE]
            if self._stores is not None:
                self._stores[1].update(piece)
            yield piece

    def _decoded(self, codec: Codec, view: memoryview) -> Iterator[bytes | memoryview]:
        if self._stores is not None:
            self._stores[1].update(view)
        yield from codec.feed(view)


def check_digest(source: Source, actual: str) -> None:
    """Raise `ChecksumMismatchError` where ``actual``, in hex, is not the promised digest."""
    algorithm, colon, expected = (source.digest or "").partition(":")
    if not colon:
        raise UnsupportedFormatError(f"the digest of {source.where} has no algorithm: {source.digest!r}")
    if actual.lower() != expected.lower():
        raise ChecksumMismatchError(
            f"the bytes of {source.where} have the {algorithm} {actual}, but {expected} was promised",
            url=source.url,
            expected=f"{algorithm}:{expected}",
            actual=f"{algorithm}:{actual}",
        )
