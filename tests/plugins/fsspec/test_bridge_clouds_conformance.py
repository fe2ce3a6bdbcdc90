"""The bridge over the clouds' own file systems passes the suite, with options in fsspec's words (M11)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from servers.azurite import Azurite
from servers.fakegcs import FakeGcs
from servers.moto import Moto
from servers.store import Store

from forebay.testing import DownloaderConformance

pytestmark = pytest.mark.slow

#: What aiohttp says of the bodies that gcsfs and Azure's SDK hand to it: theirs, and nothing that a reader sees.
SDK_SENDS_BYTES = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")


class BridgeRemote:
    """A store, asked through ``fsspec+PROTOCOL://`` and written to through a client that is not fsspec's."""

    def __init__(self, store: Store, protocol: str, **options: object) -> None:
        self.url = f"fsspec+{protocol}://{store.BUCKET}"
        self.options: Mapping[str, object] = options
        self.put, self.delete = store.put, store.delete

    def object_url(self, key: str) -> str:
        return f"{self.url}/{key}"


@pytest.mark.xdist_group("s3")
class TestS3(DownloaderConformance):
    @pytest.fixture
    def remote(self, moto: Moto) -> BridgeRemote:
        client = {"region_name": moto.REGION}
        given = {"key": moto.key, "secret": moto.secret, "endpoint_url": moto.endpoint, "client_kwargs": client}
        return BridgeRemote(moto, "s3", **given)


@SDK_SENDS_BYTES
@pytest.mark.xdist_group("gcs")
class TestGcs(DownloaderConformance):
    @pytest.fixture
    def remote(self, fakegcs: FakeGcs) -> BridgeRemote:
        return BridgeRemote(fakegcs, "gs", project="test", token="anon", endpoint_url=fakegcs.endpoint)


@SDK_SENDS_BYTES
@pytest.mark.xdist_group("azure")
class TestAzure(DownloaderConformance):
    @pytest.fixture
    def remote(self, azurite: Azurite) -> BridgeRemote:
        return BridgeRemote(azurite, "abfs", connection_string=azurite.connection_string)
