"""Which class serves a URL, with which options, and what each mistake says. Plugins are real distributions."""

from __future__ import annotations

import os
import pickle
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import ClassVar

import pytest

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

BACKEND = """
    import sys
    import forebay
    from forebay.types import BackendSpec

    class Lake(forebay.Downloader):
        option_types = {types}
        def download_fileobj(self, key, fileobj):
            fileobj.write(b"from {name}")

    def load():
        {body}
        return Lake

    @forebay.hookimpl
    def forebay_register_backends():
        return [BackendSpec(name="{backend}", schemes={schemes}, load=load, install_hint="pip install the-sdk")]
"""


class Site:
    """A folder on sys.path where plugins are installed the way an installer does it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, dist: str, module: str, code: str, *, entry: str = "lake", version: str = "1.0") -> None:
        (self.folder / f"{module}.py").write_text(dedent(code))
        self.describe(dist, module, entry=entry, version=version)

    def describe(self, dist: str, module: str, *, entry: str, version: str = "1.0") -> None:
        info = self.folder / f"{dist.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[forebay]\n{entry} = {module}\n")
        _state.reset()

    def backend(
        self,
        dist: str,
        module: str,
        schemes: tuple[str, ...] = ("lake",),
        *,
        backend: str = "lake",
        types: str = "None",
        body: str = "pass",
        entry: str = "lake",
    ) -> None:
        code = BACKEND.format(name=dist, schemes=schemes, backend=backend, types=types, body=body)
        self.install(dist, module, code, entry=entry)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield Site(folder)
    for name in [name for name, module in sys.modules.items() if _lies_in(module, tmp_path)]:
        del sys.modules[name]
    _state.reset()


def _lies_in(module: object, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).is_relative_to(folder)


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("FOREBAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    before = _registry.in_process_registrations()
    yield
    for scheme in set(_registry.in_process_registrations()) - set(before):
        forebay.unregister_downloader(scheme)


@pytest.fixture
def toml(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "work" / "forebay.toml"
        path.write_text(dedent(text))
        return path

    return write


class Typed(forebay.Downloader):
    option_types: ClassVar = {
        "region": str,
        "anonymous": bool,
        "headers": dict,
        "endpoint_url": str,
        "retries": int,
        "credentials": object,
    }

    def download_fileobj(self, key: str, fileobj: object) -> None: ...


class Plain(forebay.Downloader):
    def download_fileobj(self, key: str, fileobj: object) -> None: ...


# --- plugins -------------------------------------------------------------------------------------------------------


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


# --- schemes -------------------------------------------------------------------------------------------------------


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
    project = tomllib.loads((Path(__file__).parents[2] / "core" / "pyproject.toml").read_text())["project"]
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


# --- by hand -------------------------------------------------------------------------------------------------------


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


# --- options -------------------------------------------------------------------------------------------------------


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


# --- aliases -------------------------------------------------------------------------------------------------------


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


# --- listing, codecs, formats --------------------------------------------------------------------------------------


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
