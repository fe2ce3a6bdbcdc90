"""Chunk names come from a remote file: none of them may point out of the dataset."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["first_bad_name", "name_fault"]

#: What nearly every chunk is called; anything else takes the slow, exact way.
_PLAIN = re.compile(r"[A-Za-z0-9_\-][A-Za-z0-9_\-.]*").fullmatch
_DRIVE = re.compile(r".:")  # Windows takes any character before a colon for a drive
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def name_fault(name: str) -> str | None:
    """Say what is wrong with a chunk's name, or None.

    A good name is a relative path of plain components, separated by ``/``: joined to a directory or URL it stays below.
    """
    if not name:
        return "is empty"
    if "\x00" in name:
        return "holds a NUL"
    if _CONTROL.search(name):
        return "holds a control character"
    if "\\" in name:
        return "holds a backslash"
    if name.startswith("/"):
        return "is an absolute path"
    if _DRIVE.match(name):
        return "names a drive"
    if "://" in name:
        return "is a URL"
    parts = name.split("/")
    if ".." in parts:
        return "leaves the directory of the dataset ('..')"
    if "" in parts or "." in parts:
        return "has an empty or '.' component"
    return None


def first_bad_name(names: Sequence[str]) -> tuple[int, str] | None:
    """Return position and fault of the first name that may not be used; fast for a million plain ones."""
    for position, name in enumerate(names):
        if _PLAIN(name) is None:
            fault = name_fault(name)
            if fault is not None:
                return position, fault
    return None
