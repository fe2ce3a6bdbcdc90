"""The command line: ``forebay``, also ``python -m forebay``.

Starting it imports click and nothing heavy: each command imports what it needs when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from forebay.cli._app import app
from forebay.cli._run import run

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted.

    Args:
        argv: The arguments without the program's name; None takes them from the process.
    """
    return run(app, argv)
