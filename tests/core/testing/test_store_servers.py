"""The servers that backends are tested against start, hold what is put, refuse strangers, and end."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from servers.azurite import Azurite
from servers.fakegcs import FakeGcs
from servers.moto import Moto
from servers.store import call
from servers.weed import Weed

KEYS = ["a.bin", "folder/b c%20+#?.bin", "ü/é=[1].bin"]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", ["weed", "moto"])
def test_s3_holds_what_is_put(request: pytest.FixtureRequest, name: str, key: str) -> None:
    server: Weed | Moto = request.getfixturevalue(name)
    server.put(key, b"bytes")
    assert server.client.get_object(Bucket=server.BUCKET, Key=key)["Body"].read() == b"bytes"
    assert call("GET", f"{server.endpoint}/{server.BUCKET}/{quote(key)}", ok=(403,)).status == 403
    server.delete(key)


@pytest.mark.parametrize("key", KEYS)
def test_gcs_holds_what_is_put(fakegcs: FakeGcs, key: str) -> None:
    fakegcs.put(key, b"bytes")
    listing = call("GET", f"{fakegcs.endpoint}/storage/v1/b/{fakegcs.BUCKET}/o")
    assert b'"size": "5"' in listing.body or b'"size":"5"' in listing.body
    fakegcs.delete(key)
    with pytest.raises(FileNotFoundError):
        fakegcs.delete(key)


@pytest.mark.parametrize("key", KEYS)
def test_azure_holds_what_is_put(azurite: Azurite, key: str) -> None:
    azurite.put(key, b"bytes")
    listing = f"{azurite.endpoint}/{azurite.BUCKET}?restype=container&comp=list"
    assert b"<Content-Length>5</Content-Length>" in call("GET", f"{listing}&{azurite.sas()}").body
    assert call("GET", listing, ok=(403, 404, 409)).status in (403, 404, 409)
    azurite.delete(key)
    with pytest.raises(FileNotFoundError):
        azurite.delete(key)
