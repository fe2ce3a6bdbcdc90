"""Both drivers pass the suite that third parties get, against fake-gcs-server (M11: one contract for all)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest
from servers.fakegcs import FakeGcs
from servers.store import StoreRemote

from forebay.testing import DownloaderConformance

pytestmark = pytest.mark.xdist_group("gcs")


class TestObstore(DownloaderConformance):
    known_gaps: ClassVar[Mapping[str, str]] = {
        "test_async_upload_can_be_read": "fake-gcs-server takes no upload through the XML API"
    }

    @pytest.fixture
    def remote(self, fakegcs: FakeGcs) -> StoreRemote:
        return StoreRemote(fakegcs, driver="obstore")


class TestGcsfs(DownloaderConformance):
    @pytest.fixture
    def remote(self, fakegcs: FakeGcs) -> StoreRemote:
        return StoreRemote(fakegcs, driver="fsspec")
