"""Classes that are registered in this process (S5)."""

from __future__ import annotations

import pickle

import pytest
from servers.plugins import Plain, Typed

import forebay
from forebay import _registry
from forebay.exceptions import (
    ConfigError,
    PluginConflictError,
    UnknownSchemeError,
)


def test_s5_class_registered_by_hand() -> None:
    forebay.register_downloader("Ocean", Plain)
    opened = forebay.open_downloader("oCEAN://x/y", options={"anything": 1})
    assert type(opened) is Plain
    assert opened.options == {"anything": 1}
    resolved = _registry.resolve("ocean://x")
    assert resolved.remote
    assert pickle.loads(pickle.dumps(resolved)).backend.load() is Plain
    with pytest.raises(PluginConflictError, match=r"Plain, registered in this process.*overwrite=True"):
        forebay.register_downloader("ocean", Typed)
    forebay.register_downloader("ocean", Typed, overwrite=True)
    assert _registry.resolve("ocean://x").cls is Typed
    forebay.unregister_downloader("OCEAN")
    with pytest.raises(UnknownSchemeError):
        _registry.resolve("ocean://x")
    with pytest.raises(ConfigError):
        forebay.unregister_downloader("ocean")


def test_s5_plugin_scheme_is_taken_only_on_purpose() -> None:
    with pytest.raises(PluginConflictError, match="served by forebay"):
        forebay.register_downloader("memory", Plain)
    forebay.register_downloader("memory", Plain, overwrite=True)
    assert type(forebay.open_downloader("memory://x")) is Plain
    (built_in,) = [row for row in _registry.plugins() if row.scheme == "memory" and row.distribution]
    assert "replaced" in str(built_in.error)
    forebay.unregister_downloader("memory")
    assert type(forebay.open_downloader("memory://x")) is not Plain


def test_registrations_travel() -> None:
    forebay.register_downloader("ocean", Plain)
    mapping = pickle.loads(pickle.dumps(_registry.in_process_registrations()))
    forebay.unregister_downloader("ocean")
    _registry.restore_registrations(mapping)
    assert _registry.resolve("ocean://x").cls is Plain


@pytest.mark.parametrize("scheme", ["", "d", "a b", "my_lake", "9p", "s3://"])
def test_what_is_no_scheme_cannot_be_registered(scheme: str) -> None:
    with pytest.raises(ConfigError, match="no URL scheme"):
        forebay.register_downloader(scheme, Plain)


def test_what_is_no_downloader_cannot_be_registered() -> None:
    class Unfinished(forebay.Downloader):
        pass

    for cls in (str, Plain("lake://x"), None):
        with pytest.raises(TypeError, match="Downloader"):
            forebay.register_downloader("lake", cls)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="download_fileobj"):
        forebay.register_downloader("lake", Unfinished)  # type: ignore[type-abstract]
