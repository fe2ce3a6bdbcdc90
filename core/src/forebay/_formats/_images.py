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
        if error.name not in (module, module.partition(".")[0]):
            raise
        raise MissingDependencyError(f"the dataset holds images; reading them needs {remedy}") from error


#: Bytes of a pixel. Compared with the number of bytes first: Pillow takes the memory before it looks at the data, and a
#: damaged width asks for terabytes.
_PIXEL = {
    "L": 1, "P": 1, "LA": 2, "PA": 2, "La": 2, "RGB": 3, "YCbCr": 3, "LAB": 3, "HSV": 3, "RGBA": 4, "RGBa": 4,
    "RGBX": 4, "CMYK": 4, "I": 4, "F": 4, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2,
}  # fmt: skip


def _raw_size(mode: str, width: int, height: int) -> int:
    if mode == "1":
        return (width + 7) // 8 * height
    if mode not in _PIXEL:
        raise IntegrityError(f"an image has the unknown mode {mode!r}")
    return width * height * _PIXEL[mode]


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
        if _raw_size(mode, width, height) != end - begin:
            raise IntegrityError(f"an image of {width} x {height} in mode {mode} does not take {end - begin} bytes")
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
        except (OSError, SyntaxError, self._image.DecompressionBombError) as error:  # Pillow's words for a broken file
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
