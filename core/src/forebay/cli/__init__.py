"""The command line: ``forebay``, also ``python -m forebay``.

Starting it imports click and nothing heavy: each command imports what it needs when it runs. This module imports not
even click, so that `main` is reached, and Ctrl-C is answered properly, as early as possible.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence

from forebay.cli._early import quit_early

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted.

    Args:
        argv: The arguments without the program's name; None takes them from the process.
    """
    ours = argv is None and threading.current_thread() is threading.main_thread()
    if ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, quit_early)
    from forebay.cli._app import app
    from forebay.cli._run import run

    return run(app, argv)
