"""Many objects through `transfer` (digest, retries, checks, bounds), against bare obstore doing nothing of it.

Run ``python tests/benchmarks/bench_transfer.py [near|far] [--objects N] [--rounds N]``; it needs nginx with its lua
module, obstore, and room on /dev/shm for the objects twice. Prints MB/s and CPU seconds a GB of this process, the
median of interleaved rounds, and the ratio. Absolute figures mean little on another machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import obstore
from obstore.store import HTTPStore

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import zstandard
from benchmarks.stores import stores
from servers.transfer_kit import FixedRoom, SimpleLimiter

from forebay._transfer import DaemonPool, Source, TransferPolicy, transfer
from forebay.downloader import Downloader, SupportsWrite, probe
from forebay.types import CodecSpec, ObjectInfo, RangeRead

MIB = 1 << 20
SIZE = 64 * MIB
IN_FLIGHT = 16


class ObstoreRanges(Downloader):
    """The least that reads ranges through obstore."""

    def __init__(self, root: str, options: Any = None) -> None:
        super().__init__(root, options)
        self.store = HTTPStore.from_url(root, client_options={"allow_http": True})

    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        fileobj.write(memoryview(obstore.get(self.store, key).bytes()))

    async def aread_range(self, key: str, offset: int, length: int, *, if_match: str | None = None) -> RangeRead:
        options: Any = {"range": (offset, offset + length)}
        if if_match is not None:
            options["if_match"] = if_match
        got = await obstore.get_async(self.store, key, options=options)
        meta = got.meta
        return RangeRead(
            data=memoryview(await got.bytes_async()), info=ObjectInfo(key, size=meta["size"], etag=meta["e_tag"])
        )


async def bare(url: str, keys: list[str], folder: Path) -> None:
    """obstore alone: whole bodies, streamed in 8 MiB pieces."""
    store = HTTPStore.from_url(url, client_options={"allow_http": True})
    gate = asyncio.Semaphore(IN_FLIGHT)

    async def one(key: str) -> None:
        async with gate:
            got = await obstore.get_async(store, key)
            descriptor = os.open(folder / key, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                async for piece in got.stream(min_chunk_size=8 * MIB):
                    os.write(descriptor, memoryview(piece))
            finally:
                os.close(descriptor)

    await asyncio.gather(*(one(key) for key in keys))
    await asyncio.sleep(0.05)  # obstore's runtime aborts an interpreter that exits right behind it


async def ours(url: str, keys: list[str], folder: Path, codec: CodecSpec | None = None) -> None:
    """`transfer`, with the same number of requests in flight."""
    downloader = ObstoreRanges(url)
    limiter, pool = SimpleLimiter(IN_FLIGHT, max_bytes=256 * MIB), DaemonPool()
    gate = asyncio.Semaphore(IN_FLIGHT)

    async def one(place: int, key: str) -> None:
        source = Source(
            downloader=downloader,
            capabilities=probe(downloader),
            key=key,
            url=f"{url}/{key}",
            backend="bench",
            stored_bytes=None if codec else SIZE,
            decoded_bytes=SIZE,
            codec=codec,
            digest=None,
        )
        async with gate:
            await transfer(
                source,
                folder / key,
                room=FixedRoom(),
                limiter=limiter,
                pool=pool,
                policy=TransferPolicy(),
                priority=(place,),
            )

    await asyncio.gather(*(one(place, key) for place, key in enumerate(keys)))
    await asyncio.sleep(0.05)
    pool.close(1.0)


def measure(run: Callable[[Path], Coroutine[Any, Any, None]], total: int) -> tuple[float, float]:
    """MB/s and CPU seconds a GB of one run into a fresh folder on tmpfs."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        cpu, wall = time.process_time(), time.perf_counter()
        asyncio.run(run(Path(folder)))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        written = sum(file.stat().st_size for file in Path(folder).iterdir())
    if written != total:
        raise SystemExit(f"{written} bytes were written instead of {total}")
    return total / wall / 1e6, cpu / (total / 1e9)


def make_objects(root: Path, count: int) -> tuple[list[str], list[str]]:
    """Plain objects, and zstd objects that hold the same number of bytes."""
    block = b"".join(os.urandom(400) + bytes(624) for _ in range(SIZE // 1024))
    plain, packed = [], []
    for number in range(count):
        plain.append(f"plain-{number}.bin")
        packed.append(f"packed-{number}.zst")
        (root / plain[-1]).write_bytes(block)
        (root / packed[-1]).write_bytes(zstandard.compress(block, 3))
    return plain, packed


def load_zstd() -> Any:
    """What a `CodecSpec` loads."""
    from forebay._codecs.zstd import ZstdCodec

    return ZstdCodec


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", nargs="?", choices=("near", "far"), default="near")
    parser.add_argument("--objects", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    codec = CodecSpec(name="zstd", suffixes=(".zst",), magic=b"\x28\xb5\x2f\xfd", load=load_zstd)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as served:
        Path(served).chmod(0o755)  # nginx's workers may be another user
        plain, packed = make_objects(Path(served), options.objects)
        with stores(Path(served)) as at:
            url = at.far if options.store == "far" else at.near
            rows: dict[str, Callable[[Path], Coroutine[Any, Any, None]]] = {
                "bare obstore": lambda folder: bare(url, plain, folder),
                "transfer": lambda folder: ours(url, plain, folder),
                "transfer, zstd (decoded bytes)": lambda folder: ours(url, packed, folder, codec),
            }
            total = SIZE * options.objects
            seen: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
            for _ in range(options.rounds):
                for name, run in rows.items():
                    seen[name].append(measure(run, total))
    limit = statistics.median(rate for rate, _ in seen["bare obstore"])
    for name, figures in seen.items():
        rate = statistics.median(rate for rate, _ in figures)
        cpu = statistics.median(cpu for _, cpu in figures)
        print(f"{options.store} {name:32} {rate:7.0f} MB/s  {cpu:5.2f} CPU s/GB  ratio {rate / limit:4.2f}")


if __name__ == "__main__":
    main()
