"""The cache directory: which names are ours, how it is made, which directories are refused.

``FORMAT`` (the version), ``BUDGET`` (for when the ledger is lost), ``ledger.sqlite``, ``holders/``, ``indexes/``,
``chunks/<dataset>/<hash>[suffix]`` and temporaries ``chunks/<dataset>/<hash>.<random>.tmp``. Whatever has another name
is not ours: never opened, followed or deleted.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from forebay._cache._platform import remedy_text
from forebay._cache._types import ChunkKey
from forebay.exceptions import CacheCorruptError, CacheError, ConfigError

__all__ = [
    "FINAL",
    "INDEX",
    "TEMP",
    "Layout",
    "Trash",
    "chunk_name",
    "drop_inherited_trash",
    "dustbin",
    "refuse_dangerous",
    "remove",
]

_FORMAT = b"forebay-cache 1\n"
_DATASET = re.compile(r"[0-9a-f]{1,64}")
# ``.tmp`` is never a part of a suffix: names with it are our temporaries, or other programs'.
_PART = r"\.(?!tmp(?:\.|$))[A-Za-z0-9_-]{1,12}"
_SUFFIX = re.compile(rf"(?:{_PART}){{1,2}}$")
FINAL = re.compile(rf"[0-9a-f]{{32}}(?:{_PART}){{0,2}}")
TEMP = re.compile(r"[0-9a-f]{32}\.[0-9a-f]{16}\.tmp")
INDEX = re.compile(r"[0-9a-f]{32}(?:\.json(?:\.[0-9a-f]{16}\.tmp)?)?")
_NEWBORN = re.compile(r"(?:FORMAT|BUDGET)\.[0-9a-f]{16}\.tmp|ledger\.damaged\.[0-9a-f]{8}")
#: Tries to write such a file.
_WRITES = 20
_BIRTH = re.compile(rf"{_NEWBORN.pattern}|lost\+found|\.DS_Store|\.nfs.*")
_SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/opt", "/proc", "/root", "/run", "/sbin", "/srv", "/sys")
_SYSTEM_DEEP = ("/usr", "/var", "/var/lib", "/var/tmp", "/tmp", "/mnt", "/media", "/Users", "/Library", "/System")

#: Descriptors of files that were unlinked inside a transaction; closing them, later, is what frees the disk.
Trash = list[int]
#: All of them, so that a child forked just now can close its copies and the disk is freed.
_open_trash: set[int] = set()


@lru_cache(maxsize=65536)
def chunk_name(chunk: ChunkKey) -> str:
    """The chunk's path below ``chunks/``, the key of the ledger."""
    if not _DATASET.fullmatch(chunk.dataset):
        raise ConfigError(f"a dataset's identity must be hexadecimal, not {chunk.dataset!r}", option="dataset")
    found = _SUFFIX.search(chunk.suffix)
    suffix = found[0] if found else ""
    return f"{chunk.dataset}/{sha256(chunk.identity.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}{suffix}"


def remove(path: Path | str, trash: Trash) -> bool:
    """Unlink a file of ours (a link, not its target) so that its blocks are freed when ``trash`` is emptied.

    Freeing 64 MiB takes milliseconds, unlinking an open file microseconds; so a transaction stays short.

    Returns:
        Whether nothing lies at ``path`` any more.
    """
    try:
        held = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        _open_trash.add(held)
        trash.append(held)
    except FileNotFoundError:
        return True
    except OSError:
        pass  # a link, not readable, or no descriptor left: unlinking still works, only slower
    try:
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def empty_trash(trash: Trash) -> None:
    """Close what `remove` holds open; outside of a transaction where it can be."""
    while trash:
        held = trash.pop()
        _open_trash.discard(held)
        os.close(held)


@contextmanager
def dustbin() -> Iterator[Trash]:
    """A place for trash that is emptied at the end, also of what failed: on a full disk its blocks are waited for."""
    trash: Trash = []
    try:
        yield trash
    finally:
        empty_trash(trash)


def drop_inherited_trash() -> None:
    """In a forked child: close what the parent was about to close."""
    empty_trash(list(_open_trash))


def refuse_dangerous(directory: Path) -> None:
    """Raise for a directory in which people keep other things.

    Raises:
        ConfigError: It is the root, a system directory, the home directory or one of its parents.
    """
    home = Path(os.path.expanduser("~")).resolve()
    shared = {Path(name) for name in (*_SYSTEM, *_SYSTEM_DEEP)} | {Path(tempfile.gettempdir()).resolve(), home}
    if directory == Path(directory.anchor) or directory in shared or directory in home.parents:
        raise ConfigError(
            f"{str(directory)!r} cannot be a cache directory, other things live there:"
            f" name one of its own, for example {str(directory / 'forebay-cache')!r}",
            option="cache_dir",
        )


class Layout:
    """Paths of one cache directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.chunks = directory / "chunks"
        self.holders = directory / "holders"
        self.indexes = directory / "indexes"
        self.ledger = directory / "ledger.sqlite"
        self._prefix = f"{self.chunks}{os.sep}"
        self._paths: dict[str, Path] = {}

    def final(self, name: str) -> str:
        """Where the chunk ``name`` lies when it is ready."""
        return self._prefix + name

    def path(self, name: str) -> Path:
        """`final` as a path object; kept, for making one takes longer than a transaction should."""
        path = self._paths.get(name)
        if path is None:
            if len(self._paths) > 65536:
                self._paths.clear()
            path = self._paths[name] = Path(self._prefix + name)
        return path

    def new_temp(self, name: str) -> str:
        """A name, below ``chunks/``, that no file ever had."""
        dataset, _, file = name.partition("/")
        return f"{dataset}/{file[:32]}.{secrets.token_hex(8)}.tmp"

    def index_path(self, identity: str) -> Path:
        """Where the small index file of ``identity`` lies; its folder exists."""
        self.indexes.mkdir(parents=True, exist_ok=True)
        return self.indexes / self.index_name(identity)

    @staticmethod
    def index_name(identity: str) -> str:
        """The file name of the index of ``identity``."""
        return f"{sha256(identity.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.json"

    def prepare(self, *, private: bool) -> None:
        """Make the directory, or see that it is a cache of ours.

        Raises:
            CacheError: It holds other things.
            CacheCorruptError: It is a cache of another version.
        """
        if private and not self.directory.exists():
            self.directory.parent.mkdir(parents=True, exist_ok=True)
            self.directory.mkdir(mode=0o700, exist_ok=True)
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self.is_cache():
            self._refuse_foreign()
            self._write("FORMAT", _FORMAT)
        for folder in (self.chunks, self.holders, self.indexes):
            folder.mkdir(exist_ok=True)
            if folder.is_symlink():
                raise CacheError(f"{folder} is a link: a cache's own folders must be real", path=str(folder))
        self._create_ledger_file()

    def is_cache(self) -> bool:
        """Whether the directory says that it is a cache of this version.

        Raises:
            CacheCorruptError: It says that it is one of another version.
        """
        try:
            found = (self.directory / "FORMAT").read_bytes()[:80]
        except (FileNotFoundError, NotADirectoryError):
            return False
        if found != _FORMAT:
            raise CacheCorruptError(
                f"{self.directory} holds a cache of the form {found.decode('utf-8', 'replace').strip()!r}, this version"
                f" of forebay reads {_FORMAT.decode().strip()!r}: delete the directory or choose another",
                path=str(self.directory),
            )
        return True

    def _refuse_foreign(self) -> None:
        foreign = sorted(entry.name for entry in os.scandir(self.directory) if not _BIRTH.fullmatch(entry.name))
        if not foreign or self.is_cache():  # another process may have made it a cache just now
            return
        raise CacheError(
            f"{self.directory} is not empty and not a cache (it holds {foreign[0]!r}"
            f"{f' and {len(foreign) - 1} more' if len(foreign) > 1 else ''}): name an empty or new directory,"
            f" for example {str(self.directory / 'forebay-cache')!r}",
            path=str(self.directory),
        )

    def recorded_budget(self) -> int | None:
        """The budget that `record_budget` wrote down, for a ledger that is made anew."""
        try:
            text = (self.directory / "BUDGET").read_bytes()[:40]
        except OSError:
            return None
        return int(text) if text.strip().isdigit() and int(text) > 0 else None

    def record_budget(self, budget: int) -> None:
        """Write the budget down beside the ledger, which may be lost."""
        if self.recorded_budget() != budget:
            with suppress(OSError):  # a full disk: it stands in the ledger all the same
                self._write("BUDGET", f"{budget}\n".encode())

    def sweep_births(self) -> None:
        """Remove what processes left that died while they wrote a small file here, or put a damaged ledger aside."""
        for entry in os.scandir(self.directory):
            if _NEWBORN.fullmatch(entry.name):
                with suppress(OSError):  # gone meanwhile, or another user's
                    os.unlink(entry.path)

    def _write(self, name: str, data: bytes) -> None:
        for attempt in range(_WRITES):
            temp = self.directory / f"{name}.{secrets.token_hex(8)}.tmp"
            try:
                temp.write_bytes(data)
                os.replace(temp, self.directory / name)
            except FileNotFoundError:  # whoever sweeps cannot tell us from somebody dead
                if attempt == _WRITES - 1:
                    raise
            else:
                return
            finally:
                temp.unlink(missing_ok=True)

    def _create_ledger_file(self) -> None:
        # SQLite would make it 0644 whatever the umask says, and a group could not share it. O_EXCL: a ledger that
        # exists is never opened here, for closing it would drop this process's SQLite locks.
        try:
            os.close(os.open(self.ledger, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        except FileExistsError:
            if not stat.S_ISREG(os.lstat(self.ledger).st_mode):
                raise CacheCorruptError(
                    f"{self.ledger} is not a regular file: {remedy_text(self.directory)}", path=str(self.ledger)
                ) from None

    def make_dataset_folder(self, name: str) -> None:
        """Make the folder of the chunk ``name``, also after somebody removed it."""
        folder = self.chunks / name.partition("/")[0]
        try:
            folder.mkdir(exist_ok=True)
        except FileNotFoundError:
            folder.mkdir(parents=True, exist_ok=True)
        if folder.is_symlink():
            raise CacheError(f"{folder} is a link: a cache's own folders must be real", path=str(folder))

    def size_of(self, name: str) -> int | None:
        """Bytes of the regular file ``name`` below ``chunks/``; None where there is none (a link is none)."""
        try:
            found = os.lstat(self._prefix + name)
        except OSError as exc:
            if exc.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise
        return found.st_size if stat.S_ISREG(found.st_mode) else None
