"""What the core brings by itself, announced through the same hooks as any plugin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from forebay.hookspecs import hookimpl
from forebay.types import BackendSpec, CodecSpec, FormatSpec

if TYPE_CHECKING:
    from forebay._codecs import Codec
    from forebay._formats import DatasetFormat
    from forebay.downloader import Downloader

__all__ = ["forebay_register_backends", "forebay_register_codecs", "forebay_register_formats"]


@hookimpl
def forebay_register_backends() -> Iterable[BackendSpec]:
    """Local files and the process's own memory."""
    return (
        BackendSpec(name="file", schemes=("file",), load=_load_file, drivers=("os",), remote=False),
        BackendSpec(name="memory", schemes=("memory",), load=_load_memory, remote=False),
    )


@hookimpl
def forebay_register_codecs() -> Iterable[CodecSpec]:
    """Zstandard, the compression that litdata and MDS write."""
    return (
        CodecSpec(name="zstd", suffixes=(".zstd", ".zst", ".zstd.bin"), magic=b"\x28\xb5\x2f\xfd", load=_load_zstd),
    )


@hookimpl
def forebay_register_formats() -> Iterable[FormatSpec]:
    """The layout that litdata writes, and `forebay.pack` too."""
    return (FormatSpec(name="litdata", index_names=("index.json",), load=_load_litdata),)


def _load_file() -> type[Downloader]:
    from forebay._backends.file import FileDownloader

    return FileDownloader


def _load_memory() -> type[Downloader]:
    from forebay._backends.memory import MemoryDownloader

    return MemoryDownloader


def _load_zstd() -> type[Codec]:
    from forebay._codecs.zstd import ZstdCodec

    return ZstdCodec


def _load_litdata() -> type[DatasetFormat]:
    from forebay._formats.litdata import LitdataFormat

    return LitdataFormat
