"""The digest of one item, over the canonical form that the fixtures' ``generate.py`` defines. Works without torch."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import numpy as np

__all__ = ["canon"]


def canon(item: Any) -> str:
    """Return the sha256 that ``expected.json`` holds for an equal item."""
    digest = hashlib.sha256()
    for piece in _pieces(item):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(value: Any) -> list[bytes]:
    if isinstance(value, dict):
        inner = [piece for key in sorted(value) for part in (key, value[key]) for piece in _pieces(part)]
        return [b"{", *inner, b"}"]
    if isinstance(value, list | tuple):
        return [b"[", *(piece for part in value for piece in _pieces(part)), b"]"]
    return [_leaf(value)]


def _leaf(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        elements: bytes = value.tobytes()
        return b"n" + str(value.dtype).encode() + str(value.shape).encode() + elements
    if isinstance(value, bytes | bytearray | memoryview):
        return b"b" + bytes(value)
    if isinstance(value, bool):
        return b"o" + str(value).encode()
    if isinstance(value, int):
        return b"I" + str(value).encode()
    if isinstance(value, float):
        return b"f" + repr(value).encode()
    if isinstance(value, str):
        return b"s" + value.encode()
    return _foreign(value)


def _foreign(value: Any) -> bytes:
    torch, pillow = sys.modules.get("torch"), sys.modules.get("PIL.Image")
    if torch is not None and isinstance(value, torch.Tensor):
        if not value.ndim:
            number: str = str(value.item())
            return b"t0" + number.encode()
        raw: bytes = value.contiguous().view(torch.uint8).numpy().tobytes()
        head: bytes = str(value.dtype).encode() + str(tuple(value.shape)).encode()
        return b"t" + head + raw
    if pillow is not None and isinstance(value, pillow.Image):
        pixels: bytes = value.tobytes()
        mode: bytes = value.mode.encode()
        return b"i" + mode + str(value.size).encode() + pixels
    raise TypeError(type(value))
