"""Where zstd frames and blocks begin and end, so that input can be cut into pieces of bounded output.

A block of four stored bytes may stand for 128 KiB, so a decompressor that is given a few KiB of a hostile object may
answer with gigabytes. A block never gives more than 128 KiB, so counting blocks bounds the output of each call exactly,
and the decompressor can be given large pieces of an honest object (few calls, few hand-overs of the GIL). The walk
also tells where the object ends in the middle of a frame. The layout is RFC 8878, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from forebay.exceptions import DecompressionError

__all__ = ["BLOCK_MAX", "FrameWalker", "Piece"]

#: No block decompresses to more.
BLOCK_MAX = 128 * 1024
_MAGIC = 0xFD2FB528
_SKIPPABLE = 0x184D2A50
_RLE = 1
_RESERVED = 3


class _At(Enum):
    FRAME = auto()
    BLOCK = auto()
    BODY = auto()
    CHECKSUM = auto()
    SKIP = auto()


@dataclass(frozen=True, slots=True)
class Piece:
    """A slice of the input: ``stop`` is its end; ``ends_frame``: a frame (a skippable one, too) is complete with it."""

    stop: int
    ends_frame: bool
    #: What the frame's header promises, on the piece in which the header became complete.
    content_size: int | None = None


class FrameWalker:
    """Follows the stored bytes of one object from frame to frame, over any cut of the input."""

    def __init__(self, blocks_at_once: int) -> None:
        self._blocks_at_once = blocks_at_once
        self._at = _At.FRAME
        self._header = bytearray()  # a frame or block header of which only a part has come
        self._left = 0  # bytes of the body, checksum or skippable frame still to come
        self._last = False
        self._checksum = False
        self._content_size: int | None = None

    @property
    def between_frames(self) -> bool:
        """Whether the object may end here."""
        return self._at is _At.FRAME and not self._header

    def next_piece(self, data: memoryview, start: int) -> Piece:
        """Go on from ``start`` to the end of a frame, of a number of blocks, or of ``data``."""
        place, size, blocks = start, len(data), 0
        self._content_size = None
        while place < size:
            if self._at is _At.FRAME:
                place = self._frame_header(data, place)
            elif self._at is _At.BLOCK:
                if blocks == self._blocks_at_once:
                    break
                place = self._block_header(data, place)
                blocks += self._at is not _At.BLOCK
            else:
                step = min(self._left, size - place)
                place += step
                self._left -= step
            if self._left == 0 and self._at is not _At.FRAME and self._advance():
                return Piece(place, ends_frame=True, content_size=self._content_size)
        return Piece(place, ends_frame=False, content_size=self._content_size)

    def _advance(self) -> bool:
        """Leave a finished body, checksum or skippable frame; whether that ends a frame."""
        if self._at is _At.BODY:
            if not self._last:
                self._at = _At.BLOCK
                return False
            if self._checksum:
                self._at, self._left = _At.CHECKSUM, 4
                return False
        elif self._at is _At.BLOCK:
            return False
        self._at = _At.FRAME
        return True

    def _fill(self, data: memoryview, place: int, wanted: int) -> int:
        """Collect header bytes up to ``wanted``; the new place."""
        stop = min(place + max(wanted - len(self._header), 0), len(data))
        self._header += data[place:stop]
        return stop

    def _frame_header(self, data: memoryview, place: int) -> int:
        place = self._fill(data, place, 5)
        if len(self._header) >= 4:
            magic = int.from_bytes(self._header[:4], "little")
            if magic & ~0xF == _SKIPPABLE:
                place = self._fill(data, place, 8)
                if len(self._header) == 8:
                    self._left = int.from_bytes(self._header[4:8], "little")
                    self._at = _At.SKIP
                    self._header.clear()
                return place
            if magic != _MAGIC:
                raise DecompressionError(f"these are no zstd data: a frame begins with 0x{magic:08x}")
        if len(self._header) < 5:
            return place
        flags = self._header[4]
        single = bool(flags & 0x20)
        id_bytes = (0, 1, 2, 4)[flags & 3]
        size_bytes = (1 if single else 0, 2, 4, 8)[flags >> 6]
        length = 5 + (not single) + id_bytes + size_bytes
        place = self._fill(data, place, length)
        if len(self._header) == length:
            if size_bytes:
                size = int.from_bytes(self._header[length - size_bytes :], "little")
                self._content_size = size + 256 if size_bytes == 2 else size
            self._checksum = bool(flags & 4)
            self._at = _At.BLOCK
            self._header.clear()
        return place

    def _block_header(self, data: memoryview, place: int) -> int:
        place = self._fill(data, place, 3)
        if len(self._header) == 3:
            header = int.from_bytes(self._header, "little")
            kind, size = (header >> 1) & 3, header >> 3
            if kind == _RESERVED:
                raise DecompressionError("a zstd block is of a kind that does not exist; the data are damaged")
            self._last = bool(header & 1)
            self._left = 1 if kind == _RLE else size
            self._at = _At.BODY
            self._header.clear()
        return place
