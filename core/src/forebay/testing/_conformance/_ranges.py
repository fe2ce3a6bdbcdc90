"""Byte ranges through ``download_bytes``."""

from __future__ import annotations

import pytest

from forebay.downloader import Downloader
from forebay.exceptions import InvalidRangeError
from forebay.testing._conformance._store import Store, SuiteBase

__all__ = ["RangeTests"]

DATA = bytes(range(100))


class RangeTests(SuiteBase):
    """A range means the same everywhere (``offset, length``)."""

    def test_range_is_the_exact_slice(self, store: Store, downloader: Downloader) -> None:
        key = store.put("one.bin", DATA)
        for offset, length in ((0, 1), (0, 100), (10, 25), (99, 1), (50, 50)):
            got = downloader.download_bytes(key, offset, length)
            assert got == DATA[offset : offset + length], f"offset {offset}, length {length}"

    def test_range_without_length_goes_to_the_end(self, store: Store, downloader: Downloader) -> None:
        key = store.put("one.bin", DATA)
        assert downloader.download_bytes(key, 60) == DATA[60:]
        assert downloader.download_bytes(key, 60, None) == DATA[60:]

    def test_range_past_the_end_is_cut(self, store: Store, downloader: Downloader) -> None:
        key = store.put("one.bin", DATA)
        assert downloader.download_bytes(key, 90, 500) == DATA[90:]

    def test_range_of_length_zero_is_empty(self, store: Store, downloader: Downloader) -> None:
        key = store.put("one.bin", DATA)
        assert downloader.download_bytes(key, 10, 0) == b""
        assert downloader.download_bytes(key, 0, 0) == b""

    def test_range_that_starts_at_or_past_the_end_is_an_error(self, store: Store, downloader: Downloader) -> None:
        key = store.put("one.bin", DATA)
        for offset in (100, 101, 5000):
            with pytest.raises(InvalidRangeError):
                downloader.download_bytes(key, offset, 5)

    def test_negative_range_is_an_error(self, store: Store, downloader: Downloader) -> None:
        key = store.put("one.bin", DATA)
        for offset, length in ((-1, 5), (0, -5), (-10, None)):
            with pytest.raises(InvalidRangeError):
                downloader.download_bytes(key, offset, length)

    def test_range_of_a_missing_key_is_not_found(self, store: Store, downloader: Downloader) -> None:
        store.put("there.bin", DATA)
        with pytest.raises(FileNotFoundError):
            downloader.download_bytes(store.key("absent.bin"), 10, 5)
