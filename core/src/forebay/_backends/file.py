"""``file://`` and bare paths: a local folder as a root. Synchronous, because the kernel's file calls are."""

from __future__ import annotations

import os
import stat as stat_module
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, ClassVar, TypeVar

from forebay._config import random
from forebay._url import local_path, parse_url, redact
from forebay.downloader import Downloader, SupportsWrite, check_range
from forebay.exceptions import (
    AccessDeniedError,
    InvalidRangeError,
    ObjectNotFoundError,
    StorageError,
    UnsupportedOperationError,
)
from forebay.types import Capabilities, ObjectInfo

__all__ = ["FileDownloader"]

_E = TypeVar("_E", bound=StorageError)
_PIECE = 1 << 20
_TEMP_PREFIX, _TEMP_SUFFIX = ".forebay-", ".tmp"


class FileDownloader(Downloader):
    """Files below a folder. A key names a file by its exact path; one that a path would normalise is refused."""

    option_types: ClassVar[Mapping[str, type] | None] = {}

    def __init__(self, root: str, options: Mapping[str, object] | None = None) -> None:
        super().__init__(root, options)
        # Absolute now: a later chdir must not move the root.
        self._folder = Path(os.path.abspath(local_path(parse_url(root))))

    @classmethod
    def probe_driver(cls, options: Mapping[str, object]) -> Capabilities:
        """The operating system's own calls."""
        return Capabilities(native_async=False, driver="os", fork_safe=True)

    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        """Write the file in pieces."""
        with self._open(key) as (file, _):
            # A fresh piece each time: a writer may keep it.
            while piece := file.read(_PIECE):
                fileobj.write(piece)

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return the slice, by the rules of `Downloader.download_bytes`."""
        check_range(key, offset, length)
        if length == 0:
            return b""
        with self._open(key) as (file, facts):
            if offset > 0 and offset >= facts.st_size:
                text = f"range starts at byte {offset} of {key!r}, which has {facts.st_size} bytes"
                raise self._error(InvalidRangeError, key, text)
            file.seek(offset)
            pieces: list[bytes] = []
            wanted = max(facts.st_size - offset, 0) if length is None else length
            while wanted and (piece := file.read(wanted)):
                pieces.append(piece)
                wanted -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def stat(self, key: str) -> ObjectInfo:
        """Return size, a weak etag and the time of the file."""
        with self._open(key) as (_, facts):
            return _info(key, facts)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the files whose key starts with ``prefix``, sorted within a folder.

        Links are followed; a link that leads back to a folder above it is not. A missing root is an
        `ObjectNotFoundError`; a prefix that nothing has is empty.
        """
        if not self._folder.is_dir():
            raise self._error(ObjectNotFoundError, "", f"there is no folder {self._shown}")
        start = prefix.rpartition("/")[0]
        if start and not self._is_plain(start):
            return
        folder = self._folder / start
        with suppress(OSError):  # a prefix that is no folder has no keys
            facts = folder.stat()
            if stat_module.S_ISDIR(facts.st_mode):
                yield from self._walk(folder, f"{start}/" if start else "", prefix, ((facts.st_dev, facts.st_ino),))

    def _walk(self, folder: Path, key: str, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[ObjectInfo]:
        with self._errors(key):
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except FileNotFoundError:  # removed while we walk: nothing to list
                return
        for entry in entries:
            name = key + entry.name
            if not (name.startswith(prefix) or prefix.startswith(name + "/")) or _is_temporary(entry.name):
                continue
            try:
                facts = entry.stat()
            except OSError:  # a dangling link, a loop of links, or removed while we walk: no object
                continue
            if stat_module.S_ISREG(facts.st_mode):
                if name.startswith(prefix):
                    yield _info(name, facts)
            elif stat_module.S_ISDIR(facts.st_mode) and (here := (facts.st_dev, facts.st_ino)) not in above:
                yield from self._walk(Path(entry.path), name + "/", prefix, (*above, here))

    def upload_file(self, key: str, path: Path) -> None:
        """Store the file's bytes under ``key``: a temporary file beside it, then one rename."""
        if not key:
            raise self._error(UnsupportedOperationError, key, f"an upload to {self._shown} needs a key")
        target = self._path(key)
        temporary = target.with_name(f"{_TEMP_PREFIX}{random().getrandbits(64):016x}{_TEMP_SUFFIX}")
        try:
            with open(path, "rb") as source:
                target.parent.mkdir(parents=True, exist_ok=True)
                _copy_and_rename(source, temporary, target)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            text = f"{key!r} cannot be stored under {self._shown}: a file system holds no file and folder of one name"
            raise self._error(UnsupportedOperationError, key, text) from error

    def _path(self, key: str) -> Path:
        if key and not self._is_plain(key):
            text = f"{key!r} names no file under {self._shown}: a key is relative, without empty, '.' or '..' parts"
            raise self._error(UnsupportedOperationError, key, text)
        return self._folder / key if key else self._folder

    @staticmethod
    def _is_plain(key: str) -> bool:
        windows = os.name == "nt" and any(character in key for character in '\\:*?"<>|')
        return "\0" not in key and not windows and not {"", ".", ".."} & set(key.split("/"))

    @property
    def _shown(self) -> str:
        return redact(str(self._folder))

    def _error(self, cls: type[_E], key: str, message: str) -> _E:
        return cls(f"{message} (backend file)", url=redact(str(self._folder / key)), key=key, backend="file")

    @contextmanager
    def _open(self, key: str) -> Iterator[tuple[BinaryIO, os.stat_result]]:
        path = self._path(key)
        with self._errors(key):
            file = open(path, "rb", buffering=0, opener=_open_at_once)  # noqa: SIM115 - closed right below
        with file:
            facts = os.fstat(file.fileno())
            if not stat_module.S_ISREG(facts.st_mode):
                text = f"{key!r} under {self._shown} is no regular file"
                raise self._error(UnsupportedOperationError, key, text)
            yield file, facts

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            why = "is a folder" if isinstance(error, IsADirectoryError) else "does not exist"
            raise self._error(ObjectNotFoundError, key, f"{key!r} under {self._shown} {why}") from error
        except PermissionError as error:
            text = f"{key!r} under {self._shown} may not be read: {error.strerror}"
            raise self._error(AccessDeniedError, key, text) from error


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting: a pipe that nobody writes to would block for ever."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _info(key: str, facts: os.stat_result) -> ObjectInfo:
    # Weak: two writes in one tick of the file system's clock look alike.
    etag = f'W/"{facts.st_ino:x}-{facts.st_size:x}-{facts.st_mtime_ns:x}-{facts.st_ctime_ns:x}"'
    return ObjectInfo(key, size=facts.st_size, etag=etag, last_modified=datetime.fromtimestamp(facts.st_mtime, UTC))


def _is_temporary(name: str) -> bool:
    return name.startswith(_TEMP_PREFIX) and name.endswith(_TEMP_SUFFIX)


def _copy_and_rename(source: BinaryIO, temporary: Path, target: Path) -> None:
    try:
        with open(temporary, "xb") as file:
            while piece := source.read(_PIECE):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())  # or a crash may leave the name with nothing behind it
        os.replace(temporary, target)
    except BaseException:  # no half a file stays, whatever came; it is raised again
        temporary.unlink(missing_ok=True)
        raise
