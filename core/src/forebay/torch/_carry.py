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

__all__ = ["Carried"]


class Carried:
    """A dataset on its way to a worker; there it is the dataset again."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __reduce__(self) -> tuple[Any, ...]:
        # Arguments are unpickled in order, so the dataset is opened in the trainer's surroundings.
        return _arrive, (_Surroundings(), self._dataset)


class _Surroundings:
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


def _arrive(_: None, dataset: Any) -> Any:
    return dataset
