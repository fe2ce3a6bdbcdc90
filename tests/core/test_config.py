"""Settings: found where the docs say, checked by name and type, and an error names the file and the key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from servers.forked import check_own_after_fork

from forebay import _config
from forebay._config import (
    default_cache_dir,
    eviction,
    format_size,
    load_settings,
    parse_size,
    prefetch_floor,
    prefetch_override,
    wait_timeout,
)
from forebay.exceptions import ConfigError


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FOREBAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work" / "deep")


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (0, 0),
        (4096, 4096),
        ("8192", 8192),
        ("1_000", 1000),
        ("64MB", 64_000_000),
        ("200GiB", 200 << 30),
        (" 1.5 GiB ", 3 << 29),
        ("8mib", 8 << 20),
        ("7B", 7),
        ("1TB", 10**12),
    ],
)
def test_sizes(value: int | str, size: int) -> None:
    assert parse_size(value) == size


@pytest.mark.parametrize("value", ["", "GiB", "64M", "8 bananas", "-1", -2, "1.5", 2.5, None, True, "1e9", "nan"])
def test_a_size_that_could_mean_two_things_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="here"):
        parse_size(value, option="max_bytes", origin="here")  # type: ignore[arg-type]


def test_sizes_for_people() -> None:
    assert [format_size(n) for n in (0, 17, 1023, 1024, 1536, 64 << 20, (1 << 20) - 1, 3 << 29, 1 << 60)] == [
        "0 B",
        "17 B",
        "1023 B",
        "1 KiB",
        "1.5 KiB",
        "64 MiB",
        "1 MiB",
        "1.5 GiB",
        "1024 PiB",
    ]


GOOD = """
[scheme.minio]
backend = "s3"
endpoint_url = "http://127.0.0.1:9000"
anonymous = true
[cache]
dir = "chunks"
max_bytes = "200GiB"
[backends]
s3 = "forebay-s3"
"""


def test_file_is_found_upwards_and_read(tmp_path: Path) -> None:
    (tmp_path / "forebay.toml").write_text(GOOD)
    settings = load_settings()
    assert settings.source == tmp_path / "forebay.toml"
    alias = settings.aliases["minio"]
    assert alias.backend == "s3"
    assert alias.options == {"endpoint_url": "http://127.0.0.1:9000", "anonymous": True}
    assert settings.cache_dir == tmp_path / "chunks"  # relative to the file, not to where somebody stands
    assert settings.max_cache_bytes == 200 << 30
    assert settings.backends == {"s3": "forebay-s3"}


def test_nearest_file_wins_and_is_read_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config" / "forebay").mkdir(parents=True)
    user = tmp_path / "config" / "forebay" / "forebay.toml"
    user.write_text('[cache]\ndir = "/user"\n')
    assert load_settings().cache_dir == Path("/user")
    (tmp_path / "forebay.toml").write_text('[cache]\ndir = "/upper"\n')
    assert load_settings().cache_dir == Path("/upper")
    (tmp_path / "work" / "forebay.toml").write_text('[cache]\ndir = "/near"\n')
    assert load_settings().cache_dir == Path("/near")
    (tmp_path / "work" / "forebay.toml").write_text('[cache]\ndir = "/changed"\n')
    assert load_settings().cache_dir == Path("/changed")
    monkeypatch.setenv("FOREBAY_CONFIG", str(user))
    assert load_settings().cache_dir == Path("/user")


def test_no_file_is_no_settings() -> None:
    settings = load_settings()
    assert settings.source is None
    assert not settings.aliases


@pytest.mark.parametrize(
    ("text", "key", "word"),
    [
        ("[cache\n", None, "TOML"),
        ("[cachee]\n", "cachee", "did you mean 'cache'"),
        ("[cache]\ndirr = 'x'\n", "cache.dirr", "did you mean 'dir'"),
        ("[cache]\ndir = 5\n", "cache.dir", "must be a text"),
        ("[cache]\ndir = ''\n", "cache.dir", "empty"),
        ("[cache]\nmax_bytes = '64M'\n", "cache.max_bytes", "size"),
        ("[cache]\nmax_bytes = true\n", "cache.max_bytes", "size"),
        ("[cache]\neviction = 'mru'\n", "cache.eviction", "clairvoyant or lru"),
        ("cache = 5\n", "cache", "table"),
        ("[scheme]\nminio = 's3'\n", "scheme.minio", "table"),
        ("[scheme.minio]\nbackend = 5\n", "scheme.minio.backend", "must be a text"),
        ("[scheme.my_lake]\nbackend = 's3'\n", "scheme.my_lake", "no URL scheme"),
        ("[scheme.lake]\n[scheme.LAKE]\n", "scheme.LAKE", "twice"),
        ("[backends]\ns3 = 5\n", "backends.s3", "must be a text"),
        ("backends = []\n", "backends", "table"),
    ],
)
def test_m12_mistake_in_the_file_names_file_and_key(tmp_path: Path, text: str, key: str | None, word: str) -> None:
    path = tmp_path / "forebay.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=word) as caught:
        load_settings()
    assert str(path) in str(caught.value)
    assert caught.value.origin == str(path)
    assert caught.value.option == key


def test_file_in_another_encoding_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "forebay.toml").write_bytes(b"[cache]\ndir = '\xff'\n")
    with pytest.raises(ConfigError, match=r"forebay\.toml"):
        load_settings()


def test_named_file_that_is_missing_or_a_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "absent.toml", tmp_path):
        monkeypatch.setenv("FOREBAY_CONFIG", str(path))
        with pytest.raises(ConfigError, match=str(path)):
            load_settings()


def test_working_directory_that_was_removed_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load_settings().source is None


def test_m3_cache_directory_by_strength(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_cache_dir() == tmp_path / "cache" / "forebay"
    (tmp_path / "forebay.toml").write_text('[cache]\ndir = "~/chunks"\n')
    assert default_cache_dir() == tmp_path / "home" / "chunks"
    monkeypatch.setenv("FOREBAY_CACHE_DIR", "/nvme")
    assert default_cache_dir() == Path("/nvme")


def test_prefetch_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prefetch_override() is None
    assert prefetch_floor() == 4
    for text, value in (("on", True), ("Auto", True), ("0", False), ("off", False), ("7", 7), ("", None)):
        monkeypatch.setenv("FOREBAY_PREFETCH", text)
        assert prefetch_override() == value
        assert isinstance(prefetch_override(), type(value))
    monkeypatch.setenv("FOREBAY_PREFETCH_MIN", "0")
    assert prefetch_floor() == 0
    for text in ("-1", "many", "1.5", "²"):
        monkeypatch.setenv("FOREBAY_PREFETCH", text)
        with pytest.raises(ConfigError, match="FOREBAY_PREFETCH"):
            prefetch_override()


def test_wait_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wait_timeout() == 300
    monkeypatch.setenv("FOREBAY_WAIT_TIMEOUT", "2.5")
    assert wait_timeout() == 2.5
    for text in ("0", "-1", "inf", "nan", "soon"):
        monkeypatch.setenv("FOREBAY_WAIT_TIMEOUT", text)
        with pytest.raises(ConfigError, match="FOREBAY_WAIT_TIMEOUT"):
            wait_timeout()


def test_eviction_by_strength(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert eviction() == "clairvoyant"
    (tmp_path / "forebay.toml").write_text('[cache]\neviction = "lru"\n')
    assert eviction() == "lru"
    monkeypatch.setenv("FOREBAY_EVICTION", "Clairvoyant")
    assert eviction() == "clairvoyant"
    monkeypatch.setenv("FOREBAY_EVICTION", "clairvoyent")
    with pytest.raises(ConfigError, match=r"FOREBAY_EVICTION.*did you mean 'clairvoyant'"):
        eviction()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_n10_forked_children_do_not_share_randomness() -> None:
    check_own_after_fork("forebay._config", "random")


def test_what_differs_from_what_was_asked_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for text in ("log once: 1 % raised", "log once: 1 % raised", "log once: other"):
        _config.log_once(text)
    assert caplog.messages == ["log once: 1 % raised", "log once: other"]
