"""One 64 MiB object of S3 in parts through `aread_range`, against bare obstore doing the same ranges.

Run ``python tests/benchmarks/bench_s3_get.py [--rounds N] [--size MIB] [--part MIB] [--in-flight N]``; it needs weed
(SeaweedFS). Prints MB/s, CPU seconds a GB of this process and the median of interleaved rounds with their spread, then
the ratio; and, counted by a server of ours in a run of its own, the requests that one object costs.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import obstore
from obstore.store import S3Store

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from servers.weed import Weed

from forebay.testing import FaultServer
from forebay_s3 import S3Downloader

MIB = 1 << 20
Read = Callable[[int, int], Awaitable[int]]


async def parts(read: Read, size: int, part: int, in_flight: int) -> None:
    """All ranges of the object, so many at a time."""
    gate = asyncio.Semaphore(in_flight)

    async def one(offset: int) -> int:
        async with gate:
            return await read(offset, min(part, size - offset))

    assert sum(await asyncio.gather(*(one(offset) for offset in range(0, size, part)))) == size


def ours(downloader: S3Downloader) -> Read:
    """The way of the engine: one `aread_range` a part."""

    async def read(offset: int, length: int) -> int:
        return memoryview((await downloader.aread_range("object.bin", offset, length)).data).nbytes

    return read


def bare(store: S3Store) -> Read:
    """obstore alone."""

    async def read(offset: int, length: int) -> int:
        return memoryview(await obstore.get_range_async(store, "object.bin", start=offset, length=length)).nbytes

    return read


def measure(read: Read, args: argparse.Namespace, downloader: S3Downloader | None = None) -> tuple[float, float]:
    """MB/s and CPU seconds a GB of one round."""
    size = args.size * MIB

    async def main() -> tuple[float, float]:
        await parts(read, size, args.part * MIB, args.in_flight)  # connections are made, caches are warm
        cpu, start = time.process_time(), time.perf_counter()
        await parts(read, size, args.part * MIB, args.in_flight)
        result = size / (time.perf_counter() - start) / 1e6, (time.process_time() - cpu) / size * 1e9
        if downloader is not None:
            await downloader.aclose()
        return result

    return asyncio.run(main())


def requests_of_one_object(args: argparse.Namespace, driver: str) -> int:
    """How many requests a server sees for one object in parts."""
    with FaultServer() as server:
        server.put("bench/object.bin", bytes(args.size * MIB))
        options = {
            "endpoint_url": server.url(),
            "access_key_id": "key",
            "secret_access_key": "secret",
            "driver": driver,
        }
        downloader = S3Downloader("s3://bench", options)

        async def main() -> None:
            await parts(ours(downloader), args.size * MIB, args.part * MIB, args.in_flight)
            await downloader.aclose()

        asyncio.run(main())
        downloader.close()
        return len(server.requests)


def show(name: str, rounds: list[tuple[float, float]]) -> float:
    """One line; returns the median speed."""
    speeds = sorted(speed for speed, _ in rounds)
    median, cpu = statistics.median(speeds), statistics.median(one for _, one in rounds)
    print(f"{name:10} {median:8.0f} MB/s  ({speeds[0]:.0f} to {speeds[-1]:.0f})   {cpu:.2f} cpu s/GB")
    return median


def main() -> None:
    """Interleaved rounds, so that both see the same neighbours on the machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("--rounds", 9), ("--size", 64), ("--part", 8), ("--in-flight", 4)):
        parser.add_argument(name, type=int, default=default)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Weed(Path(folder)) as weed:
        weed.put("object.bin", bytes(range(256)) * (args.size * MIB // 256))
        downloaders = {d: S3Downloader(weed.url, {**weed.options, "driver": d}) for d in ("obstore", "fsspec")}
        store = S3Store(
            weed.BUCKET,
            endpoint=weed.endpoint,
            region=weed.REGION,
            access_key_id=weed.KEY,
            secret_access_key=weed.SECRET,
            client_options={"allow_http": True},
        )
        found: dict[str, list[tuple[float, float]]] = {"bare": [], "obstore": [], "fsspec": []}
        for _ in range(args.rounds):
            found["bare"].append(measure(bare(store), args))
            for driver, downloader in downloaders.items():
                found[driver].append(measure(ours(downloader), args, downloader))
        for downloader in downloaders.values():
            downloader.close()
    reference = show("bare", found["bare"])
    for driver in downloaders:
        print(f"{'':10} {show(driver, found[driver]) / reference:8.2f} of bare obstore")
    wanted = -(-args.size // args.part)
    for driver in downloaders:
        print(f"{driver}: {requests_of_one_object(args, driver)} requests for {wanted} parts")


if __name__ == "__main__":
    main()
