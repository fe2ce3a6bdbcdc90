"""Registers the azure backend, and does nothing else: the SDKs are imported when a URL is opened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from forebay.hookspecs import hookimpl
from forebay.types import BackendSpec

if TYPE_CHECKING:
    from forebay.downloader import Downloader

__all__ = ["forebay_register_backends"]


def _load() -> type[Downloader]:
    from forebay_azure._downloader import AzureDownloader

    return AzureDownloader


@hookimpl
def forebay_register_backends() -> Iterable[BackendSpec]:
    """Announce ``az``, ``azure``, ``abfs`` and ``abfss``."""
    return (
        BackendSpec(
            name="azure",
            schemes=("az", "azure", "abfs", "abfss"),
            load=_load,
            distribution="forebay-azure",
            install_hint='pip install "forebay[azure]"',
            drivers=("obstore", "fsspec"),
        ),
    )
