"""How one family of file systems takes keys and reads ranges: the general way, and the way of fsspec's http."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from inspect import isawaitable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from forebay.downloader import SupportsWrite
from forebay.types import ObjectInfo
from forebay_drivers.fsspec._info import object_info

if TYPE_CHECKING:
    from pathlib import Path

    from fsspec import AbstractFileSystem
    from fsspec.asyn import AsyncFileSystem

__all__ = ["Dialect", "HttpDialect", "connections", "find", "folder_of", "stat"]

_PIECE = 1 << 20  # of a body on its way to a writer
#: Where file systems keep what holds connections.
_CONNECTIONS = ("_session", "_s3", "service_client", "client", "ftp")


class Dialect:
    """The general way. A backend subclasses it where the SDK shows more than fsspec's interface does.

    Args:
        strip: The file system class's ``_strip_protocol``: a path that it would change is refused.
    """

    #: Whether ``/`` is only a character: no empty segment of a key is lost.
    literal_slashes = False
    #: Whether listings tell the objects.
    lists = True
    #: Whether `acat` says in each response of which object the bytes are.
    tells = False

    def __init__(self, strip: Callable[[str], str] | None = None) -> None:
        self._strip = strip

    def encode(self, key: str) -> str:
        """The key as it stands in a path."""
        return key

    def decode(self, name: str) -> str:
        """The key that stands in a path."""
        return name

    def refusal(self, path: str, key: str) -> str | None:
        """Why another object than ``key`` would be asked for; None where the key is taken as it is."""
        if "\0" in key:
            return "the key holds a NUL character"
        refused = (".", "..") if self.literal_slashes else ("", ".", "..")
        for segment in key.split("/") if key else ():
            if segment in refused:
                return f"the file system has no way to name the segment {segment!r}"
        if self._strip is not None and (changed := self._strip(path)) != path:
            return f"the file system would ask for {changed!r}"
        return None

    def cat(self, fs: AbstractFileSystem, path: str, start: int, stop: int | None, size: int | None) -> bytes:
        """Bytes ``start`` to ``stop`` of an object of ``size`` bytes, from a file system that blocks."""
        # Not stop=None: some file systems take the missing end of a whole object for none of it.
        bounds = {} if not start and stop is None else {"start": start, "end": stop}
        data: bytes = fs.cat_file(path, **bounds)
        return data

    def pieces(self, fs: AbstractFileSystem, path: str, size: int | None) -> Generator[bytes, None, None]:
        """The whole body, from a file system that blocks."""
        with fs.open(path, "rb") as file:
            while piece := file.read(_PIECE):
                yield piece

    async def awarm(self, fs: AsyncFileSystem) -> None:
        """Make the session: file systems that make it at their first request make two for two of them at once."""
        for name in ("set_session", "_set_session"):
            prepare = getattr(fs, name, None)
            if prepare is not None:
                await prepare()
                return

    async def acat(
        self, fs: AsyncFileSystem, path: str, key: str, start: int, stop: int | None, if_match: str | None
    ) -> tuple[bytes, ObjectInfo | None]:
        """Bytes ``start`` to ``stop``, and what the same response says of the object where ``tells`` is set.

        Without that (None) the driver asks for ``info`` before and after.
        """
        if start == 0 and stop is None:
            return await fs._cat_file(path), None
        return await fs._cat_file(path, start=start, end=stop), None

    async def astat(self, fs: AsyncFileSystem, path: str, key: str) -> ObjectInfo:
        """What is known of the object."""
        fs.invalidate_cache()
        return _checked(key, await fs._info(path))

    async def afind(self, fs: AsyncFileSystem, start: str) -> Mapping[str, Mapping[str, Any]]:
        """Every object whose path starts with ``start``, by path; others may be among them."""
        fs.invalidate_cache()
        return dict(await fs._find(folder_of(start), detail=True, **_strict(fs, "_find", "_walk")))

    async def aput(self, fs: AsyncFileSystem, local: Path, path: str) -> None:
        """Store a file."""
        await fs._put_file(str(local), path)

    async def astream(self, fs: AsyncFileSystem, path: str, fileobj: SupportsWrite) -> bool:
        """Write the whole object from one response; False, with nothing written, where there is no such way.

        ``fileobj`` is one that fsspec takes for an open file.
        """
        return False

    async def aclose(self, fs: AsyncFileSystem) -> None:
        """Close the connections, on the loop that they belong to."""
        for holder in connections(fs):
            outcome = holder.close()
            if isawaitable(outcome):
                await outcome


class HttpDialect(Dialect):
    """fsspec's http file system: keys are percent-encoded, and a web server has no listing to rely on.

    It has to be made with ``encoded=True``, or it would encode again.
    """

    lists = False

    def encode(self, key: str) -> str:
        """The key's characters as they stand in a URL."""
        return quote(key, safe="/", errors="replace")

    def refusal(self, path: str, key: str) -> str | None:
        """Servers resolve dot segments and many drop empty ones."""
        try:
            key.encode()
        except UnicodeEncodeError:
            return "the key is not Unicode text, and http has no way to name it"
        return super().refusal(path, key)

    async def astream(self, fs: AsyncFileSystem, path: str, fileobj: SupportsWrite) -> bool:
        """One GET, piece by piece."""
        await fs._get_file(path, fileobj)
        return True

    async def aput(self, fs: AsyncFileSystem, local: Path, path: str) -> None:
        """PUT the file's bytes."""
        await fs._put_file(str(local), path, method="put")


def _checked(key: str, info: Mapping[str, Any]) -> ObjectInfo:
    if info.get("type") == "directory":
        raise IsADirectoryError(f"{key!r} is a folder")
    return object_info(key, info)


def stat(fs: AbstractFileSystem, path: str, key: str) -> ObjectInfo:
    """What a blocking file system knows of the object."""
    fs.invalidate_cache()
    return _checked(key, fs.info(path))


def folder_of(start: str) -> str:
    """The folder that holds every path which starts with ``start``."""
    folder = start.rpartition("/")[0]
    return "/" if not folder and start.startswith("/") else folder  # "" would be the working directory


def find(fs: AbstractFileSystem, start: str) -> Mapping[str, Mapping[str, Any]]:
    """Every object of a blocking file system whose path starts with ``start``; others may be among them."""
    fs.invalidate_cache()
    return dict(fs.find(folder_of(start), detail=True, **_strict(fs, "find", "walk")))


def _strict(fs: AbstractFileSystem, find: str, walk: str) -> dict[str, str]:
    """fsspec's own way to find leaves out what it may not read, unless told otherwise."""
    import fsspec.asyn

    base: Any = fsspec.asyn.AsyncFileSystem if find.startswith("_") else fsspec.AbstractFileSystem
    own = all(getattr(type(fs), name) is getattr(base, name) for name in (find, walk))
    return {"on_error": "raise"} if own else {}


def connections(fs: AbstractFileSystem) -> list[Any]:
    """What of a file system can be closed."""
    held = [getattr(fs, name, None) for name in _CONNECTIONS]
    return [one for one in held if callable(getattr(one, "close", None))]
