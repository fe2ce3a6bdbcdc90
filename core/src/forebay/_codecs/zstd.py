"""The zstd codec: any number of frames, with or without a content size, skippable frames passed over."""

from __future__ import annotations

from collections.abc import Iterator

import zstandard

from forebay._codecs import Codec
from forebay._codecs._zstd_frames import BLOCK_MAX, FrameWalker
from forebay.exceptions import DecompressionError

__all__ = ["ZstdCodec"]

#: Output is gathered up to this size before it is handed on: large enough to write, small enough for a CPU cache.
_PIECE = 1024 * 1024


class ZstdCodec(Codec):
    """Decompresses the stored bytes of one object as they come."""

    def __init__(self, *, max_output: int | None = None) -> None:
        super().__init__(max_output=max_output)
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._walker = FrameWalker(_PIECE // BLOCK_MAX)
        self._seen = 0
        self._output = 0
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[bytes]:
        """Take stored bytes and yield what they decompress to, in pieces of up to about 1 MiB.

        Raises:
            DecompressionError: The bytes are damaged, or the output would pass ``max_output``.
        """
        view = memoryview(data).cast("B")
        place = 0
        while place < len(view):
            piece = self._walker.next_piece(view, place)
            if piece.content_size is not None:
                self._refuse_past(self._output + piece.content_size)
            self._decompress(view[place : piece.stop])
            if piece.ends_frame:
                self._end_frame()
            self._seen += piece.stop - place
            place = piece.stop
            if self._gathered_bytes >= _PIECE // 2:
                yield self._take()
        if self._gathered:
            yield self._take()

    def finish(self) -> Iterator[bytes]:
        """Check that the object ended with a frame.

        Raises:
            DecompressionError: The last frame is cut off, or there was none.
        """
        if not self._walker.between_frames:
            raise DecompressionError(f"the last zstd frame is cut off: the object ends after {self._seen} stored bytes")
        if not self._seen:
            raise DecompressionError("an empty object holds no zstd frame")
        return iter(())

    def _decompress(self, data: memoryview) -> None:
        if self._frame is None:
            self._frame = self._decompressor.decompressobj(write_size=_PIECE)
        try:
            output = self._frame.decompress(data)
        except zstandard.ZstdError as exc:
            raise DecompressionError(f"zstd data damaged near stored byte {self._seen}: {exc}") from exc
        if output:
            self._output += len(output)
            self._refuse_past(self._output)
            self._gathered.append(output)
            self._gathered_bytes += len(output)

    def _end_frame(self) -> None:
        frame, self._frame = self._frame, None
        if frame is not None and not frame.eof:
            raise DecompressionError(f"a zstd frame is damaged: it does not end at stored byte {self._seen}")

    def _refuse_past(self, total: int) -> None:
        if self.max_output is not None and total > self.max_output:
            raise DecompressionError(f"decompresses to {total} bytes or more, but {self.max_output} were promised")

    def _take(self) -> bytes:
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        return gathered[0] if len(gathered) == 1 else b"".join(gathered)
