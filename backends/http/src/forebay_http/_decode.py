"""Content-Encoding, undone as a stream in bounded pieces."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterator
from typing import Any, Protocol

__all__ = ["BadEncodingError", "Decoder", "UnknownEncodingError", "encodings_of", "make_decoder"]

_PIECE = 1 << 20


class BadEncodingError(Exception):
    """The encoded bytes are damaged. ``cut`` says that they only ended too early."""

    def __init__(self, message: str, *, cut: bool = False) -> None:
        super().__init__(message)
        self.cut = cut


class UnknownEncodingError(Exception):
    """The server used an encoding that nothing here undoes."""


class Decoder(Protocol):
    """One encoding, undone piece by piece."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what ``data`` decodes to."""
        ...

    def finish(self) -> None:
        """Raise `BadEncodingError` when the encoded stream was cut off."""
        ...


def encodings_of(header: str | None) -> tuple[str, ...]:
    """The encodings that a Content-Encoding header names, less those that change nothing."""
    names = (part.strip().lower() for part in (header or "").split(","))
    return tuple(name for name in names if name not in ("", "identity", "aws-chunked"))


def make_decoder(encodings: tuple[str, ...]) -> Decoder | None:
    """A decoder for encodings in the order they were applied; None where there is nothing to undo.

    Raises:
        UnknownEncodingError: One of them cannot be undone here.
    """
    decoders = [_one(name) for name in reversed(encodings)]
    if not decoders:
        return None
    return decoders[0] if len(decoders) == 1 else _Chain(decoders)


def _one(name: str) -> Decoder:
    if name in ("gzip", "x-gzip"):
        return _Zlib(wbits=31)
    if name == "deflate":
        return _Zlib(wbits=15)
    if name == "br":
        return _Brotli(_import_first("brotli", "brotlicffi"))
    if name == "zstd":
        return _Zstd(_import_first("zstandard"))
    raise UnknownEncodingError(f"Content-Encoding {name!r} is not known here")


def _import_first(*names: str) -> Any:
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise UnknownEncodingError(f"the server sent an encoding that needs the package {' or '.join(names)}")


class _Chain:
    def __init__(self, decoders: list[Decoder]) -> None:
        self._decoders = decoders

    def feed(self, data: bytes) -> Iterator[bytes]:
        return self._feed(data, 0)

    def _feed(self, data: bytes, level: int) -> Iterator[bytes]:
        if level == len(self._decoders):
            yield data
            return
        for piece in self._decoders[level].feed(data):
            yield from self._feed(piece, level + 1)

    def finish(self) -> None:
        for decoder in self._decoders:
            decoder.finish()


class _Zlib:
    """gzip with any number of members, and deflate in both of the forms that servers send."""

    def __init__(self, *, wbits: int) -> None:
        self._wbits = wbits
        self._decoder: Any = None
        self._seen = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._decoder is None:
                if self._seen and self._wbits == 31:
                    data = data.lstrip(b"\0")  # gzip files may be padded with zeros
                    if not data:
                        return
                self._decoder = zlib.decompressobj(self._pick(data))
                self._seen = True
            try:
                piece = self._decoder.decompress(data, _PIECE)
            except zlib.error as exc:
                raise BadEncodingError(f"the encoded body is damaged ({exc})") from None
            if piece:
                yield piece
            if self._decoder.eof:
                data = self._decoder.unused_data
                self._decoder = None
            else:
                data = self._decoder.unconsumed_tail
                if not piece and not data:
                    return

    def _pick(self, data: bytes) -> int:
        # "deflate" is a zlib stream by the standard, and a raw one from some servers.
        if self._wbits == 15 and (data[0] & 0x0F) != 8:
            return -15
        return self._wbits

    def finish(self) -> None:
        if self._decoder is not None:
            raise BadEncodingError("the encoded body was cut off", cut=True)


class _Brotli:
    def __init__(self, module: Any) -> None:
        self._decoder = module.Decompressor()
        self._error = module.error
        self._fed = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._fed = self._fed or bool(data)
        try:
            piece = self._decoder.process(data)
        except self._error as exc:
            raise BadEncodingError(f"the encoded body is damaged ({exc})") from None
        if piece:
            yield piece

    def finish(self) -> None:
        if self._fed and not self._decoder.is_finished():
            raise BadEncodingError("the encoded body was cut off", cut=True)


class _Zstd:
    def __init__(self, module: Any) -> None:
        self._module = module
        self._decoder: Any = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._decoder is None:
                self._decoder = self._module.ZstdDecompressor().decompressobj()
            try:
                piece = self._decoder.decompress(data)
            except self._module.ZstdError as exc:
                raise BadEncodingError(f"the encoded body is damaged ({exc})") from None
            data = b""
            if self._decoder.eof:
                data = self._decoder.unused_data
                self._decoder = None
            if piece:
                yield piece

    def finish(self) -> None:
        if self._decoder is not None:
            raise BadEncodingError("the encoded body was cut off", cut=True)
