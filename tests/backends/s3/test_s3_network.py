"""TLS and proxies, the same on both drivers (M4, M6, M7)."""

from __future__ import annotations

import base64
import io
import ssl
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from forebay.downloader import probe
from forebay.exceptions import ChecksumMismatchError, ConnectionFailedError, StorageError, TransientError
from forebay.testing import Fault, FaultServer
from forebay_s3 import S3Downloader

Open = Callable[..., S3Downloader]
KEYS = {"access_key_id": "AKIAEXAMPLEKEY", "secret_access_key": "wJalrXUtnFEMI-example-secret"}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def test_own_authority_is_trusted_and_an_unknown_one_is_not(
    authority: trustme.CA, tmp_path: Path, opened: Open
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    with FaultServer(tls=context) as server:
        server.put("bucket/key.bin", b"0123456789")
        given = {"endpoint_url": server.url(), **KEYS}
        assert opened("s3://bucket", ca_file=str(ca_file), **given).download_bytes("key.bin") == b"0123456789"
        assert opened("s3://bucket", verify_tls=False, **given).download_bytes("key.bin") == b"0123456789"
        with pytest.raises(StorageError, match="ca_file") as error:
            opened("s3://bucket", **given).download_bytes("key.bin")
        assert not isinstance(error.value, TransientError), "trying again would not help"


def test_virtual_host_goes_through_the_proxy_of_the_environment(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """M4, M7: a proxy gets the whole URL as its target, so it tells the host too."""
    with FaultServer() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url())
        for style, url in (
            ("virtual", "http://bucket.store.invalid/a%20key.bin"),
            ("path", "http://store.invalid/bucket/a%20key.bin"),
        ):
            proxy.forget_requests()
            proxy.put(url.replace("%20", " "), b"0123456789")
            downloader = opened("s3://bucket", endpoint_url="http://store.invalid", addressing_style=style, **KEYS)
            assert downloader.download_bytes("a key.bin", 2, 3) == b"234"
            assert [one.target for one in proxy.requests] == [url]


def test_checksum_of_s3_is_checked_where_the_driver_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte that was flipped on the way is found on s3fs, and `probe` says so; obstore shows no checksums."""
    data = bytes(range(256)) * 400
    url, given = "http://s3.us-east-1.amazonaws.com", {"addressing_style": "path", **KEYS}
    checksum = base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
    with FaultServer() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url())
        proxy.put(f"{url}/bucket/key.bin", data, headers={"x-amz-checksum-crc32": checksum})
        one = S3Downloader("s3://bucket", {"endpoint_url": url, "driver": "fsspec", **given})
        assert "crc32" in probe(one).checksums
        assert one.download_bytes("key.bin") == data
        assert proxy.requests[0].headers["x-amz-checksum-mode"] == "ENABLED"
        proxy.script(None, Fault(corrupt_at=1000), times=None)
        with pytest.raises(ChecksumMismatchError, match="crc32"):
            one.download_bytes("key.bin")
        with pytest.raises(ChecksumMismatchError, match="crc32"):
            one.download_fileobj("key.bin", io.BytesIO())
        one.close()
    assert probe(S3Downloader("s3://bucket", {"endpoint_url": url, **given})).checksums == ()
    other = {"endpoint_url": "http://127.0.0.1:9000", "driver": "fsspec", **KEYS}
    assert probe(S3Downloader("s3://bucket", other)).checksums == ()


@pytest.mark.parametrize("pattern", ["127.0.0.1", "127.0.0.0/8", "*", "example.org, 127.0.0.1"])
def test_no_proxy_is_honoured(faults: FaultServer, faulty: Open, monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    faults.put("bucket/key.bin", b"0123456789")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with pytest.raises(ConnectionFailedError):
        faulty().download_bytes("key.bin")
    monkeypatch.setenv("NO_PROXY", pattern)
    assert faulty().download_bytes("key.bin") == b"0123456789"
