"""What a process has one of, on both sides of a real fork."""

from __future__ import annotations

import subprocess
import sys

__all__ = ["check_own_after_fork"]

_CODE = """
import importlib, os, sys
one = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])
here = one()
assert one() is here
pid = os.fork()
if pid == 0:
    os._exit(42 if one() is not here else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42, "the child has its parent's"
assert one() is here
"""


def check_own_after_fork(module: str, function: str) -> None:
    """``function()`` returns one object a process: the same again and again, another one in a forked child."""
    command = [sys.executable, "-c", _CODE, module, function]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
