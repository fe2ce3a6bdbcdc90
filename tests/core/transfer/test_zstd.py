"""The zstd codec: any cut of the input, any kind of frame, hostile ones; alone and on its way through a transfer."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import xxhash
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from servers.transfer_kit import FixedRoom, PlainHTTP, RangeHTTP, StreamHTTP, fetch, make_source, quick_policy

from forebay._codecs.zstd import ZstdCodec
from forebay.exceptions import DecompressionError, SizeMismatchError
from forebay.testing import Fault, FaultServer, run_async
from forebay.types import CodecSpec

SPEC = CodecSpec(name="zstd", suffixes=(".zst",), magic=b"\x28\xb5\x2f\xfd", load=lambda: ZstdCodec)
PART = 64 * 1024


def decode(stored: bytes, cut: int = 1 << 30, max_output: int | None = None) -> bytes:
    codec = ZstdCodec(max_output=max_output)
    pieces: list[bytes] = []
    for start in range(0, len(stored), cut):
        pieces += codec.feed(stored[start : start + cut])
    return b"".join([*pieces, *codec.finish()])


def compress(data: bytes, *, size: bool = True, checksum: bool = False, level: int = 3) -> bytes:
    compressor = zstandard.ZstdCompressor(level=level, write_content_size=size, write_checksum=checksum)
    if size:
        return compressor.compress(data)
    stream = compressor.compressobj()
    return stream.compress(data) + stream.flush()


def skippable(body: bytes) -> bytes:
    return (0x184D2A57).to_bytes(4, "little") + len(body).to_bytes(4, "little") + body


def mixed(size: int, seed: int = 1) -> bytes:
    """Bytes of which some compress and some do not."""
    rng = random.Random(seed)
    return b"".join(rng.choice([b"abcd" * 50, rng.randbytes(150)]) for _ in range(size // 150))[:size]


@pytest.mark.parametrize("cut", [1, 2, 3, 17, 4096, 1 << 30])
@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 65_791, 65_792, 500_000])
def test_every_cut_and_header_form(cut: int, size: int) -> None:
    data = mixed(size)
    for stored in (compress(data), compress(data, size=False), compress(data, checksum=True)):
        assert decode(stored, cut, max_output=size) == data


@settings(deadline=None, max_examples=60)
@given(
    bodies=st.lists(
        st.tuples(st.integers(0, 3), st.binary(max_size=2000), st.integers(1, 200)), min_size=1, max_size=6
    ),
    cut=st.integers(1, 5000),
)
def test_any_sequence_of_frames(bodies: list[tuple[int, bytes, int]], cut: int) -> None:
    stored, expected = b"", b""
    for kind, body, times in bodies:
        data = body * times
        if kind == 3:
            stored += skippable(body)
        else:
            stored += compress(data, size=kind != 1, checksum=kind == 2)
            expected += data
    assert decode(stored, cut, max_output=len(expected)) == expected


def test_cut_off_anywhere_is_noticed() -> None:
    frames = compress(mixed(200_000), checksum=True) + skippable(b"12345") + compress(b"end")
    ends = {len(compress(mixed(200_000), checksum=True))}
    ends.add(max(ends) + 13)
    for length in [*range(1, 40), *range(41, len(frames) - 30, 997), *range(len(frames) - 30, len(frames))]:
        if length in ends:
            continue
        with pytest.raises(DecompressionError, match="cut off"):
            decode(frames[:length])


def test_empty_object_is_no_frame() -> None:
    with pytest.raises(DecompressionError, match="empty"):
        decode(b"")


@pytest.mark.parametrize(
    "stored", [b"<html>captive portal</html>", os.urandom(3) + b"\0" * 100, b"\x1f\x8b" + b"x" * 99]
)
def test_other_data_are_refused_p10(stored: bytes) -> None:
    with pytest.raises(DecompressionError, match="no zstd data"):
        decode(stored)


def test_flipped_bits_are_an_error_never_other_bytes() -> None:
    data = mixed(100_000)
    stored = compress(data, checksum=True)
    rng = random.Random(5)
    refused = 0
    for _ in range(300):
        damaged = bytearray(stored)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        try:
            # A few bits mean nothing, as in a header's unused field.
            assert decode(bytes(damaged), max_output=len(data)) == data
        except DecompressionError:
            refused += 1
    assert refused > 290


BOMB = """
import resource, zstandard
from forebay._codecs.zstd import ZstdCodec
from forebay.exceptions import DecompressionError
stream = zstandard.ZstdCompressor(level=1, write_content_size=False).compressobj()
zeros = bytes(1 << 20)
bomb = b"".join(stream.compress(zeros) for _ in range(2048)) + stream.flush()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    for piece in ZstdCodec(max_output=1 << 20).feed(bomb):
        del piece
except DecompressionError as error:
    print(len(bomb), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error)
for piece in ZstdCodec().feed(bomb[: len(bomb) // 4]):
    del piece
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_bomb_without_a_size_is_refused_before_it_fills_memory() -> None:
    """64 KiB that stand for 2 GiB: refused at 1 MiB where that was promised; else handed on in small pieces."""
    done = subprocess.run([sys.executable, "-c", BOMB], capture_output=True, text=True, timeout=60, check=True)
    refused, streamed = done.stdout.splitlines()
    stored, grown_kib, text = refused.split(maxsplit=2)
    assert int(stored) < 200_000
    assert "were promised" in text
    assert int(grown_kib) < 32 * 1024
    assert int(streamed) < 48 * 1024


def test_bomb_that_names_its_size_is_refused_at_its_header() -> None:
    stored = compress(bytes(50 << 20))
    codec = ZstdCodec(max_output=1 << 20)
    with pytest.raises(DecompressionError, match="52428800"):
        list(codec.feed(stored[:12]))


def test_frame_that_promises_less_than_it_holds() -> None:
    data = mixed(5000)
    stored = bytearray(compress(data))
    stored[5:7] = (4000 - 256).to_bytes(2, "little")
    with pytest.raises(DecompressionError):
        decode(bytes(stored))


CLASSES = pytest.mark.parametrize("cls", [RangeHTTP, PlainHTTP, StreamHTTP])


@CLASSES
@pytest.mark.parametrize("stored_known", [True, False])
@pytest.mark.parametrize("decoded_known", [True, False])
def test_through_a_transfer(
    server: FaultServer, tmp_path: Path, cls: type[PlainHTTP], stored_known: bool, decoded_known: bool
) -> None:
    data = mixed(1_500_000)
    stored = compress(data[:700_000]) + compress(data[700_000:], size=False)
    server.put("a", stored)
    source = make_source(
        cls(server.url()),
        "a",
        stored=len(stored) if stored_known else None,
        decoded=len(data) if decoded_known else None,
        codec=SPEC,
        digest=f"xxh3-64:{xxhash.xxh3_64_hexdigest(data)}",
    )
    result = run_async(fetch(source, tmp_path / "f"))
    assert (tmp_path / "f").read_bytes() == data
    assert (result.bytes, result.stored_bytes) == (len(data), len(stored))
    assert set(result.stages) == {"download", "decompress"}


@CLASSES
def test_compressed_form_never_reaches_the_disk_and_room_covers_what_does(
    server: FaultServer, tmp_path: Path, cls: type[PlainHTTP]
) -> None:
    server.put("a", compress(bytes(40 << 20)))
    room = FixedRoom()
    run_async(fetch(make_source(cls(server.url()), "a", codec=SPEC), tmp_path / "f", room=room))
    assert (tmp_path / "f").stat().st_size == 40 << 20
    assert max(room.asked) == 40 << 20
    assert [file.name for file in tmp_path.iterdir()] == ["f"]


@CLASSES
def test_damage_on_the_way_is_fetched_once_more_n5(server: FaultServer, tmp_path: Path, cls: type[PlainHTTP]) -> None:
    data = mixed(300_000)
    server.put("a", compress(data, checksum=True))
    server.script("a", Fault(corrupt_at=5000))
    run_async(fetch(make_source(cls(server.url()), "a", decoded=len(data), codec=SPEC), tmp_path / "f"))
    assert (tmp_path / "f").read_bytes() == data


@CLASSES
def test_object_that_is_cut_off_in_the_store(server: FaultServer, tmp_path: Path, cls: type[PlainHTTP]) -> None:
    server.put("a", compress(mixed(300_000))[:-1000])
    with pytest.raises(DecompressionError, match=r"cut off.*backend test"):
        run_async(fetch(make_source(cls(server.url()), "a", codec=SPEC), tmp_path / "f"))
    assert not any(tmp_path.iterdir())


@CLASSES
def test_more_or_less_than_the_index_promises(server: FaultServer, tmp_path: Path, cls: type[PlainHTTP]) -> None:
    server.put("a", compress(mixed(300_000), size=False))
    with pytest.raises(DecompressionError, match="299999 were promised"):
        run_async(fetch(make_source(cls(server.url()), "a", decoded=299_999, codec=SPEC), tmp_path / "f"))
    with pytest.raises(SizeMismatchError, match="300000 bytes"):
        run_async(fetch(make_source(cls(server.url()), "a", decoded=300_001, codec=SPEC), tmp_path / "f"))
    assert not any(tmp_path.iterdir())


def test_broken_compressed_body_restarts_the_codec_b20(server: FaultServer, tmp_path: Path) -> None:
    data = mixed(900_000)
    server.put("a", compress(data))
    server.script("a", Fault(cut=True, after=300_000))
    source = make_source(StreamHTTP(server.url()), "a", decoded=len(data), codec=SPEC)
    run_async(fetch(source, tmp_path / "f", policy=quick_policy()))
    assert (tmp_path / "f").read_bytes() == data
