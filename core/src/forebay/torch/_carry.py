"""What a worker has to have of its trainer before it opens the dataset: environment and working directory.

A fork server keeps the environment that it was started with, and what it forks, as what is spawned, begins in the
directory in which the program began. A worker that goes by those opens another cache, or another store.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from forebay import _config

__all__ = ["Surroundings"]


class Surroundings:
    """Unpickled in a worker, it makes the worker's surroundings those of the process that pickled it."""

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            folder = os.getcwd()
        except FileNotFoundError:  # somebody removed it; no relative path works then, here or there
            folder = None
        return _settle_in, (dict(_config.environ()), folder)


def _settle_in(variables: Mapping[str, str], folder: str | None) -> None:
    _config.replace_environ(variables)
    if folder is not None:
        with contextlib.suppress(OSError):  # it vanished meanwhile: as above
            os.chdir(folder)
