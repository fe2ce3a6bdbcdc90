"""Which options a backend gets and from where: the caller, ``forebay.toml``, the environment (M3, M10, M12)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from servers.plugins import Plain, Site, Typed

import forebay
from forebay import _registry
from forebay.exceptions import (
    ConfigError,
    PluginLoadError,
)


def test_m3_options_by_strength_with_their_origin(toml: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    forebay.register_downloader("ocean", Typed)
    path = toml(
        """
        [scheme.minio]
        backend = "ocean"
        region = "alias"
        endpoint_url = "alias"
        """
    )
    for name in ("region", "endpoint_url", "retries"):
        monkeypatch.setenv(f"FOREBAY_OCEAN_{name.upper()}", "7")
    resolved = _registry.resolve("MinIO://b/k?x#y", {"region": "explicit", "anonymous": None})
    assert str(resolved.url) == "ocean://b/k?x#y"
    assert resolved.options == {"region": "explicit", "endpoint_url": "alias", "retries": 7}
    assert resolved.origins == {
        "region": "options=",
        "endpoint_url": f"[scheme.minio] in {path}",
        "retries": "FOREBAY_OCEAN_RETRIES",
    }
    assert _registry.resolve("ocean://b").options == {"region": "7", "endpoint_url": "7", "retries": 7}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("ANONYMOUS", "Yes", True),
        ("ANONYMOUS", "0", False),
        ("RETRIES", "12", 12),
        ("HEADERS", '{"X-A": "b"}', {"X-A": "b"}),
        ("TIMEOUT", "2.5", 2.5),
        ("PART_SIZE", "8MiB", 8 << 20),
    ],
)
def test_environment_is_typed(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object) -> None:
    forebay.register_downloader("ocean", Typed)
    monkeypatch.setenv(f"FOREBAY_OCEAN_{name}", text)
    assert _registry.resolve("ocean://x").options == {name.lower(): value}
    monkeypatch.setenv(f"FOREBAY_OCEAN_{name}", "")
    assert _registry.resolve("ocean://x").options == {}


@pytest.mark.parametrize("name", ["ANONYMOUS", "RETRIES", "HEADERS", "TIMEOUT", "PART_SIZE"])
def test_wrong_text_in_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    forebay.register_downloader("ocean", Typed)
    monkeypatch.setenv(f"FOREBAY_OCEAN_{name}", "s3cr3t")
    with pytest.raises(ConfigError, match=f"FOREBAY_OCEAN_{name}") as caught:
        _registry.resolve("ocean://x")
    assert "s3cr3t" not in str(caught.value)


def test_m12_unknown_option_is_an_error_wherever_it_stands(
    toml: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    forebay.register_downloader("ocean", Typed)
    with pytest.raises(ConfigError, match=r"'regoin'.*options=.*did you mean 'region'") as caught:
        _registry.resolve("ocean://x", {"regoin": "s3cr3t"})
    assert (caught.value.option, caught.value.origin) == ("regoin", "options=")
    assert "s3cr3t" not in str(caught.value)
    monkeypatch.setenv("FOREBAY_OCEAN_REGOIN", "x")
    with pytest.raises(ConfigError, match="FOREBAY_OCEAN_REGOIN"):
        _registry.resolve("ocean://x")
    monkeypatch.delenv("FOREBAY_OCEAN_REGOIN")
    path = toml('[scheme.ocean]\nregoin = "x"\n')
    with pytest.raises(ConfigError, match=r"\[scheme\.ocean\].*did you mean 'region'") as caught:
        _registry.resolve("ocean://x")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"region": 5},
        {"anonymous": "true"},
        {"anonymous": 1},
        {"retries": True},
        {"retries": 1.5},
        {"timeout": "soon"},
        {"timeout": float("nan")},
        {"headers": [("a", "b")]},
        {"part_size": "8 bananas"},
        {5: "x"},
        {"backend": 5},
        ["region"],
    ],
    ids=str,
)
def test_option_of_another_type_is_an_error(options: object) -> None:
    forebay.register_downloader("ocean", Typed)
    with pytest.raises(ConfigError):
        _registry.resolve("ocean://x", options)  # type: ignore[arg-type]


@pytest.mark.parametrize("types", [["token"], {"token": "str"}, {5: str}, {"": str}, {"token": list}, "token"], ids=str)
def test_option_types_that_cannot_be_used_are_refused_at_once(site: Site, types: object) -> None:
    broken = type("Broken", (Plain,), {"option_types": types})
    with pytest.raises(ConfigError, match=r"Broken cannot serve ocean://: option_types"):
        forebay.register_downloader("ocean", broken)
    assert "ocean" not in _registry.in_process_registrations()
    site.backend("acme-lake", "acme_lake", types='{"token": list}')
    with pytest.raises(PluginLoadError, match=r"backend 'lake' of acme-lake.*option_types gives 'token'"):
        forebay.open_downloader("lake://x")


def test_m10_options_are_the_downloaders_own() -> None:
    forebay.register_downloader("ocean", Typed)
    headers = {"X-A": "1"}
    options: dict[str, object] = {"headers": headers}
    one = forebay.open_downloader("ocean://x", options=options)
    two = forebay.open_downloader("ocean://x", options=options)
    inner = one.options["headers"]
    assert isinstance(inner, dict)
    inner["X-A"] = "2"
    options["region"] = "late"
    assert headers == two.options["headers"] == {"X-A": "1"}
    assert "region" not in two.options
    resolved = _registry.resolve("ocean://x", options)
    first = _registry.make(resolved, "ocean://x").options["headers"]
    assert isinstance(first, dict)
    first.clear()
    assert resolved.options["headers"] == headers


def test_m10_variable_of_a_backend_with_a_longer_name_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    forebay.register_downloader("ocean", Typed)
    forebay.register_downloader("ocean-deep", Typed)
    monkeypatch.setenv("FOREBAY_OCEAN_DEEP_REGION", "deep")
    assert _registry.resolve("ocean://x").options == {}
    assert _registry.resolve("ocean-deep://x").options == {"region": "deep"}


def test_own_variables_are_no_options_of_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    forebay.register_downloader("cache", Typed)
    monkeypatch.setenv("FOREBAY_CACHE_DIR", "/x")
    assert _registry.resolve("cache://x").options == {}
