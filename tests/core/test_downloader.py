"""The base class of every backend: what one gets for a single method, and how `probe` and `overrides` judge a class."""

from __future__ import annotations

import inspect
import itertools
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.downloader import ASYNC_HOOKS, Downloader, SupportsRangeRead, SupportsWrite, overrides, probe
from forebay.exceptions import InvalidRangeError, ObjectNotFoundError, UnsupportedOperationError
from forebay.testing import run_async
from forebay.types import Capabilities, ObjectInfo, RangeRead


class Pieces(Downloader):
    """The least that a backend can be: bodies come in pieces, of several kinds, some of them empty."""

    objects: Mapping[str, tuple[bytes | bytearray | memoryview, ...]] = {
        "ten": (b"012", b"", bytearray(b"3456"), memoryview(b"789")),
        "empty": (),
        "one empty piece": (b"",),
        "words": (memoryview(b"abcdefgh").cast("H"),),
    }
    reads = 0

    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        self.reads += 1
        if key not in self.objects:
            raise ObjectNotFoundError(f"no object {key!r}", key=key)
        for piece in self.objects[key]:
            assert fileobj.write(piece) == memoryview(piece).nbytes


@pytest.fixture
def pieces() -> Pieces:
    return Pieces("pieces://root")


def test_one_abstract_method() -> None:
    assert Downloader.__abstractmethods__ == {"download_fileobj"}
    with pytest.raises(TypeError, match="download_fileobj"):
        Downloader("x://root")  # type: ignore[abstract]


def test_download_file_default_writes_and_replaces(pieces: Pieces, tmp_path: Path) -> None:
    path = tmp_path / "got"
    path.write_bytes(b"what was there before")
    for key, data in (("ten", b"0123456789"), ("empty", b"")):
        pieces.download_file(key, path)
        assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [
        (0, None, b"0123456789"),
        (0, 10, b"0123456789"),
        (0, 99, b"0123456789"),
        (2, 3, b"234"),
        (6, 2, b"67"),
        (9, None, b"9"),
        (9, 99, b"9"),
        (5, 0, b""),
        (0, 0, b""),
    ],
)
def test_download_bytes_default_slices_the_body(
    pieces: Pieces, offset: int, length: int | None, expected: bytes
) -> None:
    got = pieces.download_bytes("ten", offset, length)
    assert (type(got), got) == (bytes, expected)


@pytest.mark.parametrize(("offset", "length"), [(10, None), (10, 1), (11, 1), (-1, 1), (0, -1), (-1, None)])
def test_download_bytes_default_refuses_ranges_outside(pieces: Pieces, offset: int, length: int | None) -> None:
    with pytest.raises(InvalidRangeError, match="'ten'") as caught:
        pieces.download_bytes("ten", offset, length)
    assert caught.value.key == "ten"
    assert pieces.reads == (0 if offset < 0 or (length or 0) < 0 else 1), "a negative range is refused before I/O"


@pytest.mark.parametrize("key", ["empty", "one empty piece"])
def test_q1_empty_object_through_the_defaults(pieces: Pieces, key: str) -> None:
    assert pieces.download_bytes(key) == b""
    assert pieces.download_bytes(key, 0, 5) == b""
    assert pieces.stat(key) == ObjectInfo(key, size=0)
    with pytest.raises(InvalidRangeError):
        pieces.download_bytes(key, 1, 5)


def test_pieces_wider_than_a_byte_are_counted_in_bytes(pieces: Pieces) -> None:
    assert pieces.stat("words").size == 8
    assert pieces.download_bytes("words", 3, 2) == b"de"


def test_stat_default_counts_without_keeping(pieces: Pieces) -> None:
    assert pieces.stat("ten") == ObjectInfo("ten", size=10)


def test_missing_object_through_the_defaults(pieces: Pieces, tmp_path: Path) -> None:
    for read in (pieces.stat, pieces.download_bytes, lambda key: pieces.download_file(key, tmp_path / "got")):
        with pytest.raises(FileNotFoundError, match="absent"):
            read("absent")


class Chopped(Downloader):
    """Any bytes in any pieces."""

    pieces: tuple[bytes, ...] = ()

    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        for piece in self.pieces:
            fileobj.write(piece)


@given(
    pieces=st.lists(st.binary(max_size=6), max_size=6),
    offset=st.integers(0, 40),
    length=st.none() | st.integers(0, 40),
)
def test_default_range_equals_a_slice_however_the_body_is_cut(
    pieces: list[bytes], offset: int, length: int | None
) -> None:
    chopped = Chopped("x://root")
    chopped.pieces = tuple(pieces)
    body = b"".join(pieces)
    if length != 0 and offset > 0 and offset >= len(body):
        with pytest.raises(InvalidRangeError):
            chopped.download_bytes("key", offset, length)
    else:
        assert (
            chopped.download_bytes("key", offset, length) == body[offset : None if length is None else offset + length]
        )


def test_what_has_no_default_says_so(pieces: Pieces, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"data")
    with pytest.raises(UnsupportedOperationError, match="Pieces cannot list"):
        pieces.list("prefix")
    with pytest.raises(UnsupportedOperationError, match="Pieces cannot upload"):
        pieces.upload_file("key", tmp_path / "source")
    arguments: dict[str, tuple[Any, ...]] = {
        "adownload_file": ("key", tmp_path / "got"),
        "adownload_fileobj": ("key", (tmp_path / "source").open),
        "adownload_bytes": ("key",),
        "astat": ("key",),
        "aupload_file": ("key", tmp_path / "source"),
    }
    assert set(arguments) == set(ASYNC_HOOKS)
    for hook, given_arguments in arguments.items():
        with pytest.raises(UnsupportedOperationError, match=f"Pieces has no native {hook}") as caught:
            run_async(getattr(pieces, hook)(*given_arguments))
        assert caught.value.key == "key"


def test_closing_needs_nothing(pieces: Pieces) -> None:
    run_async(pieces.aclose())
    pieces.close()


def test_async_twins_take_the_same_arguments() -> None:
    for hook in ASYNC_HOOKS:
        sync = list(inspect.signature(getattr(Downloader, hook.removeprefix("a"))).parameters.values())
        assert list(inspect.signature(getattr(Downloader, hook)).parameters.values()) == sync, hook


def test_order_of_preference_is_the_designs() -> None:
    assert ASYNC_HOOKS[:3] == ("adownload_file", "adownload_fileobj", "adownload_bytes")


def _class(*hooks: str, **attributes: Any) -> type[Downloader]:
    """A backend that overrides ``hooks`` too."""
    return type("Made", (Pieces,), {hook: _replacement(hook) for hook in hooks} | attributes)


def _replacement(hook: str) -> Any:
    async def asynchronous(self: Downloader, *arguments: Any, **keywords: Any) -> Any:
        return None

    def synchronous(self: Downloader, *arguments: Any) -> Any:
        return None

    return asynchronous if hook.startswith("a") else synchronous


@pytest.mark.parametrize("hook", ASYNC_HOOKS)
def test_overridden_hook_is_seen_on_class_instance_and_grandchild(hook: str) -> None:
    cls = _class(hook)
    child = type("Child", (cls,), {})
    assert [overrides(one, hook) for one in (cls, cls("x://root"), child, child("x://root"))] == [True] * 4
    for other in set(ASYNC_HOOKS) - {hook}:
        assert not overrides(cls, other)


def test_hook_on_an_instance_does_not_count() -> None:
    # The engine asks the class, which is what a worker process will have too.
    one = Pieces("x://root")
    one.astat = one.stat  # type: ignore[assignment,method-assign]
    assert not overrides(one, "astat")


def test_probe_of_the_least_backend(pieces: Pieces) -> None:
    assert probe(pieces) == Capabilities(native_async=False, ranges=False, stat=False, list=False, driver="python")
    assert pieces.reads == 0, "a probe makes no request"


@pytest.mark.parametrize("count", [1, 2])
def test_native_async_takes_a_hook_that_downloads(count: int) -> None:
    for hooks in itertools.combinations(ASYNC_HOOKS, count):
        expected = any(hook.startswith("adownload") for hook in hooks)
        assert probe(_class(*hooks)("x://root")).native_async is expected, hooks


def test_probe_sees_what_is_overridden() -> None:
    assert probe(_class("download_bytes")("x://root")).ranges
    assert probe(_class("adownload_bytes")("x://root")).ranges
    assert probe(_class("stat")("x://root")).stat
    assert probe(_class("astat")("x://root")).stat
    assert probe(_class("list")("x://root")).list
    assert not probe(_class("adownload_fileobj")("x://root")).ranges


def test_range_read_counts_as_native_and_ranged() -> None:
    cls = _class("aread_range")
    assert issubclass(cls, SupportsRangeRead)
    said = probe(cls("x://root"))
    assert (said.native_async, said.ranges) == (True, True)


def test_backend_has_the_last_word_on_its_driver() -> None:
    reasons: list[Mapping[str, object]] = []

    def probe_driver(cls: type[Downloader], options: Mapping[str, object]) -> Capabilities:
        reasons.append(options)
        return Capabilities(
            native_async=False, fork_safe=False, checksums=("md5",), driver="slow", version="1", reason="forked"
        )

    cls = _class("adownload_fileobj", "adownload_bytes", probe_driver=classmethod(probe_driver))
    said = probe(cls("x://root", {"driver": "slow"}))
    assert said == Capabilities(
        native_async=False,
        ranges=True,
        fork_safe=False,
        checksums=("md5",),
        driver="slow",
        version="1",
        reason="forked",
    )
    assert reasons == [{"driver": "slow"}], "the backend's probe sees the options"


@pytest.mark.parametrize(
    ("given_root", "root"),
    [
        ("x://bucket/a/", "x://bucket/a"),
        ("x://bucket/a", "x://bucket/a"),
        ("https://h/a/?sig=b/", "https://h/a/?sig=b/"),
    ],
)
def test_root_has_no_trailing_slash_and_keeps_a_query(given_root: str, root: str) -> None:
    assert Pieces(given_root).root == root


def test_m10_options_are_a_copy() -> None:
    options = {"a": 1}
    one = Pieces("x://root", options)
    options["a"] = 2
    assert one.options == {"a": 1}
    assert Pieces("x://root").options == {}


def test_u1_repr_hides_what_the_root_hides() -> None:
    text = repr(Pieces("https://me:geheim@host/a?X-Amz-Signature=abcdef", {"password": "hush"}))
    assert text.startswith("<Pieces https://")
    assert "host/a" in text
    for secret in ("geheim", "abcdef", "hush"):
        assert secret not in text


def test_j9_plain_subclass_pickles(pieces: Pieces) -> None:
    assert pieces.download_bytes("ten", 1, 2) == b"12"
    clone = pickle.loads(pickle.dumps(pieces))
    assert (clone.root, clone.options) == (pieces.root, pieces.options)
    assert clone.download_bytes("ten", 1, 2) == b"12"


def test_third_party_signatures_type_check() -> None:
    """A typed subclass with every hook; mypy (run over the tests) is the judge."""

    class Full(Pieces):
        def stat(self, key: str) -> ObjectInfo:
            return ObjectInfo(key)

        def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
            yield ObjectInfo(prefix)

        async def adownload_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
            fileobj.write(memoryview(b"data"))

        async def aread_range(self, key: str, offset: int, length: int, *, if_match: str | None = None) -> RangeRead:
            return RangeRead(data=b"", info=ObjectInfo(key))

    ranged: SupportsRangeRead = Full("x://root")
    assert isinstance(ranged, SupportsRangeRead)
