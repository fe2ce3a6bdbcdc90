"""What a test of a backend needs: the conformance suite, a server that misbehaves on demand, small helpers.

Only `DownloaderConformance` needs pytest, so the names load at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay.testing._async import run_async
    from forebay.testing._faults import Fault, Gate, ServedRequest
    from forebay.testing._server import FaultServer

__all__ = ["Fault", "FaultServer", "Gate", "ServedRequest", "run_async"]

_HOMES = {
    "Fault": "forebay.testing._faults",
    "FaultServer": "forebay.testing._server",
    "Gate": "forebay.testing._faults",
    "ServedRequest": "forebay.testing._faults",
    "run_async": "forebay.testing._async",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
