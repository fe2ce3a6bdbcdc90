"""Registers the schemes ``fsspec+PROTOCOL://``, and does nothing else: fsspec is imported when a URL is opened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from forebay.hookspecs import hookimpl
from forebay.types import BackendSpec

if TYPE_CHECKING:
    from forebay.downloader import Downloader

__all__ = ["forebay_register_backends"]


def _load() -> type[Downloader]:
    from forebay_fsspec._downloader import FsspecDownloader

    return FsspecDownloader


@hookimpl
def forebay_register_backends() -> Iterable[BackendSpec]:
    """Announce ``fsspec+PROTOCOL``, whatever the protocol."""
    return (
        BackendSpec(
            name="fsspec",
            schemes=("fsspec+*",),
            load=_load,
            distribution="forebay-fsspec",
            install_hint='pip install "forebay[fsspec]"',
            drivers=("fsspec",),
        ),
    )
