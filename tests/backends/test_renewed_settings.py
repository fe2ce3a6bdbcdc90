"""What the environment and the profiles say is read again after a refusal, in the same process (L5, C8)."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers.datasets import expected_items, put_dataset
from servers.moto import Moto

import forebay
from forebay import _downloaders
from forebay.exceptions import AccessDeniedError, AuthenticationError
from forebay.testing import Fault, FaultServer
from forebay_fsspec import ForebayFileSystem

pytestmark = pytest.mark.slow

DATA = b"0123456789"
Write = Callable[[Moto, bool], None]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """What stays open until the process ends is closed with the test."""
    yield
    _downloaders._close_downloaders()


@pytest.fixture(params=["variables", "profile", "forebay's variables"])
def write(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the right keys, or wrong ones, where people keep them."""
    profile = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))

    def put(moto: Moto, right: bool) -> None:
        secret = moto.secret if right else "wrong-secret-0123456789"
        if request.param == "profile":
            profile.write_text(f"[default]\naws_access_key_id = {moto.key}\naws_secret_access_key = {secret}\n")
            return
        prefix = "AWS_" if request.param == "variables" else "FOREBAY_S3_"
        monkeypatch.setenv(f"{prefix}ACCESS_KEY_ID", moto.key)
        monkeypatch.setenv(f"{prefix}SECRET_ACCESS_KEY", secret)

    return put


def options(moto: Moto, driver: str) -> dict[str, object]:
    """All but who asks."""
    who = ("access_key_id", "secret_access_key")
    return {**{name: value for name, value in moto.options.items() if name not in who}, "driver": driver}


def fetched(url: str, cache: Path, given: dict[str, object]) -> bytes:
    path = forebay.fetch(url, cache_dir=cache, options=given)
    try:
        return path.read_bytes()
    finally:
        forebay.release(path)


@pytest.mark.parametrize("driver", ["obstore", "fsspec"])
def test_keys_that_were_corrected_are_the_ones_of_the_next_call(
    moto: Moto, tmp_path: Path, write: Write, driver: str
) -> None:
    """L5: the client with the wrong ones is not used again, whoever asks."""
    moto.put("renewed/key.bin", DATA)
    put_dataset(moto, tmp_path, prefix="renewed/")
    url, given, cache = f"{moto.url}/renewed", options(moto, driver), tmp_path / "cache"
    fs = ForebayFileSystem(options=given, skip_instance_cache=True)

    def afetched() -> bool:
        path = asyncio.run(forebay.afetch(f"{url}/key.bin", cache_dir=tmp_path / "other", options=given))
        forebay.release(path)
        return True

    calls: dict[str, Callable[[], object]] = {
        "fetch": lambda: fetched(f"{url}/key.bin", cache, given) == DATA,
        "afetch": afetched,
        "info": lambda: fs.info(f"forebay://{url}/key.bin")["size"] == len(DATA),
        "ls": lambda: len(fs.ls(f"forebay://{url}", detail=False)) > 1,
    }
    for call in calls.values():
        write(moto, False)
        with pytest.raises(AuthenticationError):
            call()
        write(moto, True)
        assert call()
        for downloader in list(_downloaders._kept.values()):
            _downloaders.retire_downloader(downloader)

    write(moto, False)
    with pytest.raises(AuthenticationError):
        forebay.open_dataset(url, cache_dir=cache, options=given)
    write(moto, True)
    with forebay.open_dataset(url, cache_dir=cache, options=given) as dataset:
        assert list(dataset) == expected_items()


def test_a_cached_object_is_compared_with_the_store_by_the_new_keys(
    moto: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look whether a cached copy is still the store's one is refused like any other request."""
    from forebay import _fetch

    moto.put("renewed-look.bin", DATA)
    url, given = f"{moto.url}/renewed-look.bin", options(moto, "obstore")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", moto.key)
    for secret, refused in ((moto.secret, False), ("wrong-secret-0123456789", True), (moto.secret, False)):
        _fetch._validated.clear()
        if refused:
            _downloaders.retire_downloader(next(reversed(_downloaders._kept.values())))
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        if refused:
            with pytest.raises((AuthenticationError, AccessDeniedError)):
                fetched(url, tmp_path, given)
        else:
            assert fetched(url, tmp_path, given) == DATA


def test_another_store_of_the_environment_is_asked_and_cached_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C8: what one store has is never taken for the other's, also where the downloader of the first is still open."""
    with FaultServer() as one, FaultServer() as two:
        for server, data in ((one, b"first"), (two, b"second")):
            server.put("bucket/key.bin", data)
            monkeypatch.setenv("AWS_ENDPOINT_URL", server.url())
            assert fetched("s3://bucket/key.bin", tmp_path, {"anonymous": True}) == data
        monkeypatch.setenv("AWS_ENDPOINT_URL", one.url())
        assert fetched("s3://bucket/key.bin", tmp_path, {"anonymous": True}) == b"first"


def test_refusals_keep_no_more_downloaders_than_a_few(tmp_path: Path) -> None:
    """K: somebody who asks again and again for what is denied has as many connections in the end as at the start."""
    with FaultServer() as server:
        server.script(None, Fault(status=403), times=None)
        given = {"endpoint_url": server.url(), "anonymous": True}
        for _ in range(3 * _downloaders.MAX_DOWNLOADERS):
            with pytest.raises(AccessDeniedError):
                fetched("s3://bucket/key.bin", tmp_path, given)
        assert len(_downloaders._retired) <= _downloaders.MAX_DOWNLOADERS
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) < 400
