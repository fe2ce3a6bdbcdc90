"""TLS and proxies, the same on both drivers (M6, M7)."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from forebay.exceptions import ConnectionFailedError, StorageError, TransientError
from forebay.testing import FaultServer
from forebay_drivers.proxies import proxy_for
from forebay_http import HttpDownloader

Open = Callable[..., HttpDownloader]
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    return context


def test_own_authority_is_trusted_and_an_unknown_one_is_not(
    tls: ssl.SSLContext, authority: trustme.CA, tmp_path: Path, opened: Open
) -> None:
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    with FaultServer(tls=tls) as server:
        server.put("key.bin", b"0123456789")
        assert opened(server.url(), ca_file=str(ca_file)).download_bytes("key.bin") == b"0123456789"
        assert opened(server.url(), verify_tls=False).download_bytes("key.bin") == b"0123456789"
        with pytest.raises(StorageError, match="ca_file") as error:
            opened(server.url()).download_bytes("key.bin")
        assert not isinstance(error.value, TransientError), "trying again would not help"


def test_wrong_host_name_is_not_trusted(authority: trustme.CA, tmp_path: Path, opened: Open) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("somewhere-else.example").configure_cert(context)
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    with FaultServer(tls=context) as server:
        server.put("key.bin", b"0123456789")
        with pytest.raises(StorageError, match="certificate") as error:
            opened(server.url(), ca_file=str(ca_file)).download_bytes("key.bin")
        assert not isinstance(error.value, TransientError)


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "ALL_PROXY"])
def test_requests_go_through_the_proxy_of_the_environment(
    opened: Open, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    with FaultServer() as proxy:  # a proxy gets the whole URL as its target
        proxy.put("http://store.invalid/dir/key.bin", b"0123456789")
        monkeypatch.setenv(variable, proxy.url())
        assert opened("http://store.invalid/dir").download_bytes("key.bin", 2, 3) == b"234"
        assert [one.target for one in proxy.requests] == ["http://store.invalid/dir/key.bin"]


@pytest.mark.parametrize("pattern", ["127.0.0.1", "127.0.0.0/8", "*", "example.org, 127.0.0.1"])
def test_no_proxy_is_honoured(faults: FaultServer, opened: Open, monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    faults.put("key.bin", b"0123456789")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with pytest.raises(ConnectionFailedError):
        opened(faults.url()).download_bytes("key.bin")
    monkeypatch.setenv("NO_PROXY", pattern)
    assert opened(faults.url()).download_bytes("key.bin") == b"0123456789"


@pytest.mark.parametrize(
    ("url", "environ", "proxy"),
    [
        ("http://a.org/x", {}, None),
        ("http://a.org/x", {"HTTP_PROXY": "http://p:1"}, "http://p:1"),
        ("http://a.org/x", {"HTTP_PROXY": "p:1"}, "http://p:1"),
        ("https://a.org/x", {"HTTP_PROXY": "http://p:1"}, None),
        ("https://a.org/x", {"https_proxy": "http://p:1"}, "http://p:1"),
        ("http://a.org/x", {"HTTP_PROXY": "http://p:1", "REQUEST_METHOD": "GET"}, None),
        ("http://a.org/x", {"ALL_PROXY": "http://p:1"}, "http://p:1"),
        ("http://a.org/x", {"ALL_PROXY": "http://p:1", "NO_PROXY": "org"}, None),
        ("http://a.org/x", {"ALL_PROXY": "http://p:1", "NO_PROXY": ".a.org"}, None),
        ("http://ba.org/x", {"ALL_PROXY": "http://p:1", "NO_PROXY": "a.org"}, "http://p:1"),
        ("http://10.1.2.3/x", {"ALL_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, None),
        ("http://[::1]:80/x", {"ALL_PROXY": "http://p:1", "NO_PROXY": "::1"}, None),
    ],
)
def test_which_proxy(url: str, environ: dict[str, str], proxy: str | None) -> None:
    assert proxy_for(url, environ) == proxy
