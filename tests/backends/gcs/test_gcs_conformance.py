"""Both drivers pass the suite that third parties get, against fake-gcs-server (M11: one contract for all)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest
from servers.fakegcs import FakeGcs
from servers.gcsxml import GcsXml
from servers.store import StoreRemote

from forebay.testing import DownloaderConformance

pytestmark = pytest.mark.xdist_group("gcs")


NO_UPLOADS = "fake-gcs-server takes no upload through the XML API"


class TestObstore(DownloaderConformance):
    known_gaps: ClassVar[Mapping[str, str]] = {
        "test_async_upload_can_be_read": NO_UPLOADS,
        "test_upload_can_be_read_by_another": NO_UPLOADS,
        "test_upload_replaces_the_object": NO_UPLOADS,
        "test_upload_says_when_it_cannot": NO_UPLOADS,
    }

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
