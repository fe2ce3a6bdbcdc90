"""Which decoder reads which name in litdata's ``data_format``."""

from __future__ import annotations

from collections.abc import Callable

from forebay._formats._arrays import ArrayLeaf, FlatArrayLeaf, FlatTensorLeaf, TensorLeaf
from forebay._formats._images import EncodedImageLeaf, ImageListLeaf, RawImageLeaf, TiffLeaf
from forebay._formats._leaves import BytesLeaf, BytesViewLeaf, JsonLeaf, Leaf, PickleLeaf, ScalarLeaf, TextLeaf
from forebay.exceptions import InvalidIndexError, UnsafePickleError, UnsupportedFormatError

__all__ = ["make_leaf"]

_PLAIN: dict[str, Callable[[], Leaf]] = {
    "int": lambda: ScalarLeaf("q"),
    "float": lambda: ScalarLeaf("d"),
    "bool": lambda: ScalarLeaf("?"),
    "str": TextLeaf,
    "text": TextLeaf,
    "bytes": BytesLeaf,
    "json": JsonLeaf,
    "numpy": ArrayLeaf,
    "tensor": TensorLeaf,
    "pil": RawImageLeaf,
    "jpeg": EncodedImageLeaf,
    "jpeg_array": ImageListLeaf,
    "image": EncodedImageLeaf,
    "tifffile": TiffLeaf,
    "tiff": TiffLeaf,
    # Encoded media: the bytes of the file. What decodes them best is the user's choice, and a large dependency.
    "file": BytesLeaf,
    "video": BytesLeaf,
    "audio": BytesLeaf,
    "nifti": BytesLeaf,
    "mesh": BytesLeaf,
    "pdf": BytesLeaf,
}
_NUMBERED: dict[str, Callable[[int], Leaf]] = {"no_header_numpy": FlatArrayLeaf, "no_header_tensor": FlatTensorLeaf}
#: What follows the colon of these is a file's extension, which the decoders do not need.
_WITH_EXTENSION = frozenset({"file", "video", "audio", "image", "nifti", "mesh"})


def make_leaf(name: str, *, allow_pickle: bool, views: bool = False) -> Leaf:
    """Return the decoder for one entry of ``data_format``. The caller adds dataset and place to the errors.

    With ``views`` bytes come as memoryviews of the chunk.

    Raises:
        UnsupportedFormatError: The name is not one that we read.
        UnsafePickleError: The leaf is pickled and that was not allowed.
    """
    kind, colon, argument = name.partition(":")
    if kind in _NUMBERED and colon:
        if not (argument.isascii() and argument.isdigit() and len(argument) < 4):
            raise InvalidIndexError(f"{name!r} names no type number")
        return _NUMBERED[kind](int(argument))
    if kind == "pickle":
        if not allow_pickle:
            raise UnsafePickleError(
                f"{name!r} is unpickled, which runs code that the dataset's author chose; "
                "pass allow_pickle=True if you trust the author"
            )
        return PickleLeaf()
    if kind in _PLAIN and (not colon or kind in _WITH_EXTENSION):
        leaf = _PLAIN[kind]()
        return BytesViewLeaf() if views and isinstance(leaf, BytesLeaf) else leaf
    raise UnsupportedFormatError(f"{name!r} is a leaf type that this version does not read")
