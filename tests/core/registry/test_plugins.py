"""Which installed plugin serves a URL, what the listing shows, and what each mistake says (S1-S7)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from servers.plugins import Plain, Site

import forebay
from forebay import _registry
from forebay._registry import _known, _state
from forebay.exceptions import (
    ConfigError,
    InvalidURLError,
    MissingDependencyError,
    PluginConflictError,
    PluginLoadError,
    UnknownSchemeError,
    UnsupportedFormatError,
)


def test_installed_plugin_serves_its_scheme(site: Site) -> None:
    site.backend("acme-lake", "acme_lake")
    opened = forebay.open_downloader("LAKE://bucket/p/")
    assert opened.download_bytes("k") == b"from acme-lake"
    assert opened.root == "lake://bucket/p"
    assert _registry.resolve("lake://b").backend.distribution == "acme-lake"


@pytest.mark.parametrize(
    "code",
    [
        "raise RuntimeError('broken on purpose')",
        "import sys; sys.exit('broken on purpose')",
        "import no_such_module_broken_on_purpose",
        "import forebay\n@forebay.hookimpl\ndef forebay_register_backends(): raise ValueError('broken on purpose')",
        "import forebay\n@forebay.hookimpl\ndef forebay_register_backends(): return ['broken on purpose']",
        "import forebay\n@forebay.hookimpl\ndef forebay_register_backend(): return []  # broken on purpose",
        "import forebay\n@forebay.hookimpl\ndef forebay_register_backends(wrong): return []  # broken on purpose",
        "def (broken on purpose",
    ],
    ids=["raises", "exits", "import", "hook", "spec", "unknown-hook", "signature", "syntax"],
)
def test_s2_broken_plugin_harms_only_its_own_scheme(site: Site, code: str) -> None:
    site.install("broken-lake", "broken_lake_plugin", code, entry="lake")
    site.backend("good-ocean", "good_ocean", ("ocean",), backend="ocean", entry="ocean")
    assert forebay.open_downloader("ocean://x").download_bytes("k") == b"from good-ocean"
    assert forebay.open_downloader("memory://x").root == "memory://x"
    for _ in range(2):
        with pytest.raises(PluginLoadError, match=r"broken-lake 1\.0") as caught:
            forebay.open_downloader("lake://x")
        assert (caught.value.distribution, caught.value.version) == ("broken-lake", "1.0")
        assert caught.value.__cause__ is not None
    with pytest.raises(UnknownSchemeError, match="broken-lake"):
        forebay.open_downloader("sea://x")
    rows = [row for row in _registry.plugins() if row.distribution == "broken-lake"]
    assert len(rows) == 1
    assert rows[0].scheme is None
    assert rows[0].error is not None


def test_s2_plugin_with_one_wrong_spec_brings_nothing(site: Site) -> None:
    site.backend("half-lake", "half_lake", ("lake", "not a scheme"))
    with pytest.raises(PluginLoadError, match="not a scheme"):
        forebay.open_downloader("lake://x")


def test_s1_two_claimants_are_an_error_that_a_setting_solves(site: Site, toml: Callable[[str], Path]) -> None:
    site.backend("one-lake", "one_lake")
    site.backend("two-lake", "two_lake")
    with pytest.raises(PluginConflictError, match=r"one-lake 1\.0 .*two-lake 1\.0 .*\[backends\] lake = \"one-lake\""):
        forebay.open_downloader("lake://x")
    errors = [row.error for row in _registry.plugins() if row.scheme == "lake"]
    assert len(errors) == 2
    assert all(error and "two-lake" in error for error in errors)
    toml('[backends]\nlake = "Two_Lake"\n')
    assert forebay.open_downloader("lake://x").download_bytes("k") == b"from two-lake"
    errors = [row.error for row in _registry.plugins() if row.scheme == "lake"]
    assert errors[0] is None
    assert "not used" in str(errors[1])
    path = toml('[backends]\nlake = "three-lake"\n')
    with pytest.raises(ConfigError, match="three-lake") as caught:
        forebay.open_downloader("lake://x")
    assert str(path) in str(caught.value)
    assert caught.value.option == "backends.lake"


def test_s1_built_in_scheme_is_claimed_like_any_other(site: Site, toml: Callable[[str], Path]) -> None:
    site.backend("other-memory", "other_memory", ("memory",), backend="memory")
    with pytest.raises(PluginConflictError, match=r"forebay .*other-memory"):
        forebay.open_downloader("memory://x")
    toml('[backends]\nmemory = "forebay"\n')
    assert type(forebay.open_downloader("memory://x")).__name__ == "MemoryDownloader"


def test_s3_distribution_found_twice_is_one(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.backend("acme-lake", "acme_lake")
    link = tmp_path / "lib64"
    link.symlink_to(site.folder)
    monkeypatch.syspath_prepend(str(link))
    site.describe("Acme.Lake", "acme_lake", entry="lake", version="0.9")  # left over by an upgrade
    site.describe("acme-lake-copy", "acme_lake", entry="lake")  # the same module under another name
    assert len([row for row in _registry.plugins() if row.scheme == "lake"]) == 1
    assert forebay.open_downloader("lake://x").download_bytes("k") == b"from acme-lake"


def test_s7_order_is_by_name_and_built_ins_come_first(site: Site) -> None:
    for dist in ("zeta-x", "alpha-x", "mid-x"):
        module = dist.replace("-", "_")
        site.backend(dist, module, (f"{dist[:-2]}",), backend=dist[:-2])
    ours = [claim.plugin.distribution for claim in _state.loaded().claims]
    assert ours[:2] == ["forebay", "forebay"]
    assert [dist for dist in ours if dist.endswith("-x")] == ["alpha-x", "mid-x", "zeta-x"]


def test_s4_missing_dependency_names_what_to_install(site: Site) -> None:
    site.backend("acme-lake", "acme_lake", body="import no_such_sdk")
    with pytest.raises(MissingDependencyError, match=r"acme-lake.*no_such_sdk.*pip install the-sdk") as caught:
        forebay.open_downloader("lake://x")
    assert isinstance(caught.value, ImportError)
    (row,) = [row for row in _registry.plugins() if row.scheme == "lake"]
    assert "no_such_sdk" in str(row.error)


@pytest.mark.parametrize("body", ["raise RuntimeError('broken')", "return str", "return None"])
def test_load_that_fails_otherwise_is_a_load_error(site: Site, body: str) -> None:
    site.backend("acme-lake", "acme_lake", body=body)
    with pytest.raises(PluginLoadError, match="acme-lake"):
        forebay.open_downloader("lake://x")


def test_plugin_that_registers_by_hand_while_it_is_imported(site: Site) -> None:
    code = """
        import forebay
        class Sea(forebay.Downloader):
            def download_fileobj(self, key, fileobj): fileobj.write(b"sea")
        forebay.register_downloader("sea", Sea)
    """
    site.install("acme-sea", "acme_sea", code, entry="sea")
    _state.loaded()
    assert forebay.open_downloader("sea://x").download_bytes("k") == b"sea"


def test_family_of_schemes(site: Site) -> None:
    site.backend("acme-any", "acme_any", ("any+*",), backend="any", entry="any")
    assert str(_registry.resolve("ANY+Ftp://h/x").url) == "any+ftp://h/x"
    for url in ("any://x", "anyx+ftp://x", "any+://x"):
        if url == "any+://x":
            assert _registry.resolve(url).backend.name == "any"
        else:
            with pytest.raises(UnknownSchemeError):
                _registry.resolve(url)


@pytest.mark.parametrize("url", ["memoryx://a", "xmemory://a", "profile://a", "files://a", "mem://a"])
def test_s6_near_miss_is_an_unknown_scheme(url: str) -> None:
    with pytest.raises(UnknownSchemeError, match=r"installed: (\S+, )*file, "):
        forebay.open_downloader(url)


def test_s4_unknown_scheme_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_known, "EXTRAS", {"lakes": ("lake", "pond+*")})
    for url in ("lake://h/x", "pond+deep://h/x"):
        with pytest.raises(UnknownSchemeError, match=r'pip install "forebay\[lakes\]"'):
            forebay.open_downloader(url)
    with pytest.raises(UnknownSchemeError, match="did you mean 'memory'"):
        forebay.open_downloader("memroy://x")


def test_s4_only_extras_that_exist_are_recommended() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "core" / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert set(_known.EXTRAS) == {
        name for name, needs in extras.items() if any(need.startswith("forebay-") for need in needs)
    }
    for scheme in ("s3", "gs", "az", "hf", "fsspec+sftp"):
        named = re.findall(r"forebay\[(.+?)\]", str(_known.unknown_scheme(scheme, [], [])))
        assert set(named) <= set(extras), f"{scheme}:// is told to install what does not exist"


def test_u1_no_error_shows_the_url_with_its_secrets() -> None:
    with pytest.raises(UnknownSchemeError) as caught:
        forebay.open_downloader("lake://user:s3cr3t@h/x?token=s3cr3t")
    assert "s3cr3t" not in str(caught.value)
    resolved = _registry.resolve("memory://u:s3cr3t@h", {"timeout": 5})
    assert "s3cr3t" not in repr(resolved)


def test_root_that_would_lose_a_part_of_the_key_is_refused() -> None:
    with pytest.raises(InvalidURLError, match="empty part"):
        forebay.open_downloader("memory://b/x//")


def test_listing_shows_every_scheme(site: Site, toml: Callable[[str], Path]) -> None:
    site.backend("acme-lake", "acme_lake", ("lake", "pond"))
    forebay.register_downloader("ocean", Plain)
    toml('[scheme.minio]\nbackend = "lake"\n')
    rows = {row.scheme: row for row in _registry.plugins() if row.error is None}
    assert {"file", "memory", "lake", "pond", "ocean", "minio"} <= set(rows)
    assert list(rows) == sorted(rows, key=str)
    lake = rows["pond"]
    assert (lake.backend, lake.distribution, lake.version, lake.driver) == ("lake", "acme-lake", "1.0", "python")
    assert rows["memory"].native_async
    assert not rows["file"].native_async
    assert rows["minio"].backend == "lake"


def test_listing_survives_a_probe_that_fails(site: Site) -> None:
    body = "Lake.probe_driver = classmethod(lambda cls, options: 1 / 0)"
    site.backend("acme-lake", "acme_lake", body=body)
    (row,) = [row for row in _registry.plugins() if row.scheme == "lake"]
    assert "ZeroDivisionError" in str(row.error)


def test_codecs_and_formats_by_name(site: Site) -> None:
    assert _registry.codec_by_name("zstd") in _registry.codecs()
    assert _registry.format_by_name("litdata") in _registry.formats()
    with pytest.raises(UnsupportedFormatError, match=r"'zstdd'.*installed: zstd"):
        _registry.codec_by_name("zstdd")
    with pytest.raises(UnsupportedFormatError, match=r"'Litdata'.*installed: litdata"):
        _registry.format_by_name("Litdata")
    code = """
        import forebay
        @forebay.hookimpl
        def forebay_register_codecs():
            return [forebay.CodecSpec(name="zstd", suffixes=(".z",), magic=b"z", load=object)]
    """
    site.install("acme-zstd", "acme_zstd", code, entry="zstd")
    with pytest.raises(PluginConflictError, match="acme-zstd"):
        _registry.codec_by_name("zstd")
