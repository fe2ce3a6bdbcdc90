"""`FsspecDownloader`: a root of any protocol that fsspec knows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from forebay._url import join_url, redact
from forebay.downloader import Downloader, SupportsWrite, check_range
from forebay.exceptions import InvalidURLError
from forebay.types import Capabilities, ObjectInfo, RangeRead
from forebay_drivers.driver import Driver
from forebay_drivers.errors import Subject
from forebay_drivers.fsspec import BlockingDriver, NativeDriver, filesystem_class
from forebay_fsspec._place import Place, for_fsspec, is_native, is_secret, protocol_of, read_place

__all__ = ["FsspecDownloader"]


class FsspecDownloader(Downloader):
    """Objects of a file system of fsspec's, made with the options that are given.

    The class decides by the protocol: one whose file system is async is asked natively, another one in threads.
    """

    option_types: ClassVar[Mapping[str, type] | None] = None

    def __new__(cls, root: str = "", options: Mapping[str, object] | None = None) -> FsspecDownloader:
        """Pick the class; without a root (unpickling) it is known already."""
        if cls is FsspecDownloader and root:
            cls = _class_for(protocol_of(root))
        return super().__new__(cls)

    def __init__(self, root: str, options: Mapping[str, object] | None = None) -> None:
        super().__init__(root, options)
        self._place = self._read()
        # One driver a process: after a fork the child makes its own and leaves the parent's connections alone.
        self._drivers: dict[int, Driver] = {}

    def _read(self) -> Place:
        return read_place(self.root, self.options)[1]

    @classmethod
    def probe_driver(cls, options: Mapping[str, object]) -> Capabilities:
        """fsspec, natively where the file system is async."""
        native = issubclass(cls, _NativeDownloader)
        reason = "the file system is async" if native else "the file system blocks, and is used in threads"
        if cls is FsspecDownloader:  # asked for no protocol
            reason = "an async file system is asked natively, one that blocks is used in threads"
        return Capabilities(
            native_async=native,
            ranges=True,
            stat=True,
            list=cls is not _WebDownloader,
            driver="fsspec",
            version=version("fsspec"),
            reason=reason,
        )

    @classmethod
    def location_options(cls, options: Mapping[str, object]) -> Mapping[str, object]:
        """Every option may say where: a host, an archive, a server behind a gateway. Secrets do not."""
        return _plain(for_fsspec(options))

    # -- reading --------------------------------------------------------------------------------------------------

    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        """Write the whole object to ``fileobj``."""
        self._driver(key).stream(key, fileobj)

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return ``length`` bytes from ``offset``, or all from there on."""
        check_range(key, offset, length)
        if length == 0:
            return b""
        return bytes(self._driver(key).read(key, offset, length, None).data)

    def stat(self, key: str) -> ObjectInfo:
        """What the file system knows of the object."""
        return self._driver(key).stat(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object whose key starts with ``prefix``, recursively."""
        # As a key it would go on after the prefix: with any character that is no slash.
        yield from self._driver(prefix + "x").list(prefix)

    def upload_file(self, key: str, path: Path) -> None:
        """Store the file's bytes under ``key``."""
        self._driver(key).upload(key, path)

    # -- drivers --------------------------------------------------------------------------------------------------

    def _driver(self, key: str) -> Driver:
        driver = self._drivers.get(os.getpid())
        if driver is None:
            # setdefault is atomic, so no lock can be inherited locked by a child.
            driver = self._drivers.setdefault(os.getpid(), self._make())
        no = driver.refusal(key)
        if no is not None:
            raise InvalidURLError(f"key {key!r} under {redact(self.root)} (backend fsspec) is refused: {no}")
        return driver

    def _make(self) -> Driver:
        place = self._place
        return BlockingDriver(place.make, self._subject, prefix=place.prefix, dialect=place.dialect, root=place.root)

    def _subject(self, key: str) -> Subject:
        return Subject(key, "fsspec", "fsspec", self._show, self._place.secrets)

    def _show(self, key: str) -> str:
        return redact(join_url(self.root, key))

    # -- life -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections of this process."""
        driver = self._drivers.pop(os.getpid(), None)
        if driver is not None:
            driver.close()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["_place"], state["_drivers"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._place, self._drivers = self._read(), {}


class _BlockingDownloader(FsspecDownloader):
    """A file system that blocks: the engine calls the sync hooks in its threads."""


class _NativeDownloader(FsspecDownloader):
    """A file system that is async."""

    def _make(self) -> Driver:
        place = self._place
        make: Any = place.make
        return NativeDriver(make, self._subject, prefix=place.prefix, dialect=place.dialect, root=place.root)

    async def adownload_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        """Async twin of `download_fileobj`."""
        await self._driver(key).astream(key, fileobj)

    async def adownload_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Async twin of `download_bytes`."""
        check_range(key, offset, length)
        if length == 0:
            return b""
        return bytes((await self._driver(key).aread(key, offset, length, None)).data)

    async def aread_range(self, key: str, offset: int, length: int, *, if_match: str | None = None) -> RangeRead:
        """Read a piece, with what is known of the whole object."""
        check_range(key, offset, length)
        if length == 0:
            return RangeRead(data=b"", info=ObjectInfo(key))
        return await self._driver(key).aread(key, offset, length, if_match)

    async def astat(self, key: str) -> ObjectInfo:
        """Async twin of `stat`."""
        return await self._driver(key).astat(key)

    async def aupload_file(self, key: str, path: Path) -> None:
        """Async twin of `upload_file`."""
        await self._driver(key).aupload(key, path)

    async def aclose(self) -> None:
        """Close what belongs to the running loop."""
        driver = self._drivers.get(os.getpid())
        if driver is not None:
            await driver.aclose()


class _WebDownloader(_NativeDownloader):
    """fsspec's http file system: a web server has no listing to rely on."""

    list = Downloader.list


def _class_for(protocol: str) -> type[FsspecDownloader]:
    if not is_native(filesystem_class(protocol)):
        return _BlockingDownloader
    return _WebDownloader if protocol in ("http", "https") else _NativeDownloader


def _plain(options: Mapping[str, object]) -> dict[str, object]:
    """What of the options is data that reads the same in every process, without secrets."""
    kept: dict[str, object] = {}
    for name, value in sorted(options.items(), key=lambda pair: str(pair[0])):
        if is_secret(str(name)):
            continue
        if isinstance(value, Mapping):
            kept[str(name)] = _plain(value)
        elif value is None or isinstance(value, (str, int, float, bool, list, tuple)):
            kept[str(name)] = value
    return kept
