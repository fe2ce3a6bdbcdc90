"""One 64 MiB object of a cloud, by our drivers and through `forebay.fetch`, against bare obstore on the same server.

Run ``python tests/benchmarks/bench_get.py [--cloud s3|gcs|azure|http] [--rounds N] [--size MIB] [--part MIB]
[--in-flight N]``; it needs weed (SeaweedFS), fake-gcs-server, azurite-blob or nginx. Prints medians of interleaved
rounds with their spread, CPU seconds a GB of this process, and the ratio to obstore doing the same:

* ``ranges``: the object's parts into memory through `aread_range`, which is the engine's one way to read;
* ``fetch``: into a file of a new cache below ``--folder``, verified and published, against parts that obstore reads and
  this script writes to a file there.

What an object costs in requests is a test: ``tests/integration/test_clouds_requests.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import obstore
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from servers.azurite import Azurite
from servers.fakegcs import FakeGcs
from servers.nginx import Nginx
from servers.weed import Weed

import forebay
import forebay.exceptions
from forebay.downloader import Downloader

MIB = 1 << 20
KEY, SMALL = "object.bin", "small.bin"
DRIVERS = ("obstore", "fsspec")
ORDER = ("bare", *DRIVERS)
Measured = tuple[float, float]  # MB/s, CPU seconds a GB
Read = Callable[[int, int], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """A running server, and the ways to it."""

    put: Callable[[str, bytes], None]
    url: str
    options: Mapping[str, object]
    store: S3Store | GCSStore | AzureStore | HTTPStore


@contextmanager
def cloud(name: str, folder: Path) -> Iterator[Cloud]:
    """Start the server."""
    if name == "s3":
        with Weed(folder) as weed:
            store = S3Store(weed.BUCKET, endpoint=weed.endpoint, region=weed.REGION, access_key_id=weed.KEY,
                            secret_access_key=weed.SECRET, client_options={"allow_http": True})  # fmt: skip
            yield Cloud(put=weed.put, url=weed.url, options=weed.options, store=store)
    elif name == "gcs":
        with FakeGcs(folder) as gcs:
            token: Any = {"token": gcs.TOKEN, "expires_at": None}
            made = GCSStore(gcs.BUCKET, config={"base_url": gcs.endpoint}, client_options={"allow_http": True},
                            credential_provider=lambda: token)  # fmt: skip
            yield Cloud(put=gcs.put, url=gcs.url, options=gcs.options, store=made)
    elif name == "azure":
        with Azurite(folder) as azurite:
            account = AzureStore(azurite.BUCKET, account_name=azurite.ACCOUNT, account_key=azurite.KEY,
                                 endpoint=azurite.endpoint, client_options={"allow_http": True})  # fmt: skip
            yield Cloud(put=azurite.put, url=azurite.url, options=azurite.options, store=account)
    else:
        with Nginx(folder) as nginx:
            site = HTTPStore.from_url(nginx.url(), client_options={"allow_http": True})
            yield Cloud(put=nginx.put, url=nginx.url(), options={}, store=site)


async def parts(read: Read, args: argparse.Namespace) -> None:
    """All ranges of the object, so many at a time."""
    gate, size, part = asyncio.Semaphore(args.in_flight), args.size * MIB, args.part * MIB

    async def one(offset: int) -> int:
        async with gate:
            return memoryview(await read(offset, min(part, size - offset))).nbytes

    assert sum(await asyncio.gather(*(one(offset) for offset in range(0, size, part)))) == size


def timed(args: argparse.Namespace, work: Callable[[], object]) -> Measured:
    """Speed and CPU of one round."""
    size = args.size * MIB
    cpu, start = time.process_time(), time.perf_counter()
    work()
    return size / (time.perf_counter() - start) / 1e6, (time.process_time() - cpu) / size * 1e9


def ranges(
    args: argparse.Namespace, read: Read, end: Callable[[], Coroutine[Any, Any, None]] | None = None
) -> Measured:
    """The parts into memory, once connections are made and caches are warm."""
    with asyncio.Runner() as runner:
        runner.run(parts(read, args))
        found = timed(args, lambda: runner.run(parts(read, args)))
        if end is not None:
            runner.run(end())
    return found


def bare(place: Cloud) -> Read:
    """obstore alone, by the faster of its two ways: `get_range_async` copies once more."""

    async def read(offset: int, length: int) -> Any:
        found = await obstore.get_async(place.store, KEY, options={"range": (offset, offset + length)})
        return await found.bytes_async()

    return read


def ours(downloader: Downloader) -> Read:
    """The way of the engine: one `aread_range` a part."""
    one: Any = downloader

    async def read(offset: int, length: int) -> Any:
        return (await one.aread_range(KEY, offset, length)).data

    return read


def bare_file(args: argparse.Namespace, place: Cloud, folder: Path) -> Measured:
    """Parts that obstore reads, each written where it belongs."""
    target, ask = folder / "bare.bin", bare(place)

    def work() -> None:
        file = os.open(target, os.O_CREAT | os.O_WRONLY)

        async def read(offset: int, length: int) -> Any:
            data = await ask(offset, length)
            await asyncio.to_thread(os.pwrite, file, data, offset)
            return data

        asyncio.run(parts(read, args))
        os.close(file)

    try:
        return timed(args, work)
    finally:
        target.unlink()


def fetched(args: argparse.Namespace, place: Cloud, driver: str, folder: Path) -> Measured:
    """`forebay.fetch` into a cache that is open already and does not hold the object."""
    cache = folder / driver
    options = {**place.options, "driver": driver, "part_size": args.part * MIB, "max_concurrency": args.in_flight}
    given: dict[str, Any] = {"cache_dir": cache, "max_cache_bytes": "1GiB", "options": options}
    held = forebay.fetch(f"{place.url}/{SMALL}", **given)
    found = timed(args, lambda: forebay.release(forebay.fetch(f"{place.url}/{KEY}", **given)))
    observer = forebay.ChunkCache(cache)
    with contextlib.suppress(forebay.exceptions.CacheError):  # the small one stays, which says so
        observer.clear()
    observer.close()
    forebay.release(held)
    return found


def show(kind: str, found: Mapping[str, list[Measured]]) -> None:
    """A line for each way."""
    medians = {way: statistics.median(speed for speed, _ in rounds) for way, rounds in found.items()}
    for way, rounds in found.items():
        speeds, cpu = [speed for speed, _ in rounds], statistics.median(one for _, one in rounds)
        spread = f"({min(speeds):.0f} to {max(speeds):.0f})"
        ratio = medians[way] / medians["bare"]
        print(
            f"{kind:7} {way:8} {medians[way]:6.0f} MB/s {spread:16} {cpu:5.2f} cpu s/GB  {ratio:5.2f} of bare obstore"
        )


def main() -> None:
    """Interleaved rounds in another order each time, so that all see the same neighbours on the machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cloud", choices=("s3", "gcs", "azure", "http"), default="s3")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    for name, default in (("--rounds", 9), ("--size", 64), ("--part", 8), ("--in-flight", 8)):
        parser.add_argument(name, type=int, default=default)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(dir=args.folder) as files,
        cloud(args.cloud, Path(folder)) as place,
    ):
        place.put(KEY, bytes(range(256)) * (args.size * MIB // 256))
        place.put(SMALL, b"small")
        downloaders = {
            driver: forebay.open_downloader(place.url, options={**place.options, "driver": driver})
            for driver in DRIVERS
        }
        ways: list[tuple[str, str, Callable[[], Measured]]] = [
            ("ranges", "bare", partial(ranges, args, bare(place))),
            ("fetch", "bare", partial(bare_file, args, place, Path(files))),
        ]
        for name, one in downloaders.items():
            ways.append(("ranges", name, partial(ranges, args, ours(one), one.aclose)))
            ways.append(("fetch", name, partial(fetched, args, place, name, Path(files))))
        found: dict[str, dict[str, list[Measured]]] = {kind: {way: [] for way in ORDER} for kind in ("ranges", "fetch")}
        for number in range(args.rounds + 1):
            for kind, way, work in ways[number % len(ways) :] + ways[: number % len(ways)]:
                measured = work()
                if number:  # the first round only warms up
                    found[kind][way].append(measured)
        for downloader in downloaders.values():
            downloader.close()
    for kind, rounds in found.items():
        show(kind, rounds)


if __name__ == "__main__":
    main()
