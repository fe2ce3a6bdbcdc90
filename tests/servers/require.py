"""Servers that a test needs: a visible skip where one is missing, a failure where ``FOREBAY_REQUIRE`` lists it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import pytest

__all__ = ["installed", "require", "unavailable"]

#: Debian keeps servers where a user's PATH does not reach.
_EXTRA_PATH = ("/usr/sbin", "/usr/local/sbin", "/sbin")


def require(name: str, executable: str | None = None) -> str:
    """The path of a server's executable (``name`` unless told otherwise); skips or fails the test without it."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_EXTRA_PATH])
    found = shutil.which(executable or name, path=path)
    if found is None:
        unavailable(name, f"no {executable or name} on this machine")
    return found


def installed(name: str, executable: str) -> str:
    """The path of a command that a package brought: beside this interpreter, in node_modules, on PATH."""
    folders = (Path(sys.executable).parent, Path(__file__).parents[2] / "node_modules" / ".bin")
    found = next((path for path in (folder / executable for folder in folders) if os.access(path, os.X_OK)), None)
    return str(found) if found is not None else require(name, executable)


def unavailable(name: str, why: str) -> NoReturn:
    """Skip the test for want of ``name``, or fail it where ``FOREBAY_REQUIRE`` (comma-separated) says it has to run."""
    wanted = {one.strip() for one in os.environ.get("FOREBAY_REQUIRE", "").split(",")}
    if name in wanted:
        pytest.fail(f"{name} is required (FOREBAY_REQUIRE) and missing: {why}", pytrace=False)
    pytest.skip(f"{name} is missing: {why}")
