"""Which class serves which URL, codec and dataset layout. The only place that touches pluggy, with hookspecs."""

from __future__ import annotations

from forebay._registry._listing import (
    PluginInfo,
    codec_by_name,
    codecs,
    format_by_name,
    formats,
    plugins,
)
from forebay._registry._resolve import EXPLICIT, Resolved, make, open_downloader, resolve
from forebay._registry._state import (
    in_process_registrations,
    register_downloader,
    restore_registrations,
    unregister_downloader,
)

__all__ = [
    "EXPLICIT",
    "PluginInfo",
    "Resolved",
    "codec_by_name",
    "codecs",
    "format_by_name",
    "formats",
    "in_process_registrations",
    "make",
    "open_downloader",
    "plugins",
    "register_downloader",
    "resolve",
    "restore_registrations",
    "unregister_downloader",
]
