"""Registers the backend, and does nothing else: what it needs is imported when a ``lake://`` URL is opened."""

from __future__ import annotations

from collections.abc import Iterable

from forebay import BackendSpec, Downloader, hookimpl


def load() -> type[Downloader]:
    from forebay_lake.downloader import LakeDownloader

    return LakeDownloader


@hookimpl
def forebay_register_backends() -> Iterable[BackendSpec]:
    return [BackendSpec(name="lake", schemes=("lake",), load=load, distribution="forebay-lake")]
