"""The Google Cloud Storage backend of Forebay: schemes ``gs`` and ``gcs``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay_gcs._downloader import GcsDownloader

__all__ = ["GcsDownloader"]


def __getattr__(name: str) -> Any:
    if name == "GcsDownloader":
        from forebay_gcs._downloader import GcsDownloader

        return GcsDownloader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
