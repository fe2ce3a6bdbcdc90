"""The demo's items: made from their number, and each able to say whether it arrived whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import xxhash

__all__ = ["ITEM_BYTES", "Checker", "make_items"]

#: The payload of one item.
ITEM_BYTES = 32 << 10


def make_items(count: int) -> Iterator[dict[str, object]]:
    """Yield items 0 to ``count - 1``; the same number always gives the same bytes."""
    for number in range(count):
        payload = np.random.Generator(np.random.PCG64(number)).bytes(ITEM_BYTES)
        yield {"number": number, "payload": payload, "checksum": xxhash.xxh3_64_hexdigest(payload)}


class Checker:
    """Counts the items of one pass: each once, each whole."""

    def __init__(self, count: int) -> None:
        self._seen = bytearray(count)
        self.good = 0
        self.bad = 0

    def check(self, item: Mapping[str, object]) -> int:
        """Take one item and return the bytes of its payload."""
        number, payload = item["number"], item["payload"]
        whole = (
            isinstance(number, int)
            and isinstance(payload, bytes | bytearray | memoryview)
            and 0 <= number < len(self._seen)
            and not self._seen[number]
            and len(payload) == ITEM_BYTES
            and xxhash.xxh3_64_hexdigest(payload) == item["checksum"]
        )
        if not whole:
            self.bad += 1
            return 0
        assert isinstance(number, int)
        self._seen[number] = 1
        self.good += 1
        return ITEM_BYTES

    @property
    def missing(self) -> int:
        """Items that never came."""
        return len(self._seen) - self.good
