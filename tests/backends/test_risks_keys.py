"""Risks of keys, seen through the cache: three clouds, two drivers each, own bytes for every name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unicodedata import normalize

import pytest
from servers.azurite import Azurite
from servers.fakegcs import FakeGcs
from servers.moto import Moto

import forebay
from forebay.exceptions import InvalidURLError

#: Beside each its neighbour: what it becomes where somebody decodes, cuts, folds or collapses it.
NAMES = (
    "a#1.bin", "a#2.bin", "a", "a?b=1", "a?b=2", "a%20b.bin", "a b.bin", "a+b.bin", "x[1].bin", "x1.bin", "k=v/x.bin",
    "A.bin", "a.bin", normalize("NFC", "ä.bin"), normalize("NFD", "ä.bin"), "long/" + "n" * 200 + ".bin",
)  # fmt: skip


@pytest.fixture(
    params=[
        pytest.param((cloud, driver), marks=pytest.mark.xdist_group(group), id=f"{group}-{driver}")
        for cloud, group in (("moto", "s3"), ("fakegcs", "gcs"), ("azurite", "azure"))
        for driver in ("obstore", "fsspec")
    ]
)
def place(request: pytest.FixtureRequest) -> tuple[Moto | FakeGcs | Azurite, dict[str, object]]:
    cloud, driver = request.param
    store: Moto | FakeGcs | Azurite = request.getfixturevalue(cloud)
    return store, {**store.options, "driver": driver}


@pytest.fixture
def held(place: tuple[Moto | FakeGcs | Azurite, dict[str, object]]) -> Iterator[dict[str, bytes]]:
    """What the store holds under ``names/``, by name."""
    store, _ = place
    objects = {name: f"the bytes of {name}".encode() for name in NAMES}
    for name, data in objects.items():
        store.put(f"names/{name}", data)
    yield objects
    for name in objects:
        store.delete(f"names/{name}")


def test_every_name_has_its_own_bytes_in_one_cache(
    place: tuple[Moto | FakeGcs | Azurite, dict[str, object]], held: dict[str, bytes], tmp_path: Path
) -> None:
    """Risk O1, O2, O3, O4, O5, O7, O8, O11: by its URL, through one cache, a second time from there."""
    store, options = place
    for _ in range(2):
        for name, data in held.items():
            path = forebay.fetch(f"{store.url}/names/{name}", cache_dir=tmp_path / "cache", options=options)
            assert path.read_bytes() == data, name
            forebay.release(path)
    one = forebay.open_downloader(f"{store.url}/names", options=options)
    try:
        assert {info.key: info.size for info in one.list()} == {name: len(data) for name, data in held.items()}
    finally:
        one.close()


def test_a_name_that_is_also_a_folder(
    place: tuple[Moto | FakeGcs | Azurite, dict[str, object]], tmp_path: Path
) -> None:
    """Risk O10, O12: in the store, in the listing and in the cache; and a root that comes again in its keys."""
    store, options = place
    objects = {"both": b"the object", "both/inner": b"what lies below", "both/both": b"and again"}
    for key, data in objects.items():
        store.put(f"both/{key}", data)
    one = forebay.open_downloader(f"{store.url}/both", options=options)
    try:
        assert sorted(info.key for info in one.list()) == sorted(objects)
        assert {key: one.download_bytes(key) for key in objects} == objects
    finally:
        one.close()
        for key in objects:
            store.delete(f"both/{key}")


def test_what_obstore_cannot_name_is_refused_with_the_driver_that_can(
    place: tuple[Moto | FakeGcs | Azurite, dict[str, object]],
) -> None:
    """Risk O6: own bytes or a refusal that says what to do; of a listing it names the prefix as it was given."""
    store, options = place
    keys = ("slashes//double.bin", "slashes/end/")
    for key in keys:
        store.put(key, key.encode())
    one = forebay.open_downloader(store.url, options=options)
    try:
        if options["driver"] == "fsspec":
            assert {key: one.download_bytes(key) for key in keys} == {key: key.encode() for key in keys}
            assert [info.key for info in one.list("slashes//")] == [keys[0]]
            return
        for key in keys:
            with pytest.raises(InvalidURLError, match=rf"key '{key}'.*driver='fsspec' takes it"):
                one.download_bytes(key)
        with pytest.raises(InvalidURLError, match=r"prefix 'slashes//'.*driver='fsspec' takes it"):
            list(one.list("slashes//"))
    finally:
        one.close()
        for key in keys:
            store.delete(key)
