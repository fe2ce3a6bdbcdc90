"""Registers the s3 backend, and does nothing else: obstore and s3fs are imported when a URL is opened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from forebay.hookspecs import hookimpl
from forebay.types import BackendSpec

if TYPE_CHECKING:
    from forebay.downloader import Downloader

__all__ = ["forebay_register_backends"]


def _load() -> type[Downloader]:
    from forebay_s3._downloader import S3Downloader

    return S3Downloader


@hookimpl
def forebay_register_backends() -> Iterable[BackendSpec]:
    """Announce ``s3``."""
    return (
        BackendSpec(
            name="s3",
            schemes=("s3",),
            load=_load,
            distribution="forebay-s3",
            install_hint='pip install "forebay[s3]"',
            drivers=("obstore", "fsspec"),
        ),
    )
