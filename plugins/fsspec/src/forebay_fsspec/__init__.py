"""Forebay over fsspec's file systems, and fsspec over Forebay's cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay_fsspec._downloader import FsspecDownloader
    from forebay_fsspec._filesystem import ForebayFileSystem

__all__ = ["ForebayFileSystem", "FsspecDownloader"]

_HOMES = {"ForebayFileSystem": "_filesystem", "FsspecDownloader": "_downloader"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"forebay_fsspec.{_HOMES[name]}"), name)
