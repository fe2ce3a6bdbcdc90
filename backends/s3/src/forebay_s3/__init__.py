"""The s3 backend of Forebay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay_s3._downloader import S3Downloader

__all__ = ["S3Downloader"]


def __getattr__(name: str) -> Any:
    if name == "S3Downloader":
        from forebay_s3._downloader import S3Downloader

        return S3Downloader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
