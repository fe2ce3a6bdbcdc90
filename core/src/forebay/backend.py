"""For authors of backends: the few helpers that keep a backend like the others.

The contract itself is `forebay.Downloader`. Environment and clocks are read through these functions, so that a test can
replace them in one place; `redact` makes a text with URLs fit for a log or a message, and `check_range` refuses the
ranges that no object has.
"""

from __future__ import annotations

from forebay._config import environ, monotonic, wall_clock
from forebay._url import redact
from forebay.downloader import check_range

__all__ = ["check_range", "environ", "monotonic", "redact", "wall_clock"]
