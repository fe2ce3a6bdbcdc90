"""Certificates and proxies: one rule for every backend and driver (M6, M7)."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from servers.azurite import Azurite
from servers.fakegcs import FakeGcs
from servers.proxy import Plan, Proxy
from servers.weed import Weed

import forebay
from forebay.exceptions import ConfigError, ConnectionFailedError, StorageError, TransientError
from forebay.testing import FaultServer
from forebay_drivers import tls
from forebay_drivers.options import Network

CLOUDS = ("http", "s3", "gcs", "azure")
DRIVERS = ("obstore", "fsspec")
BODY = b"0123456789"
#: Where each of the clouds' drivers looks for the one object.
PATHS = ("key.bin", "bench/key.bin", "download/storage/v1/b/bench/o/key.bin", "devstoreaccount1/bench/key.bin")
WHO: dict[str, tuple[str, dict[str, object]]] = {
    "s3": ("s3://bench", {"access_key_id": "AKIAEXAMPLEKEY", "secret_access_key": "wJalrXUtnFEMI-example"}),
    "gcs": ("gs://bench", {"token": "ya29.example-token"}),
    "azure": ("az://bench", {"account_name": "devstoreaccount1", "account_key": "c2VjcmV0LWtleQ=="}),
}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def certificate(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    return context


@pytest.fixture(scope="module")
def files(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """``own``: the authority of the server; ``other``: another one; ``folder``: one that holds ``own`` and a README."""
    place = tmp_path_factory.mktemp("authorities")
    authority.cert_pem.write_to_path(str(place / "own.pem"))
    trustme.CA().cert_pem.write_to_path(str(place / "other.pem"))
    folder = place / "folder"
    folder.mkdir()
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    return {"own": str(place / "own.pem"), "other": str(place / "other.pem"), "folder": str(folder)}


@pytest.fixture(scope="module")
def server(certificate: ssl.SSLContext) -> Iterator[FaultServer]:
    with FaultServer(tls=certificate) as running:
        for path in PATHS:
            running.put(path, BODY)
        yield running


def read(cloud: str, driver: str, endpoint: str, **options: object) -> bytes:
    if cloud == "http":
        url, given = endpoint, options
    else:
        url, who = WHO[cloud]
        given = {"endpoint_url": endpoint, **who, **options}
    downloader = forebay.open_downloader(url, options={"driver": driver, **given})
    try:
        return downloader.download_bytes("key.bin", 0, None)
    finally:
        downloader.close()


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("cloud", CLOUDS)
class TestOneRule:
    def refused(self, cloud: str, driver: str, server: FaultServer, **options: object) -> None:
        with pytest.raises(StorageError, match="ca_file") as error:
            read(cloud, driver, server.url(), **options)
        assert not isinstance(error.value, TransientError), "trying again would not help"

    def test_authorities_of_the_system_are_those_of_the_variables(
        self, cloud: str, driver: str, server: FaultServer, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.refused(cloud, driver, server)
        monkeypatch.setenv("SSL_CERT_FILE", files["own"])
        assert read(cloud, driver, server.url()) == BODY
        monkeypatch.setenv("SSL_CERT_FILE", files["other"])
        self.refused(cloud, driver, server)
        monkeypatch.setenv("SSL_CERT_DIR", files["folder"])
        assert read(cloud, driver, server.url()) == BODY, "one beside the other"
        monkeypatch.delenv("SSL_CERT_FILE")
        assert read(cloud, driver, server.url()) == BODY

    def test_ca_file_is_trusted_besides(
        self, cloud: str, driver: str, server: FaultServer, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert read(cloud, driver, server.url(), ca_file=files["own"]) == BODY
        self.refused(cloud, driver, server, ca_file=files["other"])
        monkeypatch.setenv("SSL_CERT_FILE", files["own"])
        assert read(cloud, driver, server.url(), ca_file=files["other"]) == BODY
        monkeypatch.setenv("SSL_CERT_FILE", files["other"])
        assert read(cloud, driver, server.url(), ca_file=files["own"]) == BODY

    def test_variable_of_a_cloud_is_for_that_cloud_and_weaker_than_ca_file(
        self, cloud: str, driver: str, server: FaultServer, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_CA_BUNDLE", files["own"])
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", files["own"])
        monkeypatch.setenv("CURL_CA_BUNDLE", files["own"])
        if cloud == "s3":
            assert read(cloud, driver, server.url()) == BODY
        else:
            self.refused(cloud, driver, server)
        self.refused(cloud, driver, server, ca_file=files["other"])

    def test_what_is_named_has_to_be_there(
        self, cloud: str, driver: str, server: FaultServer, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", *(["AWS_CA_BUNDLE"] if cloud == "s3" else [])):
            with monkeypatch.context() as patch:
                patch.setenv(name, files["own"] + ".none")
                with pytest.raises(ConfigError, match=name):
                    read(cloud, driver, server.url())
                assert read(cloud, driver, server.url(), verify_tls=False) == BODY, "nobody is looked up there"

    def test_server_without_tls_is_no_fault_of_a_certificate(self, cloud: str, driver: str) -> None:
        """M1, M6: http:// was meant; no certificate helps, and no second try."""
        with FaultServer() as plain, pytest.raises(StorageError, match="http://") as error:
            read(cloud, driver, plain.url().replace("http:", "https:"))
        assert type(error.value) is StorageError
        assert "certificate" not in str(error.value)

    def test_proxy_and_no_proxy(self, cloud: str, driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """M7: aiohttp, botocore and azure-core each have a rule of their own for NO_PROXY."""
        with FaultServer() as proxy:
            for path in PATHS:
                proxy.put(f"http://store.invalid/{path}", BODY)
                proxy.put(path, b"direct")
            monkeypatch.setenv("HTTP_PROXY", proxy.url())
            account = "/devstoreaccount1" if cloud == "azure" else ""
            assert read(cloud, driver, f"http://store.invalid{account}") == BODY
            for pattern in ("127.0.0.0/8", "example.org, 127.0.0.1", "*"):
                monkeypatch.setenv("NO_PROXY", pattern)
                assert read(cloud, driver, proxy.url()) == b"direct", pattern
            monkeypatch.setenv("NO_PROXY", "example.org")
            monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
            with pytest.raises(ConnectionFailedError):
                read(cloud, driver, proxy.url())


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("cloud", ["s3", "gcs", "azure"])
def test_real_servers_behind_tls(
    request: pytest.FixtureRequest,
    cloud: str,
    driver: str,
    certificate: ssl.SSLContext,
    files: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Listing, size and bytes over https with an authority of one's own, and with signatures that the server checks."""
    store: Weed | FakeGcs | Azurite = request.getfixturevalue(
        {"s3": "weed", "gcs": "fakegcs", "azure": "azurite"}[cloud]
    )
    store.put("tls/a.bin", BODY)
    host = None if isinstance(store, Weed) else f"127.0.0.1:{store.port}"
    monkeypatch.setenv("SSL_CERT_FILE", files["own"])
    with Proxy(store.port, Plan(), host=host, tls=certificate) as front:
        endpoint = store.endpoint.replace(f"http://127.0.0.1:{store.port}", front.endpoint)
        options = {**store.options, "endpoint_url": endpoint, "driver": driver}
        downloader = forebay.open_downloader(f"{store.url}/tls", options=options)
        assert [(one.key, one.size) for one in downloader.list()] == [("a.bin", len(BODY))]
        assert downloader.stat("a.bin").size == len(BODY)
        assert downloader.download_bytes("a.bin", 2, 3) == BODY[2:5]
        downloader.close()


def test_words_for_doctor_name_the_files(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert tls.trusted(Network()) == "certificates of the system are trusted"
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", files["own"])
    assert "REQUESTS_CA_BUNDLE is another library's: not read" in tls.trusted(Network()), "its owner thinks it is"
    monkeypatch.setenv("SSL_CERT_FILE", files["own"])
    words = tls.trusted(Network(ca_file=Path(files["other"]), ca_origin="AWS_CA_BUNDLE"))
    assert files["own"] in words
    assert f"{files['other']} (AWS_CA_BUNDLE)" in words
    assert "not checked" in tls.trusted(Network(verify_tls=False))


def test_nothing_of_the_system_is_lost(authority: trustme.CA, files: dict[str, str]) -> None:
    """A file of one's own comes to the system's authorities; it does not take their place."""
    alone, more = tls.context(Network()), tls.context(Network(ca_file=Path(files["own"])))
    assert more.cert_store_stats()["x509_ca"] == alone.cert_store_stats()["x509_ca"] + 1


def test_a_context_is_made_once_and_anew_when_a_file_changes(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Risk M6: a folder of authorities takes a tenth of a second to read; a renewed file has to count all the same."""
    folder = tmp_path / "authorities"
    folder.mkdir()
    authority.cert_pem.write_to_path(str(folder / "one.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(folder))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    network = Network()
    first = tls.context(network)
    assert tls.context(network) is first
    trustme.CA().cert_pem.write_to_path(str(folder / "two.pem"))
    assert len(first.get_ca_certs()) == 1
    assert len(tls.context(network).get_ca_certs()) == 2
