"""The command line, in a process of its own, as people start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["forebay"]


def forebay(place: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``forebay ARGUMENTS`` in ``place``, without a proxy; ``env`` comes to the environment of the tests."""
    return subprocess.run(
        [sys.executable, "-m", "forebay", *arguments],
        cwd=place,
        env={**os.environ, "NO_PROXY": "*", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
