"""What a test of a backend needs: the conformance suite, a server that misbehaves on demand, small helpers.

Only `DownloaderConformance` needs pytest, so the names load at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay.testing._async import run_async
    from forebay.testing._conformance import DownloaderConformance, Remote
    from forebay.testing._faults import Fault, Gate, ServedRequest
    from forebay.testing._memory import memory_put
    from forebay.testing._server import FaultServer

__all__ = [
    "DownloaderConformance",
    "Fault",
    "FaultServer",
    "Gate",
    "Remote",
    "ServedRequest",
    "memory_put",
    "run_async",
]

_CONFORMANCE = "forebay.testing._conformance"
_HOMES = {
    "DownloaderConformance": _CONFORMANCE,
    "Fault": "forebay.testing._faults",
    "FaultServer": "forebay.testing._server",
    "Gate": "forebay.testing._faults",
    "Remote": _CONFORMANCE,
    "ServedRequest": "forebay.testing._faults",
    "memory_put": "forebay.testing._memory",
    "run_async": "forebay.testing._async",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if home == _CONFORMANCE:
        _show_values_in_asserts()
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def _show_values_in_asserts() -> None:
    """Have pytest rewrite the suite's asserts, as it does with test files; it has to know before the import."""
    try:
        import pytest
    except ImportError as error:
        raise ImportError("the conformance suite needs pytest: pip install pytest") from error
    pytest.register_assert_rewrite(_CONFORMANCE)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
