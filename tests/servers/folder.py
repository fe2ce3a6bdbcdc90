"""What the servers over a folder, for one user, have in common: they block, and the bridge to fsspec reads them."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from servers.store import ServerContext

__all__ = ["FolderServer", "put_file"]


def put_file(folder: Path, key: str, data: bytes) -> None:
    """Make or replace the file of a key, whole."""
    if "//" in key or key.endswith("/"):
        raise ValueError("a file system has no such name")
    path = folder / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


class FolderServer(ServerContext):
    """A context manager. ``put`` and ``delete`` work on the files themselves."""

    SCHEME: ClassVar[str]
    USER, PASSWORD = "reader", "open-sesame"

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.folder = directory / self.SCHEME
        self.folder.mkdir(parents=True)
        self.log = directory / f"{self.SCHEME}.out"
        self.port = 0

    @property
    def url(self) -> str:
        """The root, with user and password."""
        return f"{self.SCHEME}://{self.USER}:{self.PASSWORD}@127.0.0.1:{self.port}"

    def put(self, key: str, data: bytes) -> None:
        """Make or replace a file, whole."""
        put_file(self.folder, key, data)

    def delete(self, key: str) -> None:
        """Remove a file."""
        (self.folder / key).unlink()
