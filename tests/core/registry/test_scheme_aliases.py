"""Schemes of one's own in ``forebay.toml``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from servers.plugins import Plain, Site

import forebay
from forebay import _registry
from forebay.exceptions import (
    ConfigError,
    InvalidURLError,
    PluginConflictError,
    UnknownSchemeError,
)


def test_alias_without_backend_gives_defaults(toml: Callable[[str], Path]) -> None:
    toml("[scheme.memory]\ntimeout = 9\n")
    assert _registry.resolve("memory://x").options == {"timeout": 9.0}
    assert _registry.resolve("memory://x", {"timeout": 1}).options == {"timeout": 1.0}


def test_alias_for_nothing_names_file_and_remedy(toml: Callable[[str], Path]) -> None:
    path = toml('[scheme.minio]\nbackend = "s4"\n[scheme.lake]\nbackend = "memroy"\n')
    with pytest.raises(ConfigError, match="'s4'") as caught:
        _registry.resolve("minio://x")
    assert str(path) in str(caught.value)
    with pytest.raises(ConfigError, match="did you mean 'memory'"):
        _registry.resolve("lake://x")


def test_alias_and_registration_of_one_scheme_is_an_error(toml: Callable[[str], Path]) -> None:
    forebay.register_downloader("ocean", Plain)
    toml('[scheme.ocean]\nbackend = "memory"\n')
    with pytest.raises(PluginConflictError, match=r"registered in this process.*alias"):
        _registry.resolve("ocean://x")


@pytest.mark.parametrize("table", ["[scheme.safe]", '[scheme.safe]\nbackend = "Safe"'])
def test_alias_that_names_no_other_backend_says_what_is_missing(toml: Callable[[str], Path], table: str) -> None:
    path = toml(f"{table}\ntimeout = 9\n")
    with pytest.raises(UnknownSchemeError) as caught:
        _registry.resolve("safe://x")
    assert f"[scheme.safe] in {path}" in str(caught.value)
    assert "backend = 'http'" in str(caught.value)
    installed = str(caught.value).partition("(installed: ")[2]
    assert "safe" not in installed, "what cannot be opened is not installed"
    row = next(row for row in _registry.plugins() if row.scheme == "safe")
    assert row.error == str(caught.value)


def test_alias_that_hides_a_scheme_is_named_where_it_matters(site: Site, toml: Callable[[str], Path]) -> None:
    site.backend("acme-lake", "acme_lake")
    path = toml('[scheme.file]\nbackend = "lake"\n')
    with pytest.raises(InvalidURLError, match="local path") as caught:
        _registry.resolve("/data/x")
    assert f"[scheme.file] in {path}" in str(caught.value)
    (row,) = (row for row in _registry.plugins() if row.scheme == "file")
    assert (row.backend, row.distribution, row.error) == ("lake", "acme-lake", None)
    assert row.note is not None
    assert str(path) in row.note
    assert "in place of forebay" in row.note


@pytest.mark.parametrize("table", ['[scheme.https]\nbackend = "http"\n', "[scheme.http]\ntimeout = 9\n"])
def test_no_scheme_is_listed_twice(toml: Callable[[str], Path], table: str) -> None:
    toml(table)
    schemes = [row.scheme for row in _registry.plugins()]
    assert sorted(set(schemes), key=str) == sorted(schemes, key=str)
    assert {row.driver for row in _registry.plugins() if row.scheme in ("http", "https")} == {"obstore"}


def test_listing_shows_an_alias_that_leads_nowhere(toml: Callable[[str], Path]) -> None:
    path = toml('[scheme.minio]\nbackend = "memroy"\n')
    (row,) = (row for row in _registry.plugins() if row.scheme == "minio")
    assert row.error is not None
    assert str(path) in row.error
    assert "did you mean 'memory'" in row.error


def test_https_url_goes_to_another_backend_only_when_told(
    site: Site, toml: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.backend("acme-cloud", "acme_cloud", ("cloud", "cloud2"), backend="cloudy", entry="cloudy")
    url = "https://account.example/container/k?sv=1"
    toml("[scheme.https]\ntimeout = 9\n")
    resolved = _registry.resolve(url, {"backend": "Cloudy"})
    assert resolved.backend.name == "cloudy"
    assert str(resolved.url) == url
    assert resolved.options == {}  # the https defaults are not the other backend's
    assert str(_registry.resolve("x-y://b/k", {"backend": "cloudy"}).url) == "cloud://b/k"
    assert str(_registry.resolve("x-y://b/k", {"backend": "cloud2"}).url) == "cloud2://b/k"
    with pytest.raises(InvalidURLError, match="local path"):
        _registry.resolve("/data/x", {"backend": "cloudy"})
    with pytest.raises(ConfigError, match="no backend 'cloudx'"):
        _registry.resolve(url, {"backend": "cloudx"})
