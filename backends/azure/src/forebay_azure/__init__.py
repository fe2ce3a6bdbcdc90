"""The Azure Blob Storage backend of Forebay: schemes ``az``, ``azure``, ``abfs`` and ``abfss``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay_azure._downloader import AzureDownloader

__all__ = ["AzureDownloader"]


def __getattr__(name: str) -> Any:
    if name == "AzureDownloader":
        from forebay_azure._downloader import AzureDownloader

        return AzureDownloader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
