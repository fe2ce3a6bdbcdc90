"""Decoders of image leaves, through Pillow, which is imported at the first image."""

from __future__ import annotations

import importlib
import io
import struct
from types import ModuleType
from typing import Any

from forebay._formats._leaves import ChunkBytes, Leaf
from forebay.exceptions import IntegrityError, MissingDependencyError

__all__ = ["EncodedImageLeaf", "ImageListLeaf", "RawImageLeaf", "TiffLeaf"]


def _load(module: str, remedy: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise MissingDependencyError(f"the dataset holds images; reading them needs {remedy}") from error


class RawImageLeaf(Leaf):
    """``pil``: width, height and length of the mode as uint32, the mode, the pixels as Pillow keeps them."""

    _head = struct.Struct("<III")

    def __init__(self) -> None:
        self._image: Any = None

    def one(self, chunk: ChunkBytes, start: int, end: int) -> Any:
        if self._image is None:
            self._image = _load("PIL.Image", 'Pillow (pip install "forebay[images]")')
        if end - start < self._head.size:
            raise IntegrityError(f"an image's header takes {self._head.size} bytes, here are {end - start}")
        width, height, length = self._head.unpack_from(chunk.view, start)
        begin = start + self._head.size + length
        if begin > end:
            raise IntegrityError(f"an image's mode of {length} bytes does not fit into {end - start} bytes")
        mode = str(chunk.view[start + self._head.size : begin], "ascii")
        return self._image.frombytes(mode, (width, height), chunk.view[begin:end])


class EncodedImageLeaf(Leaf):
    """``jpeg`` and ``image:EXT``: the bytes of an image file. The image is decoded, its mode is the file's."""

    def __init__(self) -> None:
        self._image: Any = None

    def one(self, chunk: ChunkBytes, start: int, end: int) -> Any:
        if self._image is None:
            self._image = _load("PIL.Image", 'Pillow (pip install "forebay[images]")')
        try:
            image = self._image.open(io.BytesIO(chunk.view[start:end]))
            image.load()
        except (OSError, SyntaxError) as error:  # Pillow's ways of saying that a file is broken
            raise IntegrityError(f"an image cannot be decoded: {error}") from error
        return image


class ImageListLeaf(Leaf):
    """``jpeg_array``: the number of images, the size of each, both uint32, and their files."""

    def __init__(self) -> None:
        self._single = EncodedImageLeaf()

    def one(self, chunk: ChunkBytes, start: int, end: int) -> Any:
        if end - start < 4:
            raise IntegrityError(f"a list of images has a header of 4 bytes, here are {end - start}")
        (count,) = struct.unpack_from("<I", chunk.view, start)
        begin = start + 4 + 4 * count
        if begin > end:
            raise IntegrityError(f"a list of {count} images does not fit into {end - start} bytes")
        sizes = struct.unpack_from(f"<{count}I", chunk.view, start + 4)
        if begin + sum(sizes) != end:
            raise IntegrityError(f"a list of {count} images promises {sum(sizes)} bytes and has {end - begin}")
        images = []
        for size in sizes:
            images.append(self._single.one(chunk, begin, begin + size))
            begin += size
        return images


class TiffLeaf(Leaf):
    """``tifffile``: the bytes of a TIFF file, decoded into an array by the ``tifffile`` package."""

    def one(self, chunk: ChunkBytes, start: int, end: int) -> Any:
        reader = _load("tifffile", "tifffile (pip install tifffile)")
        return reader.imread(io.BytesIO(chunk.view[start:end]))
