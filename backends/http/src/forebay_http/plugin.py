"""Registers the http backend, and does nothing else: aiohttp and obstore are imported when a URL is opened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from forebay.hookspecs import hookimpl
from forebay.types import BackendSpec

if TYPE_CHECKING:
    from forebay.downloader import Downloader

__all__ = ["forebay_register_backends"]


def _load() -> type[Downloader]:
    from forebay_http._downloader import HttpDownloader

    return HttpDownloader


@hookimpl
def forebay_register_backends() -> Iterable[BackendSpec]:
    """Announce ``http`` and ``https``."""
    return (
        BackendSpec(
            name="http",
            schemes=("http", "https"),
            load=_load,
            distribution="forebay-http",
            install_hint='pip install "forebay[http]"',
            drivers=("obstore", "fsspec"),
        ),
    )
