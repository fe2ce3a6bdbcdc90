"""Ctrl-C while the command line itself is still being imported."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

__all__ = ["quit_early"]


def quit_early(_signum: int, _frame: object) -> NoReturn:
    """End the process: nothing was begun, and a traceback through imports helps nobody."""
    os.write(2, b"interrupted\n")
    os._exit(128 + signal.SIGINT)
