"""Both drivers pass the suite that third parties get, against Azurite (M11: one contract for all)."""

from __future__ import annotations

import pytest
from servers.azurite import Azurite
from servers.store import StoreRemote

from forebay.testing import DownloaderConformance

pytestmark = pytest.mark.xdist_group("azure")


class TestObstore(DownloaderConformance):
    @pytest.fixture
    def remote(self, azurite: Azurite) -> StoreRemote:
        return StoreRemote(azurite, driver="obstore")


class TestSdkOfAdlfs(DownloaderConformance):
    @pytest.fixture
    def remote(self, azurite: Azurite) -> StoreRemote:
        return StoreRemote(azurite, driver="fsspec")


class TestSharedAccessSignature(DownloaderConformance):
    @pytest.fixture
    def remote(self, azurite: Azurite) -> StoreRemote:
        remote = StoreRemote(azurite)
        sas = azurite.sas(permissions="racwdl")
        remote.options = {"endpoint_url": azurite.endpoint, "account_name": azurite.ACCOUNT, "sas_token": sas}
        return remote
