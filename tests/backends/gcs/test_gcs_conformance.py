"""Both drivers pass the suite that third parties get, against fake-gcs-server (M11: one contract for all)."""

from __future__ import annotations

import pytest
from servers.fakegcs import FakeGcs
from servers.gcsxml import GcsXml
from servers.store import StoreRemote

from forebay.testing import DownloaderConformance

pytestmark = pytest.mark.xdist_group("gcs")


class TestObstore(DownloaderConformance):
    """The emulator takes no upload of obstore's, and the backend says so."""

    @pytest.fixture
    def remote(self, fakegcs: FakeGcs) -> StoreRemote:
        return StoreRemote(fakegcs, driver="obstore")


class TestObstoreOnXml(DownloaderConformance):
    """All that the emulator cannot: Google's XML API as SeaweedFS speaks it."""

    @pytest.fixture
    def remote(self, gcsxml: GcsXml) -> StoreRemote:
        return StoreRemote(gcsxml, driver="obstore")


class TestGcsfs(DownloaderConformance):
    @pytest.fixture
    def remote(self, fakegcs: FakeGcs) -> StoreRemote:
        return StoreRemote(fakegcs, driver="fsspec")
