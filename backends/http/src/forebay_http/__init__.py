"""The http and https backend of Forebay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay_http._downloader import HttpDownloader

__all__ = ["HttpDownloader"]


def __getattr__(name: str) -> Any:
    if name == "HttpDownloader":
        from forebay_http._downloader import HttpDownloader

        return HttpDownloader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
