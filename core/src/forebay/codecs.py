"""For authors of codec plugins: the interface of a streaming decompressor."""

from __future__ import annotations

from forebay._codecs import Codec

__all__ = ["Codec"]
