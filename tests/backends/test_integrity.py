"""A byte that is flipped in flight, behind headers that stay right, on every driver that shows checksums (issue 3, 5).

Servers are real ones; `servers.proxy` does the damage. Nothing of the index or the cache helps: the datasets here have
no digests of their own.
"""

from __future__ import annotations

import base64
import itertools
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers.azurite import Azurite
from servers.datasets import expected_items
from servers.fakegcs import FakeGcs
from servers.moto import Moto
from servers.proxy import Plan, Proxy
from servers.weed import Weed

import forebay
from forebay._checksums import available
from forebay.exceptions import ChecksumMismatchError
from forebay.testing import Fault, FaultServer, run_async
from forebay_s3 import S3Downloader

DATA = bytes(range(256)) * 1200
PART = 64 * 1024
PARTS = -(-len(DATA) // PART)
ALWAYS = Plan(flip=1, after=4000, target=b"flipped")
ONCE = Plan(flip=1, after=4000, target=b"flipped", most=1)
SHOWN = {"weed": available()[:3], "moto": available()[:3], "fakegcs": ("crc32c", "md5"), "azurite": ("md5",)}


class Place:
    """A store that shows checksums, and the way to it through a proxy."""

    def __init__(self, name: str, store: Weed | Moto | FakeGcs | Azurite) -> None:
        self.name = name
        self.store = store

    def proxy(self, plan: Plan) -> Proxy:
        """SeaweedFS and moto need the client's own Host, which is signed."""
        host = None if self.name in ("weed", "moto") else f"127.0.0.1:{self.store.port}"
        return Proxy(self.store.port, plan, host=host)

    def options(self, proxy: Proxy, **more: object) -> dict[str, object]:
        endpoint = self.store.endpoint.replace(f":{self.store.port}", f":{proxy.port}")
        return {**self.store.options, "endpoint_url": endpoint, "driver": "fsspec", "part_size": PART, **more}

    def url(self, key: str = "flipped.bin") -> str:
        return f"{self.store.url}/{key}"


@pytest.fixture(params=["weed", "moto", "fakegcs", "azurite"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    """For S3 the SDK's own setting has compatible servers asked too; without it only AWS is."""
    monkeypatch.setenv("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_supported")
    one = Place(request.param, request.getfixturevalue(request.param))
    one.store.put("flipped.bin", DATA)
    return one


def fetch(url: str, options: dict[str, object], cache: Path) -> bytes:
    path = forebay.fetch(url, cache_dir=cache, options=options)
    try:
        return path.read_bytes()
    finally:
        forebay.release(path)


def test_a_fetch_whose_bytes_are_damaged_on_every_way_says_so(place: Place, tmp_path: Path) -> None:
    """B11, N5: read once more from the start, then an error with key and backend; nothing stays in the cache."""
    with place.proxy(ALWAYS) as proxy:
        with pytest.raises(ChecksumMismatchError) as error:
            fetch(place.url(), place.options(proxy), tmp_path)
        gets = proxy.faults["flip"]
    assert gets == 2 * PARTS, "each part twice"
    text = str(error.value)
    assert "flipped.bin" in text
    assert f"backend {({'weed': 's3', 'moto': 's3', 'fakegcs': 'gcs', 'azurite': 'azure'})[place.name]}" in text
    algorithm = (error.value.expected or "").partition(":")[0]
    assert algorithm in SHOWN[place.name]
    assert error.value.expected != error.value.actual
    assert any("second try" in note for note in error.value.__notes__)
    assert [file for file in (tmp_path / "chunks").rglob("*") if file.is_file()] == []


def test_a_fetch_that_is_damaged_once_is_healed(place: Place, tmp_path: Path) -> None:
    """N5: and the right bytes are what is kept."""
    with place.proxy(ONCE) as proxy:
        assert fetch(place.url(), place.options(proxy), tmp_path) == DATA
        assert proxy.faults["flip"] == 1
        assert proxy.requests == 2 * PARTS


def test_what_is_not_damaged_costs_no_part_more(place: Place, tmp_path: Path) -> None:
    """The budget of the GET path: one request beyond the parts, and that only where a range shows no checksum (S3)."""
    with place.proxy(Plan()) as proxy:
        assert fetch(place.url(), place.options(proxy), tmp_path) == DATA
        assert proxy.requests == PARTS + (1 if place.name in ("weed", "moto") else 0)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("healed", [True, False], ids=["once", "always"])
def test_a_chunk_of_a_dataset_without_digests(
    place: Place, tmp_path: Path, compression: str | None, healed: bool
) -> None:
    """B11, N5: readers get right items or an error, never other bytes. A zstd frame has a checksum of its own."""
    items = [{**one, "blob": random.Random(number).randbytes(20_000)} for number, one in enumerate(expected_items(6))]
    folder = tmp_path / "packed"
    forebay.pack(items, folder, chunk_bytes=90_000, compression=compression, digests=False)
    for file in folder.iterdir():
        name = file.name.replace("chunk-0-0", "chunk-0-0-flipped")
        text = file.read_bytes()
        if file.suffix == ".json":
            text = text.replace(b"chunk-0-0", b"chunk-0-0-flipped")
        place.store.put(f"{compression or 'plain'}/{name}", text)
    url = place.url(compression or "plain")
    with place.proxy(ONCE if healed else ALWAYS) as proxy:
        options = place.options(proxy)
        with forebay.open_dataset(url, cache_dir=tmp_path / "cache", options=options, max_cache_bytes="64MiB") as ds:
            if healed:
                assert [ds[number] for number in range(len(items))] == items
            else:
                with pytest.raises(forebay.exceptions.IntegrityError) as error:
                    ds[0]
                assert compression or isinstance(error.value, ChecksumMismatchError)
                assert "chunk-0-0-flipped" in str(error.value)
                assert ds[len(items) - 1] == items[-1], "other chunks are none the worse"
        assert proxy.faults["flip"] >= 1


class Discard:
    """Takes everything."""

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        return len(data)


WHOLE: dict[str, Callable[[forebay.Downloader], object]] = {
    "download_bytes": lambda one: one.download_bytes("flipped.bin"),
    "download_fileobj": lambda one: one.download_fileobj("flipped.bin", Discard()),
    "adownload_bytes": lambda one: run_async(_closing(one, one.adownload_bytes("flipped.bin"))),
    "adownload_fileobj": lambda one: run_async(_closing(one, one.adownload_fileobj("flipped.bin", Discard()))),
}


async def _closing(one: forebay.Downloader, work: object) -> None:
    try:
        await work  # type: ignore[misc]
    finally:
        await one.aclose()


@pytest.mark.parametrize("hook", WHOLE)
def test_whole_body_hooks_compare_too(place: Place, hook: str) -> None:
    """For who uses a downloader without the engine."""
    with place.proxy(ALWAYS) as proxy:
        options = {name: value for name, value in place.options(proxy).items() if name != "part_size"}
        downloader = forebay.open_downloader(place.store.url, options=options)
        try:
            with pytest.raises(ChecksumMismatchError, match=r"flipped\.bin"):
                WHOLE[hook](downloader)
        finally:
            downloader.close()


def test_probe_claims_what_is_compared_and_no_more(place: Place) -> None:
    """obstore shows no checksums: nothing is claimed there."""
    with place.proxy(Plan()) as proxy:
        for driver in ("fsspec", "obstore"):
            downloader = forebay.open_downloader(place.store.url, options=place.options(proxy, driver=driver))
            claimed = forebay.probe(downloader).checksums
            downloader.close()
            if driver == "obstore":
                assert claimed == ()
            else:
                assert set(SHOWN[place.name]) <= set(claimed) <= set(available())


# -- S3 itself --------------------------------------------------------------------------------------------------------


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    """A proxy of the environment that answers for AWS's own address."""
    with FaultServer() as server:
        monkeypatch.setenv("HTTP_PROXY", server.url())
        yield server


AWS = "http://s3.us-east-1.amazonaws.com"
KEYS = {"access_key_id": "AKIAEXAMPLEKEY", "secret_access_key": "wJalrXUtnFEMI-example-secret"}
TIMEOUTS = itertools.count(30)


def s3_options(**more: object) -> dict[str, object]:
    """Never the same twice: a downloader that is still open has the proxy of the test before."""
    who = {"timeout": float(next(TIMEOUTS))}
    return {
        "endpoint_url": AWS,
        "driver": "fsspec",
        "addressing_style": "path",
        "part_size": PART,
        **who,
        **KEYS,
        **more,
    }


def crc32(data: bytes) -> str:
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def test_s3_is_asked_once_an_object_and_compared(aws: FaultServer, tmp_path: Path) -> None:
    """S3 shows no checksum of the object with a range (botocore would compare it with the range), so HEAD is asked."""
    aws.put(f"{AWS}/bench/key.bin", DATA, headers={"x-amz-checksum-crc32": crc32(DATA)})
    assert fetch("s3://bench/key.bin", s3_options(), tmp_path / "good") == DATA
    heads = [one for one in aws.requests if one.method == "HEAD"]
    assert [one.headers.get("x-amz-checksum-mode") for one in heads] == ["ENABLED"]
    assert len(aws.requests) == PARTS + 1
    aws.script(None, Fault(corrupt_at=1000), times=None, methods=("GET",))
    with pytest.raises(ChecksumMismatchError, match="crc32"):
        fetch("s3://bench/key.bin", s3_options(), tmp_path / "bad")


@pytest.mark.parametrize(
    "headers",
    [{"x-amz-checksum-crc32": "AAAAAA==-5"}, {"x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-type": "COMPOSITE"}],
    ids=["marked", "typed"],
)
def test_a_checksum_of_parts_checksums_is_not_one_of_the_bytes(
    aws: FaultServer, tmp_path: Path, headers: dict[str, str]
) -> None:
    """What a multipart upload leaves on S3 cannot be compared with the whole, and is no reason to refuse it."""
    aws.put(f"{AWS}/bench/key.bin", DATA, headers=headers)
    assert fetch("s3://bench/key.bin", s3_options(), tmp_path) == DATA
    downloader = S3Downloader("s3://bench", s3_options())
    assert downloader.download_bytes("key.bin") == DATA
    assert downloader.stat("key.bin").checksums == ()
    downloader.close()


def test_the_checksum_of_a_part_is_not_taken_for_the_objects(aws: FaultServer, tmp_path: Path) -> None:
    """With a range that is a part of a multipart upload S3 shows that part's own, unmarked (botocore issue 3346)."""
    aws.put(f"{AWS}/bench/key.bin", DATA, headers={"x-amz-checksum-crc32": crc32(DATA[:PART])})
    aws.script(None, Fault(status=403), times=None, methods=("HEAD",))
    assert fetch("s3://bench/key.bin", s3_options(), tmp_path) == DATA


def test_a_head_that_is_refused_is_no_reason_to_refuse_the_object(aws: FaultServer, tmp_path: Path) -> None:
    """L8: the right to read is enough."""
    aws.put(f"{AWS}/bench/key.bin", DATA)
    aws.script(None, Fault(status=403), times=None, methods=("HEAD",))
    assert fetch("s3://bench/key.bin", s3_options(), tmp_path) == DATA


def test_the_checksum_of_another_version_is_none(aws: FaultServer, tmp_path: Path) -> None:
    """R4: HEAD is of the version of the parts, or the object has changed; it is then read as it is now."""
    new = DATA[::-1]
    aws.put(f"{AWS}/bench/key.bin", DATA, etag='"old"', headers={"x-amz-checksum-crc32": crc32(DATA)})
    aws.swap(f"{AWS}/bench/key.bin", new, after=1, etag='"new"')
    assert fetch("s3://bench/key.bin", s3_options(part_size=len(DATA)), tmp_path) == new


@pytest.mark.parametrize(("said", "asked"), [(None, True), ("when_required", False), ("When_Supported", True)])
def test_the_sdks_own_setting_says_whether_s3_is_asked(
    aws: FaultServer, monkeypatch: pytest.MonkeyPatch, said: str | None, asked: bool
) -> None:
    if said is not None:
        monkeypatch.setenv("AWS_RESPONSE_CHECKSUM_VALIDATION", said)
    aws.put(f"{AWS}/bench/key.bin", DATA)
    downloader = S3Downloader("s3://bench", s3_options())
    downloader.stat("key.bin")
    assert ("x-amz-checksum-mode" in aws.requests[-1].headers) == asked
    assert bool(forebay.probe(downloader).checksums) == asked
    downloader.close()
