"""Keys are text to be taken literally; listing shows them as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from forebay._registry import make, resolve
from forebay._url import split_object
from forebay.downloader import Downloader
from forebay.exceptions import ForebayError, TransientError, UnsupportedOperationError
from forebay.testing._conformance._store import Remote, Store, SuiteBase, sync_ways

__all__ = ["LITERAL_NAMES", "KeyTests"]

LITERAL_NAMES = (
    "with space.bin",
    "a#1.bin",
    "a?b=c.bin",
    "percent%20.bin",
    "100%.bin",
    "plus+equals=.bin",
    "umlaut-\u00e4-\u65e5\u672c.bin",
    "decomposed-a\u0308.bin",
    "x[1]{2}*.bin",
    "at@colon:.bin",
    "quote'\"&<>.bin",
    "semi;comma,tilde~.bin",
    "back\\slash.bin",
    "deep/er/est/x.bin",
    "double//slash.bin",
    "trailing/",
    ".hidden",
    " outer space ",
    "long-" + "x" * 300,
)


class KeyTests(SuiteBase):
    """No key is another key."""

    @pytest.mark.parametrize("name", LITERAL_NAMES, ids=ascii)
    def test_key_is_taken_literally(self, name: str, store: Store, downloader: Downloader, tmp_path: Path) -> None:
        for other in _neighbours(name):
            _holds(store, other, b"the bytes of a neighbour")
        held = _holds(store, name, b"the right bytes")
        for way, read in sync_ways(downloader, tmp_path).items():
            outcome = _outcome(read, store.key(name))
            assert not isinstance(outcome, TransientError), f"{way}: retrying will not help: {outcome!r}"
            if not held:
                assert isinstance(outcome, Exception), f"{way} gave {outcome!r} for {name!r}, which nobody stored"
            elif isinstance(outcome, Exception):
                assert not isinstance(outcome, FileNotFoundError), f"{way} does not find {name!r}; it has to refuse it"
                assert isinstance(outcome, ForebayError), f"{way}: not a clear refusal: {outcome!r}"
            else:
                assert outcome == b"the right bytes", f"{way} gave another object for {name!r}"

    def test_object_is_found_by_its_own_url(self, remote: Remote, store: Store, tmp_path: Path) -> None:
        """`forebay.fetch` gets one URL and cuts it after the authority: the same object under a shorter root."""
        object_url = getattr(remote, "object_url", None)
        if object_url is None:
            pytest.skip("the remote has no object_url(key)")
        resolved = resolve(object_url(store.put("deep/one.bin", b"0123456789")), remote.options)
        root, key = split_object(resolved.url)
        downloader = make(resolved, root)
        try:
            for name, read in sync_ways(downloader, tmp_path).items():
                assert read(key) == b"0123456789", f"{name} of {key!r} under another root"
        finally:
            downloader.close()

    def test_key_cannot_leave_the_root(self, store: Store, downloader: Downloader) -> None:
        store.put("inside.bin", b"data")
        for key in ("../" + store.key("inside.bin"), store.key("../../../../../../../../etc/passwd"), "/etc/passwd"):
            with pytest.raises((ForebayError, FileNotFoundError)):
                downloader.download_bytes(key)

    def test_list_is_complete_and_recursive(self, store: Store, downloader: Downloader) -> None:
        _needs_list(store, downloader)
        expected = {store.put(name, b"x" * size): size for name, size in (("a.bin", 1), ("b/c.bin", 2), ("b/d/e", 0))}
        listed = {info.key: info.size for info in downloader.list(store.prefix + "/")}
        assert set(listed) == set(expected)
        for key, size in listed.items():
            assert size in (expected[key], None), key

    def test_list_takes_the_prefix_as_text(self, store: Store, downloader: Downloader) -> None:
        _needs_list(store, downloader)
        for name in ("part-1.bin", "part-10.bin", "part-2.bin", "part/3.bin"):
            store.put(name, b"data")
        listed = sorted(info.key for info in downloader.list(store.key("part-1")))
        assert listed == [store.key("part-1.bin"), store.key("part-10.bin")]
        assert [info.key for info in downloader.list(store.key("absent"))] == []

    def test_list_shows_changes_at_once(self, store: Store, downloader: Downloader) -> None:
        _needs_list(store, downloader)
        first = store.put("a.bin", b"data")
        assert [info.key for info in downloader.list(store.prefix + "/")] == [first]
        second = store.put("b.bin", b"data")
        assert sorted(info.key for info in downloader.list(store.prefix + "/")) == [first, second]
        store.delete(first)
        assert [info.key for info in downloader.list(store.prefix + "/")] == [second]

    def test_listed_keys_can_be_read(self, store: Store, downloader: Downloader) -> None:
        _needs_list(store, downloader)
        names = ("plain.bin", "with space.bin", "percent%20.bin", "umlaut-\u00e4.bin")
        expected = {store.put(name, name.encode()): name.encode() for name in names}
        got = {info.key: downloader.download_bytes(info.key) for info in downloader.list(store.prefix + "/")}
        assert got == expected

    def test_list_says_when_it_cannot(self, store: Store, downloader: Downloader) -> None:
        try:
            list(downloader.list(store.prefix))
        except UnsupportedOperationError:
            return
        pytest.skip("the backend lists")


def _neighbours(name: str) -> list[str]:
    """Names that a careless backend would ask for in place of ``name``."""
    wrong = {
        unquote(name),
        quote(name),
        name.partition("#")[0],
        name.partition("?")[0],
        name.replace("+", " "),
        name.replace("\\", "/"),
        name.replace("//", "/"),
        name.strip(),
        name.strip("/"),
        name.lower(),
    }
    return sorted(wrong - {name, ""})


def _outcome(read: Callable[[str], bytes], key: str) -> bytes | Exception:
    try:
        return read(key)
    except (ForebayError, OSError, ValueError) as error:
        return error


def _holds(store: Store, name: str, data: bytes) -> bool:
    """Whether the store took the object; some keys cannot exist in some stores."""
    try:
        store.put(name, data)
    except (OSError, ValueError, ForebayError):
        return False
    return True


def _needs_list(store: Store, downloader: Downloader) -> None:
    try:
        list(downloader.list(store.prefix))
    except UnsupportedOperationError as error:
        pytest.skip(f"the backend cannot list: {error}")
