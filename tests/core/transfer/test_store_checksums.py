"""The stores' own checksums: known values, which one is taken, and what a transfer does with them (B11, N5)."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import xxhash
import zstandard
from servers.transfer_kit import RangeHTTP, fetch, make_source

from forebay._checksums import available, from_base64, start_checksum
from forebay._codecs.zstd import ZstdCodec
from forebay.exceptions import AccessDeniedError, ChecksumMismatchError, ServerError
from forebay.testing import Fault, FaultServer, run_async
from forebay.types import Capabilities, CodecSpec, ObjectInfo, RangeRead

PART = 64 * 1024
ZSTD = CodecSpec(name="zstd", suffixes=(".zst",), magic=b"\x28\xb5\x2f\xfd", load=lambda: ZstdCodec)
#: What the algorithms make of the nine digits, by their specifications.
KNOWN = {
    "crc64nvme": "ae8b14860a799888",
    "crc32c": "e3069283",
    "crc32": "cbf43926",
    "sha1": hashlib.sha1(b"123456789").hexdigest(),
    "sha256": hashlib.sha256(b"123456789").hexdigest(),
    "md5": "25f9e794323b453885f5181f1b624d0b",
}


class Telling(RangeHTTP):
    """Says with each range what the object's checksums are."""

    told: tuple[str, ...] | None = ()

    async def aread_range(self, key: str, offset: int, length: int, *, if_match: str | None = None) -> RangeRead:
        got = await super().aread_range(key, offset, length, if_match=if_match)
        info = ObjectInfo(key, got.info.size, got.info.etag, checksums=self.told)
        return RangeRead(data=got.data, info=info)


class Asked(Telling):
    """Says it in `astat` only, as S3 does."""

    told = None
    known: tuple[str, ...] = ()
    error: Exception | None = None
    asked = 0

    @classmethod
    def probe_driver(cls, options: object) -> Capabilities:
        return Capabilities(native_async=True, checksums=("crc32",))

    async def astat(self, key: str) -> ObjectInfo:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return ObjectInfo(key, checksums=self.known)


def crc32(data: bytes) -> str:
    return f"crc32:{zlib.crc32(data):08x}"


@pytest.mark.parametrize("name", KNOWN)
def test_known_values_in_any_pieces(name: str) -> None:
    assert name in available(), "the development group brings all of them"
    for cuts in ([9], [1, 8], [3, 0, 6], [1] * 9):
        started = start_checksum([f"{name}:00"])
        assert started is not None
        rest = memoryview(b"123456789")
        for cut in cuts:
            started[1].update(rest[:cut])
            rest = rest[cut:]
        assert started[1].hexdigest() == KNOWN[name]


def test_the_cheapest_is_taken_and_an_unknown_one_is_none() -> None:
    for names in (["md5", "crc32c"], ["crc32c", "md5"], ["blake3", "md5", "crc32c"]):
        started = start_checksum([f"{name}:00" for name in names])
        assert started is not None
        assert started[0] == "crc32c:00"
    assert start_checksum(["blake3:00"]) is None
    assert start_checksum([]) is None


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("crc32", "y/Q5Jg==", "crc32:cbf43926"),
        ("crc32", "y/Q5Jg==-3", None),
        ("crc32", "y/Q5", None),
        ("crc32", "", None),
        ("crc32", None, None),
        ("crc32", "no base64!", None),
        ("md5", base64.b64encode(bytes(16)).decode(), "md5:" + "0" * 32),
        ("rot13", "y/Q5Jg==", None),
    ],
)
def test_what_headers_hold(name: str, text: str | None, read: str | None) -> None:
    assert from_base64(name, text) == read


@pytest.mark.parametrize("size", [0, 1, PART, 3 * PART + 5])
@pytest.mark.parametrize("compressed", [False, True])
def test_right_bytes_pass_and_a_wrong_checksum_is_an_error_after_one_more_try(
    server: FaultServer, tmp_path: Path, size: int, compressed: bool
) -> None:
    """The checksum is of what is stored; that zstd has none of its own here makes no difference."""
    data = os.urandom(size)
    stored = zstandard.ZstdCompressor(write_checksum=False).compress(data) if compressed else data
    server.put("a", stored)
    source = make_source(
        Telling(server.url()), "a", stored=len(stored), decoded=size, codec=ZSTD if compressed else None
    )
    assert isinstance(source.downloader, Telling)
    source.downloader.told = (crc32(stored),)
    run_async(fetch(source, tmp_path / "f"))
    assert (tmp_path / "f").read_bytes() == data
    requests = len(server.requests)
    source.downloader.told = ("crc32:00000001",)
    with pytest.raises(ChecksumMismatchError, match="the store says 00000001") as error:
        run_async(fetch(source, tmp_path / "g"))
    assert (error.value.expected, error.value.actual) == ("crc32:00000001", crc32(stored))
    assert len(server.requests) == 3 * requests
    assert not (tmp_path / "g").exists()


def test_damage_in_a_compressed_object_that_its_codec_does_not_see(server: FaultServer, tmp_path: Path) -> None:
    data = os.urandom(3 * PART)  # stored in raw blocks
    stored = zstandard.ZstdCompressor(write_checksum=False).compress(data)
    server.put("a", stored)
    server.script("a", Fault(corrupt_at=1000), times=None)
    downloader = Telling(server.url())
    downloader.told = (crc32(stored),)
    with pytest.raises(ChecksumMismatchError):
        run_async(
            fetch(make_source(downloader, "a", stored=len(stored), decoded=len(data), codec=ZSTD), tmp_path / "f")
        )
    server.unscript()
    server.script("a", Fault(corrupt_at=1000), times=1)
    run_async(fetch(make_source(downloader, "a", stored=len(stored), decoded=len(data), codec=ZSTD), tmp_path / "g"))
    assert (tmp_path / "g").read_bytes() == data


def test_a_promised_digest_is_enough(server: FaultServer, tmp_path: Path) -> None:
    """It says more than the store does: nothing is computed twice, and nothing is asked for it."""
    data = os.urandom(3 * PART)
    server.put("a", data)
    downloader = Asked(server.url())
    downloader.known = ("crc32:00000000",)
    digest = f"xxh3-64:{xxhash.xxh3_64_hexdigest(data)}"
    run_async(fetch(make_source(downloader, "a", stored=len(data), digest=digest), tmp_path / "f"))
    assert downloader.asked == 0


def test_who_shows_it_in_stat_only_is_asked_once(server: FaultServer, tmp_path: Path) -> None:
    data = os.urandom(3 * PART)
    server.put("a", data)
    downloader = Asked(server.url())
    downloader.known = (crc32(data),)
    result = run_async(fetch(make_source(downloader, "a", stored=len(data)), tmp_path / "f"))
    assert (downloader.asked, result.requests) == (1, 4)
    downloader.known = (crc32(data + b"x"),)
    with pytest.raises(ChecksumMismatchError):
        run_async(fetch(make_source(downloader, "a", stored=len(data)), tmp_path / "g"))


def test_a_refusal_of_stat_is_none_of_the_object_and_trouble_is_trouble(server: FaultServer, tmp_path: Path) -> None:
    """L8: rights to read are enough. But what may pass is tried again, and never taken for an answer."""
    data = os.urandom(3 * PART)
    server.put("a", data)
    downloader = Asked(server.url())
    downloader.error = AccessDeniedError("no HEAD for you")
    run_async(fetch(make_source(downloader, "a", stored=len(data)), tmp_path / "f"))
    assert downloader.asked == 1
    downloader.error = ServerError("ill")
    with pytest.raises(ServerError):
        run_async(fetch(make_source(downloader, "a", stored=len(data)), tmp_path / "g"))
    assert downloader.asked > 2


def test_without_the_packages_there_is_still_what_python_has() -> None:
    """google-crc32c comes with gcsfs, awscrt with an extra: neither is needed."""
    script = (
        "import sys\n"
        "sys.modules['google_crc32c'] = sys.modules['awscrt'] = None\n"
        "from forebay._checksums import available, start_checksum\n"
        "assert available() == ('crc32', 'sha1', 'sha256', 'md5'), available()\n"
        "assert start_checksum(['crc32c:00', 'md5:00'])[0] == 'md5:00'\n"
        "assert start_checksum(['crc32c:00']) is None\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
