"""An open file of the cache, which keeps its lease until it is closed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import forebay

if TYPE_CHECKING:
    from forebay_fsspec._filesystem import ForebayFileSystem

__all__ = ["CachedFile"]

_BUFFER = 128 * 1024


class CachedFile(io.BufferedReader):
    """The bytes of one object. While it is open the cache keeps them; closing it, or forgetting it, lets go.

    Args:
        local: The file in the cache, as `forebay.fetch` returned it.
        fs: Whose file it is.
        path: Its name there.
    """

    def __init__(self, local: Path, fs: ForebayFileSystem, path: str) -> None:
        self._local: Path | None = local
        self.fs = fs
        self.path = path
        try:
            raw = io.FileIO(local, "rb")
            self.size = local.stat().st_size
        except BaseException:
            self._release()
            raise
        super().__init__(raw, _BUFFER)

    def close(self) -> None:
        """Close the file and let go of it in the cache; once."""
        try:
            super().close()
        finally:
            self._release()

    def _release(self) -> None:
        local, self._local = self._local, None
        if local is not None:
            forebay.release(local)
