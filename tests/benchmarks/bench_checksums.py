"""What it costs to compare an object with its store's checksum: one 64 MiB object of GCS in parts, by algorithm.

Run ``python tests/benchmarks/bench_checksums.py [--rounds N]``; it needs fake-gcs-server, gcsfs, google-crc32c and
awscrt. Prints MB/s and CPU seconds a GB of this process, the median of interleaved rounds; ``none`` compares nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from servers.fakegcs import FakeGcs
from servers.transfer_kit import SimpleLimiter, fetch, make_source

from forebay._checksums import available, start_checksum
from forebay._transfer import TransferPolicy
from forebay.types import RangeRead
from forebay_gcs import GcsDownloader

SIZE = 64 << 20


class Telling(GcsDownloader):
    """Tells the checksum that the benchmark wants, in place of the store's own."""

    told: tuple[str, ...] = ()

    async def aread_range(self, key: str, offset: int, length: int, *, if_match: str | None = None) -> RangeRead:
        """As the backend does it."""
        got = await super().aread_range(key, offset, length, if_match=if_match)
        return RangeRead(data=got.data, info=dataclasses.replace(got.info, checksums=self.told))


def checksum(name: str, data: bytes) -> tuple[str, ...]:
    """What a store would say of ``data``."""
    started = start_checksum([f"{name}:"])
    if started is None:
        return ()
    started[1].update(data)
    return (f"{name}:{started[1].hexdigest()}",)


def measure(gcs: FakeGcs, told: tuple[str, ...], folder: Path) -> tuple[float, float]:
    """MB/s and CPU seconds a GB of one round."""
    downloader = Telling(gcs.url, {**gcs.options, "driver": "fsspec"})
    downloader.told = told
    policy = TransferPolicy()

    async def main() -> tuple[float, float]:
        found = 0.0, 0.0
        for name in ("warm", "measured"):
            cpu, start = time.process_time(), time.perf_counter()
            path = folder / name
            await fetch(
                make_source(downloader, "object.bin", stored=SIZE), path, policy=policy, limiter=SimpleLimiter()
            )
            found = SIZE / (time.perf_counter() - start) / 1e6, (time.process_time() - cpu) / SIZE * 1e9
            path.unlink()
        await downloader.aclose()
        return found

    try:
        return asyncio.run(main())
    finally:
        downloader.close()


def main() -> None:
    """Interleaved rounds, so that all see the same neighbours on the machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    data = os.urandom(SIZE)
    told = {"none": (), **{name: checksum(name, data) for name in available()}}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in told}
    with tempfile.TemporaryDirectory() as folder, FakeGcs(Path(folder)) as gcs:
        gcs.put("object.bin", data)
        for _ in range(rounds):
            for name, one in told.items():
                found[name].append(measure(gcs, one, Path(folder)))
    for name, rows in found.items():
        speed, cpu = (statistics.median(row[place] for row in rows) for place in (0, 1))
        print(f"{name:10} {speed:8.0f} MB/s   {cpu:.2f} cpu s/GB")


if __name__ == "__main__":
    main()
