"""What loggers write at DEBUG: ours no secret, nor any SDK's but the one that docs/errors.md names (U1)."""

from __future__ import annotations

import logging

import pytest

import forebay
from forebay.testing import FaultServer

TOKEN, SECRET = "example-session-token-0123456789", "wJalrXUtnFEMI-example-secret"
SIGNATURE = "c2lnbmF0dXJlLW9mLWEtdGVzdA"
WAYS: dict[str, tuple[str, str, dict[str, object]]] = {
    "s3": (
        "s3://bucket",
        "bucket/key.bin",
        {"access_key_id": "AKIA", "secret_access_key": SECRET, "session_token": TOKEN},
    ),
    "gcs": ("gs://bucket", "bucket/key.bin", {"token": TOKEN}),
    "azure": ("az://data", "lake1/data/key.bin", {"account_name": "lake1", "sas_token": f"sv=1&sr=c&sig={SIGNATURE}"}),
}


@pytest.mark.parametrize("driver", ["obstore", "fsspec"])
@pytest.mark.parametrize("cloud", WAYS)
def test_no_secret_in_any_log_but_the_one_that_is_documented(
    caplog: pytest.LogCaptureFixture, cloud: str, driver: str
) -> None:
    url, place, who = WAYS[cloud]
    caplog.set_level(logging.DEBUG)
    with FaultServer() as server:
        for where in (place, "download/storage/v1/b/bucket/o/key.bin"):
            server.put(where, b"0123456789")
        endpoint = server.url() + ("/lake1" if cloud == "azure" else "")
        downloader = forebay.open_downloader(url, options={**who, "endpoint_url": endpoint, "driver": driver})
        assert downloader.download_bytes("key.bin") == b"0123456789"
        downloader.close()
    told = {one.name for one in caplog.records for secret in (TOKEN, SECRET, SIGNATURE) if secret in one.getMessage()}
    assert told == ({"botocore.endpoint"} if (cloud, driver) == ("s3", "fsspec") else set())
