"""Keys are taken literally on both drivers, or refused before any request (O1 to O10)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from servers.moto import Moto
from servers.weed import Weed

from forebay._url import parse_url, split_object
from forebay.exceptions import InvalidURLError, UnsupportedOperationError
from forebay.testing import FaultServer, run_async
from forebay_s3 import S3Downloader

Open = Callable[..., S3Downloader]
KEYS = (
    "plain.bin",
    "with space.bin",
    " outer space ",
    "a#1.bin",
    "a#2.bin",
    "a?b=c.bin",
    "?versionId=null",
    "percent%20.bin",
    "percent%2520.bin",
    "100%.bin",
    "%",
    "plus+equals=.bin",
    "x[1]{2}*.bin",
    "at@colon:semi;comma,.bin",
    "quote'\"&<>.bin",
    "back\\slash.bin",
    "umlaut-\u00e4-\u65e5\u672c.bin",
    "decomposed-a\u0308.bin",
    "composed-\u00e4.bin",
    "composed-A.bin",
    "composed-a.bin",
    "emoji-\U0001f30a.bin",
    "col=1/part=a%2Fb/x.parquet",
    "...",
    ".hidden/..x/x..",
    "tilde~dash-under_score.bin",
    "long-" + "x" * 700,
)
#: What obstore has no way to name; on S3 they are objects like any other.
SLASHES = ("/leading.bin", "double//slash.bin", "trailing/", "//", "folder/", "folder//")
#: What HTTP clients resolve on their way.
REFUSED = ("", ".", "..", "a/../b", "./a", "a/.", "lone-\ud800.bin")


def test_literal_keys(moto: Moto, opened: Open, driver: str) -> None:
    """Each key has its own bytes, by every path, among all the others."""
    keys = [*KEYS, *SLASHES]
    for key in keys:
        moto.client.put_object(Bucket=moto.BUCKET, Key=f"literal/{key}", Body=f"bytes of {key}".encode())
    downloader = opened(f"{moto.url}/literal", **moto.options)
    readable = KEYS if driver == "obstore" else keys

    async def main() -> None:
        for key in readable:
            data = f"bytes of {key}".encode()
            assert downloader.download_bytes(key) == data, key
            read = await downloader.aread_range(key, 6, 1000)
            assert (bytes(read.data), read.info.size, read.info.key) == (data[6:], len(data), key)
            assert downloader.stat(key).size == len(data)
        for key in [*REFUSED, *(SLASHES if driver == "obstore" else ())]:
            with pytest.raises(InvalidURLError):
                await downloader.aread_range(key, 0, 10)
            with pytest.raises(InvalidURLError):
                downloader.download_bytes(key)
        await downloader.aclose()

    run_async(main())
    if driver == "fsspec":
        assert [info.key for info in downloader.list()] == sorted(keys)
        assert [info.key for info in downloader.list("a#")] == ["a#1.bin", "a#2.bin"]
        assert [info.key for info in downloader.list("/")] == ["//", "/leading.bin"]
    else:
        # One key that obstore cannot name spoils its listing: an error that says what to do, and no half of a list.
        with pytest.raises(UnsupportedOperationError, match="driver='fsspec'"):
            list(downloader.list())
    for key in keys:
        moto.delete(f"literal/{key}")


def test_uploads_take_keys_literally_too(moto: Moto, opened: Open, tmp_path: Path) -> None:
    downloader = opened(f"{moto.url}/up", **moto.options)
    for key in KEYS:
        (tmp_path / "source").write_text(key)
        downloader.upload_file(key, tmp_path / "source")
        assert moto.client.get_object(Bucket=moto.BUCKET, Key=f"up/{key}")["Body"].read().decode() == key
        moto.delete(f"up/{key}")


def test_refused_key_costs_no_request(faults: FaultServer, faulty: Open, driver: str) -> None:
    downloader = faulty()
    for key in [*REFUSED, *(SLASHES if driver == "obstore" else ())]:
        with pytest.raises(InvalidURLError) as error:
            downloader.stat(key)
        assert repr(key) in str(error.value) or not key
    assert faults.requests == []


@pytest.mark.parametrize(
    ("url", "root", "key"),
    [
        ("s3://bucket/key", "s3://bucket", "key"),
        ("S3://bucket/key", "s3://bucket", "key"),
        ("s3://bucket/a/b%20c#d?e", "s3://bucket", "a/b%20c#d?e"),
        ("s3://bucket//key", "s3://bucket", "/key"),
        ("s3://bucket/a//b/", "s3://bucket", "a//b/"),
    ],
)
def test_spellings_of_one_object(url: str, root: str, key: str) -> None:
    assert split_object(parse_url(url)) == (root, key)


@pytest.mark.parametrize("url", ["https://bucket.s3.amazonaws.com/key", "http://127.0.0.1:9000/bucket/key"])
def test_web_address_is_not_taken_for_a_bucket_and_a_key(url: str) -> None:
    """Its host would be the bucket."""
    with pytest.raises(InvalidURLError, match=r"s3://BUCKET/KEY.*endpoint_url"):
        S3Downloader(url, {"anonymous": True})


def test_prefix_of_the_root_is_literal_and_a_slash_at_its_end_changes_nothing(weed: Weed, opened: Open) -> None:
    weed.put("pre fix%20/#/key.bin", b"0123456789")
    for root in ("s3://bench/pre fix%20/#", "s3://bench/pre fix%20/#/"):
        downloader = opened(root, **weed.options)
        assert downloader.download_bytes("key.bin", 2, 4) == b"2345"
        assert [info.key for info in downloader.list()] == ["key.bin"]
    weed.delete("pre fix%20/#/key.bin")


@pytest.mark.slow
def test_listing_of_more_than_a_page(weed: Weed, opened: Open) -> None:
    """Each object once, also where the store gives them a thousand at a time."""
    import asyncio

    names = [f"pages/{number:05d}" for number in range(1203)]

    async def fill() -> None:
        for start in range(0, len(names), 64):
            await asyncio.gather(*(asyncio.to_thread(weed.put, name, b"") for name in names[start : start + 64]))

    run_async(fill())
    assert sorted(info.key for info in opened(weed.url, **weed.options).list("pages/")) == names
