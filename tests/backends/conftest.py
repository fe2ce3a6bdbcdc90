"""What the tests of every backend get."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["obstore", "fsspec"])
def driver(request: pytest.FixtureRequest) -> str:
    """The test runs with each."""
    return str(request.param)
