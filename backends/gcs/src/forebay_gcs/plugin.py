"""Registers the gcs backend, and does nothing else: the SDKs are imported when a URL is opened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from forebay.hookspecs import hookimpl
from forebay.types import BackendSpec

if TYPE_CHECKING:
    from forebay.downloader import Downloader

__all__ = ["forebay_register_backends"]


def _load() -> type[Downloader]:
    from forebay_gcs._downloader import GcsDownloader

    return GcsDownloader


@hookimpl
def forebay_register_backends() -> Iterable[BackendSpec]:
    """Announce ``gs`` and ``gcs``."""
    return (
        BackendSpec(
            name="gcs",
            schemes=("gs", "gcs"),
            load=_load,
            distribution="forebay-gcs",
            install_hint='pip install "forebay[gcs]"',
            drivers=("obstore", "fsspec"),
        ),
    )
