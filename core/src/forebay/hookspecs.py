"""The hooks that a plugin may implement; pluggy project and entry-point group are both called ``forebay``."""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from forebay.types import BackendSpec, CodecSpec, FormatSpec

__all__ = ["forebay_register_backends", "forebay_register_codecs", "forebay_register_formats", "hookimpl", "hookspec"]

hookspec = pluggy.HookspecMarker("forebay")
hookimpl = pluggy.HookimplMarker("forebay")


@hookspec
def forebay_register_backends() -> Iterable[BackendSpec]:
    """Return the backends that the plugin brings. Called once, before the first URL is opened; imports no SDK."""
    return ()


@hookspec
def forebay_register_codecs() -> Iterable[CodecSpec]:
    """Return the decompressors that the plugin brings."""
    return ()


@hookspec
def forebay_register_formats() -> Iterable[FormatSpec]:
    """Return the dataset layouts that the plugin brings."""
    return ()
