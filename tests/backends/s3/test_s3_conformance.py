"""Both drivers pass the suite that third parties get, on two servers (M11: one contract for all)."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError
from servers.moto import Moto
from servers.store import StoreRemote
from servers.weed import Weed

from forebay.testing import DownloaderConformance


class WeedRemote(StoreRemote):
    """SeaweedFS keeps objects as files of a file system: some keys it cannot hold, and some it would change."""

    def put(self, key: str, data: bytes) -> None:
        if key.endswith("/"):
            raise ValueError("it becomes a folder")
        try:
            super().put(key, data)
        except ClientError as exc:
            raise ValueError(str(exc)) from exc


class TestObstoreOnWeed(DownloaderConformance):
    @pytest.fixture
    def remote(self, weed: Weed) -> WeedRemote:
        return WeedRemote(weed, driver="obstore")


class TestS3fsOnWeed(DownloaderConformance):
    @pytest.fixture
    def remote(self, weed: Weed) -> WeedRemote:
        return WeedRemote(weed, driver="fsspec")


class TestObstoreOnMoto(DownloaderConformance):
    @pytest.fixture
    def remote(self, moto: Moto) -> StoreRemote:
        return StoreRemote(moto, driver="obstore")


@pytest.mark.slow
class TestS3fsOnMoto(DownloaderConformance):
    @pytest.fixture
    def remote(self, moto: Moto) -> StoreRemote:
        return StoreRemote(moto, driver="fsspec")
