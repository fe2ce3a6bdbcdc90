"""The directory itself: what is refused, whose it is, and what works where nothing can be written."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.cache_actor import Actor, ActorError, body, digest_of, key, put

from forebay import ChunkCache
from forebay._cache import Cache, Ready, _platform, open_cache
from forebay._cache._layout import FINAL, TEMP, chunk_name
from forebay.exceptions import CacheCorruptError, CacheError, ConfigError

NOBODY = 65534


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter; pytest's own are private."""
    folder = Path(tempfile.mkdtemp())
    for part in (folder, folder.parent):
        part.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("bad", ["/", "/usr", "/etc", "/tmp", "~", "~/..", "{tmp}"])
def test_directories_in_which_other_things_live_are_refused(bad: str) -> None:
    """C9: before anything is made there; the message names a better one."""
    path = bad.format(tmp=tempfile.gettempdir())
    with pytest.raises(ConfigError, match="forebay-cache"):
        open_cache(path, max_bytes=100)
    assert not (Path(path).expanduser() / "FORMAT").exists()


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    """C6, C9, F5: a source directory, for example; nothing in it is touched."""
    (tmp_path / "index.json").write_text("{}")
    with pytest.raises(CacheError, match=r"not empty and not a cache \(it holds 'index.json'"):
        open_cache(tmp_path, max_bytes=100)
    assert [path.name for path in tmp_path.iterdir()] == ["index.json"]


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CacheError, match="cannot be a cache directory"):
        open_cache(tmp_path / "file", max_bytes=100)


def test_another_version_is_refused_and_named(directory: Path, cache: Cache) -> None:
    cache.close()
    (directory / "FORMAT").write_bytes(b"forebay-cache 7\n")
    with pytest.raises(CacheCorruptError, match="forebay-cache 7"):
        open_cache(directory, max_bytes=100)


@pytest.mark.parametrize("budget", [0, -1])
def test_a_budget_must_be_positive(directory: Path, budget: int) -> None:
    with pytest.raises(ConfigError, match="must be positive"):
        open_cache(directory, max_bytes=budget)


def test_windows_is_refused_with_the_remedy() -> None:
    with pytest.raises(CacheError, match="WSL"):
        _platform.refuse_platform("win32")
    _platform.refuse_platform("darwin")


def test_one_object_for_each_real_directory(directory: Path, cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(directory)
    again = open_cache(tmp_path / "link", max_bytes=None)
    assert again is cache
    again.close()
    assert cache.info().holders == 1


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_that_cannot_lock_is_refused_with_the_remedy(
    directory: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """E4: said when the cache is opened, not found out through a lost count."""

    def refuse(fd: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(CacheCorruptError, match=r"cannot lock files.*local disk.*FOREBAY_CACHE_DIR"):
        open_cache(directory, max_bytes=100)


def test_a_file_system_that_grants_a_lock_twice_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """E3: Lustre without its flock option says yes to everybody."""
    monkeypatch.setattr(fcntl, "flock", lambda fd, operation: None)
    with pytest.raises(CacheCorruptError, match="grants one lock twice"):
        open_cache(directory, max_bytes=100)


def test_the_default_directory_is_private(isolated_environment: Path) -> None:
    """F4: what one user cached is not for the others."""
    previous = os.umask(0)
    try:
        cache = open_cache(None, max_bytes=100)
    finally:
        os.umask(previous)
    assert cache.directory.is_relative_to(isolated_environment.resolve())
    assert stat.S_IMODE(cache.directory.stat().st_mode) == 0o700
    cache.close()


@pytest.mark.parametrize("umask", [0o002, 0o027])
def test_an_explicit_directory_follows_the_umask(tmp_path: Path, umask: int) -> None:
    """F3: with umask 002 a group shares it: every file and folder, the ledger and its log included."""
    previous = os.umask(umask)
    try:
        cache = open_cache(tmp_path / "shared", max_bytes=1000)
        put(cache, 1)
        cache.index_path("x").write_text("{}")
    finally:
        os.umask(previous)
    for path in (cache.directory, *cache.directory.rglob("*")):
        wanted = (0o777 if path.is_dir() else 0o666) & ~umask
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    cache.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_two_users_of_one_group_share_a_directory(open_folder: Path) -> None:
    """F3, F5: each sees the other's leases, and whether the other lives."""
    previous = os.umask(0)
    try:
        directory = open_folder / "cache"
        cache = open_cache(directory, max_bytes=1000)
        put(cache, 1)
        with Actor(directory, uid=NOBODY) as other:
            assert other.call("kind") == "SharedCache"
            assert other.call("acquire", chunk=1) == "Ready"
            other.call("put", chunk=2)
            assert cache.refcount(key(1).url) == 2
            other.kill()
        assert cache.refcount(key(1).url) == 1
        cache.close()
    finally:
        os.umask(previous)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize("log_left", [False, True])
def test_a_full_cache_that_may_only_be_read_is_read(open_folder: Path, log_left: bool) -> None:
    """F1, F2, F6: no bookkeeping, no ledger needed; what is not there is an error that says why."""
    directory = open_folder / "cache"
    cache = open_cache(directory, max_bytes=1000)
    put(cache, 1, lease=False)
    if not log_left:
        cache.close()
    before = sorted(path.name for path in directory.rglob("*"))
    with Actor(directory, uid=NOBODY) as reader:
        assert reader.call("kind") == "ReadOnlyCache"
        seen = reader.call("read", chunk=1)
        data = body(1, 100)[:100]
        assert seen["data"].encode("latin-1") == data
        assert seen["digest"] == (None if log_left else digest_of(data))
        assert not seen["trusted"]
        assert reader.call("harden", chunk=1)
        reader.call("release", chunk=1)
        with pytest.raises(ActorError, match=r"may only read there.*FOREBAY_CACHE_DIR"):
            reader.call("acquire", chunk=2)
        assert reader.call("info")["chunks"] == 1
        reader.call("close")
    assert sorted(path.name for path in directory.rglob("*")) == before
    cache.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_directory_that_can_be_neither_written_nor_read_is_refused(open_folder: Path) -> None:
    """F1: an empty directory of somebody else is no cache."""
    (open_folder / "mine").mkdir(mode=0o755)
    with pytest.raises(ActorError, match="cannot be written by this process and holds no cache"):
        Actor(open_folder / "mine" / "cache", uid=NOBODY)


def test_names_stay_inside_and_temporaries_cannot_be_mistaken(cache: Cache) -> None:
    """T4, U1: whatever a key holds, the name is ours, short, and shows no secret."""
    from dataclasses import replace

    seen = set()
    for identity in ("../../etc/passwd", "/abs", "a" * 5000, "\udcff", "https://h/x?sig=secret", ""):
        for suffix in ("", ".bin", ".tar.gz", "/../x", ".tmp", ".0123456789abcdef.tmp", "." + "x" * 40, ".a b"):
            name = chunk_name(replace(key(1), identity=identity, suffix=suffix))
            folder, _, file = name.partition("/")
            assert folder == "da7a"
            assert FINAL.fullmatch(file)
            assert not TEMP.fullmatch(file)
            assert "secret" not in name
            seen.add(file[:32])
    assert len(seen) == 6
    assert chunk_name(replace(key(1), suffix=".tar.gz")).endswith(".tar.gz")
    with pytest.raises(ConfigError, match="hexadecimal"):
        cache.acquire(replace(key(1), dataset="../x"), hard=True)


def test_chunkcache_is_the_public_face(directory: Path, cache: Cache) -> None:
    put(cache, 1)
    with ChunkCache(directory, max_bytes="2KiB") as public:
        assert public.info().max_bytes == 1000, "the smaller budget of this process rules"
        assert public.info().chunks == public.refcount(key(1).url) == 1
        assert public.verify() == []
        public.gc()
        with pytest.raises(CacheError, match="in use"):
            public.clear()
        assert repr(public) == f"ChunkCache({str(directory)!r})"
    public.close()
    with pytest.raises(ConfigError):
        ChunkCache(directory, max_bytes="many")


def test_an_index_has_a_place_beside_the_chunks(directory: Path, cache: Cache) -> None:
    first, second = cache.index_path("one"), cache.index_path("two?token=secret")
    assert first != second
    assert first.parent == second.parent == directory / "indexes"
    first.write_text("{}" * 1000)
    assert cache.info().bytes == 0
    assert cache.index_path("one") == first
    assert isinstance(put(cache, 1), Ready)
