"""Bodies as web servers really send them: both drivers give the same bytes (P1, P3, P4, P6, P7, Q1, R4)."""

from __future__ import annotations

import gzip
import logging
import zlib
from collections.abc import Callable

import pytest

from forebay.exceptions import DecompressionError, IncompleteBodyError, ObjectChangedError, UnsupportedOperationError
from forebay.testing import Fault, FaultServer, run_async
from forebay.types import RangeRead
from forebay_http import HttpDownloader

Open = Callable[..., HttpDownloader]
DATA = bytes(range(256)) * 4096  # 1 MiB
ODD = {
    "no length": Fault(framing="close"),
    "chunked": Fault(framing="chunked"),
    "gzip": Fault(gzip=True),
    "gzip, chunked": Fault(gzip=True, framing="chunked"),
    "no ranges": Fault(ignore_range=True),
}


class Sink:
    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        self.data += data
        return len(data)


def read_range(
    downloader: HttpDownloader, key: str, offset: int, length: int, if_match: str | None = None
) -> RangeRead:
    async def main() -> RangeRead:
        try:
            return await downloader.aread_range(key, offset, length, if_match=if_match)
        finally:
            await downloader.aclose()

    return run_async(main())


@pytest.mark.parametrize("name", ODD)
def test_odd_body_comes_back_whole_and_in_pieces(faults: FaultServer, opened: Open, name: str) -> None:
    faults.put("key.bin", DATA)
    faults.script("key.bin", ODD[name], times=None)
    downloader = opened(faults.url())
    assert downloader.download_bytes("key.bin") == DATA
    assert downloader.download_bytes("key.bin", 5) == DATA[5:]
    assert downloader.download_bytes("key.bin", 1000, 3000) == DATA[1000:4000]
    assert downloader.download_bytes("key.bin", len(DATA) - 10, 3000) == DATA[-10:]
    assert bytes(read_range(downloader, "key.bin", 1000, 3000).data) == DATA[1000:4000]
    sink = Sink()
    downloader.download_fileobj("key.bin", sink)
    assert sink.data == DATA
    assert downloader.stat("key.bin").size in (len(DATA), None)


@pytest.mark.parametrize("name", ODD)
def test_range_cut_from_a_whole_body_pins_no_parts(faults: FaultServer, opened: Open, name: str) -> None:
    """Parts of such an object cost a whole body each: it must not look as if it could be fetched in parts."""
    faults.put("key.bin", DATA)
    faults.script("key.bin", ODD[name], times=None)
    downloader = opened(faults.url())
    read = read_range(downloader, "key.bin", 0, 1000)
    if ODD[name].ignore_range or ODD[name].gzip:
        assert read.info.etag is None
    whole = read_range(downloader, "key.bin", 0, 2 * len(DATA))
    assert (whole.info.size, len(whole.data)) == (len(DATA), len(DATA))
    assert whole.info.etag == faults.etag("key.bin")


def test_object_that_obstore_cannot_read_is_asked_for_twice_only_once(
    faults: FaultServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "forebay.http")
    faults.put("key.bin", DATA)
    faults.put("plain.bin", DATA)
    faults.script("key.bin", Fault(framing="chunked"), times=None)
    downloader = HttpDownloader(faults.url())
    downloader.download_bytes("plain.bin")
    faults.forget_requests()
    for _ in range(3):
        assert downloader.download_bytes("key.bin") == DATA
    assert len(faults.requests) == 4
    assert "no Content-Length" in caplog.text, "the reason is logged"
    downloader.download_bytes("plain.bin")
    assert len(faults.requests) == 5
    downloader.close()


def test_root_that_obstore_cannot_read_is_left_to_aiohttp(faults: FaultServer) -> None:
    faults.script(None, Fault(framing="chunked"), times=None)
    downloader = HttpDownloader(faults.url())
    for number in range(10):
        faults.put(f"{number}.bin", DATA)
        assert downloader.download_bytes(f"{number}.bin") == DATA
    assert len(faults.requests) == 10 + 3
    downloader.close()


def test_identity_is_asked_for_first(faults: FaultServer, opened: Open) -> None:
    faults.put("key.bin", DATA)
    opened(faults.url()).download_bytes("key.bin", 0, 10)
    assert [one.headers["accept-encoding"] for one in faults.requests] == ["identity"]


@pytest.mark.parametrize(
    ("encoding", "encoded"),
    [
        ("gzip", gzip.compress(DATA[:70000]) + gzip.compress(DATA[70000:])),
        ("x-gzip", gzip.compress(DATA)),
        ("deflate", zlib.compress(DATA)),
        ("deflate", zlib.compress(DATA, wbits=-15)),
        ("deflate, gzip", gzip.compress(zlib.compress(DATA))),
        ("identity", DATA),
    ],
    ids=["two gzip members", "x-gzip", "zlib", "raw deflate", "twice", "identity"],
)
def test_content_encoding_is_undone(faults: FaultServer, opened: Open, encoding: str, encoded: bytes) -> None:
    faults.put("key.bin", encoded, headers={"Content-Encoding": encoding})
    downloader = opened(faults.url())
    assert downloader.download_bytes("key.bin") == DATA
    assert downloader.download_bytes("key.bin", 100, 50) == DATA[100:150]
    assert bytes(read_range(downloader, "key.bin", 100, 50).data) == DATA[100:150]


def test_zstd_content_encoding_is_undone(faults: FaultServer, opened: Open) -> None:
    zstandard = pytest.importorskip("zstandard")
    encoded = zstandard.compress(DATA[:5000]) + zstandard.compress(DATA[5000:])
    faults.put("key.bin", encoded, headers={"Content-Encoding": "zstd"})
    assert opened(faults.url()).download_bytes("key.bin") == DATA


def test_unknown_encoding_is_refused(faults: FaultServer, opened: Open) -> None:
    faults.put("key.bin", DATA, headers={"Content-Encoding": "rot13"})
    with pytest.raises(UnsupportedOperationError, match="rot13"):
        opened(faults.url()).download_bytes("key.bin")


def test_cut_and_damaged_encodings_are_told_apart(faults: FaultServer, opened: Open) -> None:
    """P3, B12: a body that ended early is tried again; one that is damaged is not."""
    encoded = gzip.compress(DATA)
    for name, body, error in (
        ("cut.bin", encoded[:-20], IncompleteBodyError),
        ("damaged.bin", b"\x1f\x8b\x08\x00" + b"x" * 500, DecompressionError),
    ):
        faults.put(name, body, headers={"Content-Encoding": "gzip"})
        with pytest.raises(error, match=name):
            opened(faults.url()).download_bytes(name)


@pytest.mark.parametrize("status", [400, 403, 405, 501])
def test_refused_head_falls_back_to_a_small_get(faults: FaultServer, opened: Open, status: int) -> None:
    """P6, P7: and is not asked for again."""
    faults.put("key.bin", DATA)
    faults.put("empty.bin", b"")
    faults.script(None, Fault(status=status), methods=["HEAD"], times=None)
    downloader = opened(faults.url())
    info = downloader.stat("key.bin")
    assert (info.size, info.etag) == (len(DATA), faults.etag("key.bin"))
    assert downloader.stat("empty.bin").size == 0

    async def main() -> None:
        info = await downloader.astat("key.bin")
        assert (info.size, info.etag) == (len(DATA), faults.etag("key.bin"))
        await downloader.aclose()

    run_async(main())
    assert len([one for one in faults.requests if one.method == "HEAD"]) == 1


def test_head_without_a_length_is_answered_by_a_get(faults: FaultServer, opened: Open) -> None:
    faults.put("key.bin", DATA)
    faults.script("key.bin", Fault(framing="chunked"), methods=["HEAD"], times=None)
    assert opened(faults.url()).stat("key.bin").size == len(DATA)


def test_empty_object_is_empty_in_every_way(faults: FaultServer, opened: Open) -> None:
    """Q1: a range of nothing is a 416, or a 200, or a 206, as the server likes."""
    faults.put("empty.bin", b"")
    for fault in (Fault(), Fault(ignore_range=True), Fault(framing="chunked"), Fault(gzip=True)):
        faults.unscript()
        faults.script("empty.bin", fault, times=None)
        downloader = opened(faults.url())
        assert downloader.download_bytes("empty.bin") == b""
        assert downloader.download_bytes("empty.bin", 0, 10) == b""
        read = read_range(downloader, "empty.bin", 0, 10)
        assert (bytes(read.data), read.info.size) == (b"", 0)


def test_416_for_the_first_byte_of_an_object_that_has_one_is_an_error(faults: FaultServer, opened: Open) -> None:
    faults.put("key.bin", DATA)
    faults.script("key.bin", Fault(status=416, headers={"Content-Range": "bytes */1048576"}), times=None)
    with pytest.raises(Exception, match="1048576"):
        read_range(opened(faults.url()), "key.bin", 0, 10)


def test_one_part_is_one_request_with_size_and_etag(faults: FaultServer, opened: Open) -> None:
    faults.put("key.bin", DATA)
    downloader = opened(faults.url())
    etag = faults.etag("key.bin")

    async def main() -> None:
        for offset in range(0, len(DATA), 1 << 18):
            read = await downloader.aread_range("key.bin", offset, 1 << 18, if_match=etag if offset else None)
            assert bytes(read.data) == DATA[offset : offset + (1 << 18)]
            assert (read.info.size, read.info.etag) == (len(DATA), etag)
        await downloader.aclose()

    run_async(main())
    assert [(one.method, one.range, one.headers.get("if-match")) for one in faults.requests] == [
        ("GET", "bytes=0-262143", None),
        ("GET", "bytes=262144-524287", etag),
        ("GET", "bytes=524288-786431", etag),
        ("GET", "bytes=786432-1048575", etag),
    ]


def test_part_is_not_copied() -> None:
    with FaultServer() as faults:
        faults.put("key.bin", DATA)
        downloader = HttpDownloader(faults.url())
        assert isinstance(read_range(downloader, "key.bin", 0, 1000).data, memoryview)
        downloader.close()


def test_changed_object_is_an_error_and_never_a_mixture(faults: FaultServer, opened: Open) -> None:
    """R4, R5: also where the server does not know If-Match, and with a weak etag, which no If-Match ever matches."""
    faults.put("key.bin", DATA, etag='"one"')
    downloader = opened(faults.url())
    assert read_range(downloader, "key.bin", 0, 10, '"one"').info.etag == '"one"'
    faults.put("key.bin", DATA, etag='"two"')
    with pytest.raises(ObjectChangedError):
        read_range(downloader, "key.bin", 10, 10, '"one"')
    faults.script("key.bin", Fault(headers={"ETag": '"three"'}), times=None)
    with pytest.raises(ObjectChangedError):
        read_range(downloader, "key.bin", 10, 10, '"two"')
    faults.unscript()
    faults.put("key.bin", DATA, etag='W/"weak"')
    assert read_range(downloader, "key.bin", 0, 10, 'W/"weak"').info.etag == 'W/"weak"'
    with pytest.raises(ObjectChangedError):
        read_range(downloader, "key.bin", 0, 10, 'W/"another"')


def test_unknown_total_size_is_no_error(faults: FaultServer, opened: Open) -> None:
    faults.put("key.bin", DATA)
    faults.script("key.bin", Fault(content_range="bytes 10-19/*"), times=None)
    read = read_range(opened(faults.url()), "key.bin", 10, 10)
    assert (bytes(read.data), read.info.size) == (DATA[10:20], None)


def test_no_list(faults: FaultServer, opened: Open) -> None:
    with pytest.raises(UnsupportedOperationError):
        list(opened(faults.url()).list())
