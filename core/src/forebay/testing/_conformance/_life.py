"""From `open_downloader` to ``close``: options, probe, repr, pickling."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from pathlib import Path

import pytest

from forebay import open_downloader
from forebay.downloader import Downloader, probe
from forebay.exceptions import ConfigError, UnsupportedOperationError
from forebay.testing._async import run_async
from forebay.testing._conformance._store import Remote, Store, SuiteBase, async_ways, secrets_of, sync_ways
from forebay.types import Capabilities

__all__ = ["LifeTests"]


class LifeTests(SuiteBase):
    """What happens around the reads."""

    def test_pickles_after_use(self, store: Store, downloader: Downloader, tmp_path: Path) -> None:
        key = store.put("one.bin", b"0123456789")
        assert downloader.download_bytes(key) == b"0123456789"
        clone = pickle.loads(pickle.dumps(downloader))
        try:
            assert (clone.root, dict(clone.options)) == (downloader.root, dict(downloader.options))
            for name, read in sync_ways(clone, tmp_path).items():
                assert read(key) == b"0123456789", name
        finally:
            clone.close()

    def test_two_downloaders_share_nothing(self, remote: Remote, store: Store, tmp_path: Path) -> None:
        key = store.put("one.bin", b"0123456789")
        first = open_downloader(remote.url, options=remote.options)
        second = open_downloader(remote.url, options=remote.options)
        assert first.download_bytes(key) == b"0123456789"
        assert second.download_bytes(key) == b"0123456789"
        first.close()
        try:
            for name, read in sync_ways(second, tmp_path).items():
                assert read(key) == b"0123456789", f"{name} after the other one was closed"
        finally:
            second.close()

    def test_options_stay_as_they_were_given(self, remote: Remote, store: Store) -> None:
        key = store.put("one.bin", b"data")
        given = dict(remote.options)
        before = _copied(given)
        opened = open_downloader(remote.url, options=given)
        opened.download_bytes(key)
        opened.close()
        assert given == before

    def test_unknown_option_is_refused(self, remote: Remote, downloader: Downloader) -> None:
        if type(downloader).option_types is None:
            pytest.skip("the backend takes any option")
        with pytest.raises(ConfigError, match="no_such_option"):
            open_downloader(remote.url, options={**remote.options, "no_such_option": 1})

    def test_close_works_without_and_after_use(self, remote: Remote, store: Store, tmp_path: Path) -> None:
        open_downloader(remote.url, options=remote.options).close()
        key = store.put("one.bin", b"data")
        used = open_downloader(remote.url, options=remote.options)
        used.download_bytes(key)
        used.close()

        async def main() -> None:
            unused = open_downloader(remote.url, options=remote.options)
            await unused.aclose()
            unused.close()
            opened = open_downloader(remote.url, options=remote.options)
            if probe(opened).native_async:
                for read in async_ways(opened, tmp_path).values():
                    assert await read(key) == b"data"
            await opened.aclose()
            opened.close()

        run_async(main())

    def test_repr_is_one_line_without_secrets(self, remote: Remote, store: Store, downloader: Downloader) -> None:
        downloader.download_bytes(store.put("one.bin", b"data"))
        text = repr(downloader)
        assert type(downloader).__name__ in text
        assert "\n" not in text
        for secret in secrets_of(remote):
            assert secret not in text, "repr shows a secret"

    def test_probe_tells_what_works(self, store: Store, downloader: Downloader) -> None:
        said = probe(downloader)
        assert isinstance(said, Capabilities)
        assert said.driver
        assert probe(downloader) == said, "a second probe says something else"
        key = store.put("one.bin", b"0123456789")
        if said.ranges:
            assert downloader.download_bytes(key, 2, 3) == b"234"
        if said.stat:
            assert downloader.stat(key).size in (10, None)
        try:
            listed = [info.key for info in downloader.list(store.prefix + "/")]
        except UnsupportedOperationError:
            assert not said.list, "probe says that it lists"
        else:
            assert said.list, "it lists, and probe says that it cannot"
            assert listed == [key]


def _copied(options: Mapping[str, object]) -> dict[str, object]:
    """The options with their containers copied too; other values (credential providers, say) need not be copyable."""
    containers = (dict, list, set)
    return {name: copy.copy(value) if isinstance(value, containers) else value for name, value in options.items()}
