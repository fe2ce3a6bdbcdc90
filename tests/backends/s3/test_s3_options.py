"""Options, environment and profiles: an explicit option is the stronger one on every path (L8, L10, M1 to M7, M10)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from forebay import open_downloader
from forebay.downloader import probe
from forebay.exceptions import ConfigError, InvalidURLError, MissingDependencyError
from forebay.testing import FaultServer, run_async
from forebay.testing._faults import ServedRequest
from forebay_s3 import S3Downloader
from forebay_s3._options import parse_options

Open = Callable[..., S3Downloader]
KEYS = {"access_key_id": "AKIAEXAMPLEKEY", "secret_access_key": "wJalrXUtnFEMI-example-secret"}


def every_path(downloader: S3Downloader, tmp_path: Path) -> None:
    """Each kind of request, sync and async, with 4 KiB under ``key.bin``."""
    (tmp_path / "up.bin").write_bytes(b"up")
    downloader.download_bytes("key.bin")
    downloader.download_bytes("key.bin", 2, 4)
    downloader.stat("key.bin")
    downloader.upload_file("up.bin", tmp_path / "up.bin")

    async def main() -> None:
        await downloader.aread_range("key.bin", 2, 4)
        await downloader.adownload_bytes("key.bin")
        await downloader.astat("key.bin")
        await downloader.aupload_file("up.bin", tmp_path / "up.bin")
        await downloader.aclose()

    run_async(main())


def listing(faults: FaultServer) -> None:
    """The answer to a listing of the bucket."""
    faults.put(
        "bucket",
        b'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        b"<Name>bucket</Name><Prefix></Prefix><KeyCount>1</KeyCount><MaxKeys>1000</MaxKeys>"
        b"<IsTruncated>false</IsTruncated><Contents><Key>key.bin</Key><LastModified>2026-01-01T00:00:00.000Z"
        b"</LastModified><ETag>&quot;e&quot;</ETag><Size>4096</Size></Contents></ListBucketResult>",
    )


def sent(faults: FaultServer, downloader: S3Downloader, tmp_path: Path) -> list[ServedRequest]:
    """The requests that all paths have led to."""
    faults.put("bucket/key.bin", bytes(4096))
    listing(faults)
    every_path(downloader, tmp_path)
    assert [info.key for info in downloader.list()] == ["key.bin"]
    requests = faults.requests
    assert {one.method for one in requests} == {"GET", "HEAD", "PUT"}
    assert len(requests) == 9, "each path is one request"
    return requests


def test_explicit_options_are_stronger_than_the_environment(
    faults: FaultServer, faulty: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M1, M2, M3: no path goes to another endpoint, region or account; M5: no header that other stores refuse."""
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
        "AWS_REGION": "xx-wrong-1",
        "AWS_DEFAULT_REGION": "xx-wrong-1",
        "AWS_ACCESS_KEY_ID": "AKIAWRONG",
        "AWS_SECRET_ACCESS_KEY": "wrong-secret",
        "AWS_SESSION_TOKEN": "wrong-token",
        "AWS_PROFILE": "wrong",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_REQUEST_PAYER": "true",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
    }.items():
        monkeypatch.setenv(name, value)
    for request in sent(faults, faulty(region="eu-right-1"), tmp_path):
        authorization = request.headers["authorization"]
        assert "Credential=AKIAEXAMPLEKEY/" in authorization
        assert "/eu-right-1/s3/" in authorization
        assert "x-amz-security-token" not in request.headers, "keys are never joined to a token of somebody else"
        assert "x-amz-request-payer" not in request.headers
        unknown = [name for name in request.headers if "checksum" in name or name == "x-amz-sdk-checksum-algorithm"]
        assert unknown == []
        assert request.path.startswith("/bucket")


def test_environment_alone_is_enough(
    faults: FaultServer, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL_S3": faults.url(),
        "AWS_REGION": "eu-right-1",
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLEKEY",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-environment",
        "AWS_SESSION_TOKEN": "token-of-the-environment",
    }.items():
        monkeypatch.setenv(name, value)
    for request in sent(faults, opened("s3://bucket"), tmp_path):
        assert "Credential=AKIAEXAMPLEKEY/" in request.headers["authorization"]
        assert request.headers["x-amz-security-token"] == "token-of-the-environment"


def test_anonymous_signs_nothing_anywhere(
    faults: FaultServer, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L8."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAWRONG")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    for request in sent(faults, opened("s3://bucket", endpoint_url=faults.url(), anonymous=True), tmp_path):
        assert "authorization" not in request.headers
        assert "x-amz-security-token" not in request.headers


def test_requester_pays_goes_with_every_request(faults: FaultServer, faulty: Open, tmp_path: Path) -> None:
    """L10."""
    for request in sent(faults, faulty(requester_pays=True), tmp_path):
        assert request.headers.get("x-amz-request-payer") == "requester", request.method


def test_profile_of_the_files(
    faults: FaultServer, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = AKIADEFAULT\naws_secret_access_key = one\n"
        "[other]\naws_access_key_id = AKIAOTHER\naws_secret_access_key = two\naws_session_token = token-of-other\n"
    )
    (tmp_path / "config").write_text(f"[profile other]\nregion = eu-other-1\nendpoint_url = {faults.url()}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for request in sent(faults, opened("s3://bucket", profile="other"), tmp_path):
        assert "Credential=AKIAOTHER/" in request.headers["authorization"]
        assert "/eu-other-1/s3/" in request.headers["authorization"]
        assert request.headers["x-amz-security-token"] == "token-of-other"
    faults.forget_requests()
    for request in sent(faults, opened("s3://bucket", endpoint_url=faults.url()), tmp_path):
        assert "Credential=AKIADEFAULT/" in request.headers["authorization"]
    with pytest.raises(ConfigError, match="no AWS profile 'absent'"):
        opened("s3://bucket", profile="absent")


def test_profile_that_the_sdk_has_to_resolve_takes_s3fs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: FaultServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A credential_process is run by botocore, so that driver is chosen and says why; to the log once a root."""
    (tmp_path / "keys.sh").write_text(
        '#!/bin/sh\necho \'{"Version": 1, "AccessKeyId": "AKIAPROCESS", "SecretAccessKey": "from-a-process"}\'\n'
    )
    (tmp_path / "keys.sh").chmod(0o700)
    (tmp_path / "config").write_text(f"[profile tool]\ncredential_process = {tmp_path / 'keys.sh'}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    faults.put("told-once/key.bin", b"0123456789")
    for _ in range(2):
        downloader = S3Downloader("s3://told-once", {"endpoint_url": faults.url(), "profile": "tool"})
        said = probe(downloader)
        assert said.driver == "fsspec"
        assert "credential_process" in said.reason
        assert downloader.download_bytes("key.bin", 2, 4) == b"2345"
        downloader.close()
    assert [one.getMessage() for one in caplog.records if one.name == "forebay.drivers"] == [
        f"s3://told-once: driver fsspec instead of obstore: {said.reason}"
    ]
    assert "Credential=AKIAPROCESS/" in faults.requests[0].headers["authorization"]
    asked = S3Downloader("s3://told-once", {"endpoint_url": faults.url(), "profile": "tool", "driver": "obstore"})
    with pytest.raises(ConfigError, match="credential_process"):
        asked.download_bytes("key.bin")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"driver": "boto3"}, "driver"),
        ({"access_key_id": "A"}, "secret_access_key"),
        ({"secret_access_key": "A"}, "access_key_id"),
        ({"session_token": "A"}, "session_token"),
        ({"credentials": "A"}, "callable"),
        ({"endpoint_url": "127.0.0.1:9000"}, "endpoint_url"),
        ({"endpoint_url": "http://user:secret-in-url@host"}, "endpoint_url"),
        ({"addressing_style": "sideways"}, "addressing_style"),
        ({"timeout": 0.0}, "timeout"),
        ({"ca_file": "/no/such/file"}, "ca_file"),
        ({"region": ""}, "region"),
    ],
    ids=str,
)
def test_option_that_cannot_be_used_is_refused_at_once(options: Mapping[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        S3Downloader("s3://bucket", options)
    assert "secret-in-url" not in str(error.value)


def test_near_misses_of_options_schemes_and_buckets() -> None:
    """M12, S6."""
    with pytest.raises(ConfigError, match="did you mean 'endpoint_url'"):
        open_downloader("s3://bucket", options={"endpoint_uri": "http://127.0.0.1:1"})
    assert isinstance(open_downloader("S3://Bucket/key"), S3Downloader)
    with pytest.raises(ConfigError):
        open_downloader("s3x://bucket")
    for url in ("s3://", "s3:///key", "s3://user:password@bucket/key", "s3://buc ket", "s3://bucket?x=1"):
        with pytest.raises(InvalidURLError) as error:
            open_downloader(url)
        assert "password@" not in str(error.value)


@pytest.mark.parametrize(
    ("bucket", "options", "path_style"),
    [
        ("bucket", {}, False),
        ("bucket.with.dots", {}, True),
        ("bucket", {"endpoint_url": "http://127.0.0.1:9000"}, True),
        ("bucket", {"endpoint_url": "https://s3.eu-west-1.amazonaws.com"}, False),
        ("bucket", {"endpoint_url": "http://127.0.0.1:9000", "addressing_style": "virtual"}, False),
        ("bucket", {"addressing_style": "path"}, True),
    ],
)
def test_addressing_style(bucket: str, options: Mapping[str, object], path_style: bool) -> None:
    """M4."""
    assert parse_options(options, bucket).path_style is path_style


def test_missing_s3fs_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4."""
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as Python marks what cannot be imported
    with pytest.raises(MissingDependencyError, match="pip install"):
        S3Downloader("s3://bucket", {"driver": "fsspec", **KEYS}).download_bytes("key.bin")


def test_alias_of_a_compatible_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: FaultServer) -> None:
    (tmp_path / "forebay.toml").write_text(
        f'[scheme.minio]\nbackend = "s3"\nendpoint_url = "{faults.url()}"\nanonymous = true\n'
    )
    monkeypatch.setenv("FOREBAY_CONFIG", str(tmp_path / "forebay.toml"))
    faults.put("bucket/data/key.bin", b"0123456789")
    downloader = open_downloader("minio://bucket/data")
    assert downloader.download_bytes("key.bin", 2, 4) == b"2345"
    downloader.close()


def test_probe_tells_driver_version_and_reason() -> None:
    for options, driver, why in (({}, "obstore", "default"), ({"driver": "fsspec"}, "fsspec", "asked for")):
        said = probe(S3Downloader("s3://bucket", {**KEYS, **options}))
        assert (said.driver, said.native_async, said.ranges, said.stat, said.list) == (driver, True, True, True, True)
        assert why in said.reason
        assert said.version


def test_endpoint_says_which_store_is_meant_wherever_it_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """M10, O7: what is cached from one endpoint is never served for the other."""
    assert S3Downloader.location_options(KEYS) == {}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000/")
    assert S3Downloader.location_options(KEYS) == {"endpoint_url": "http://127.0.0.1:9000"}
    explicit = {**KEYS, "endpoint_url": "http://127.0.0.1:9001"}
    assert S3Downloader.location_options(explicit) == {"endpoint_url": "http://127.0.0.1:9001"}


def test_plugin_module_imports_no_sdk() -> None:
    """A plugin only registers: obstore and s3fs are imported when a URL is opened, and then only the one in use."""
    script = (
        "import sys, forebay_s3.plugin as p\n"
        "(spec,) = p.forebay_register_backends()\n"
        "sdks = {'obstore', 's3fs', 'fsspec', 'botocore', 'aiohttp'}\n"
        "assert not sdks & set(sys.modules), sdks & set(sys.modules)\n"
        "spec.load()('s3://bucket', {})\n"
        "assert not sdks & set(sys.modules), sdks & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
