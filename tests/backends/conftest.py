"""What the tests of every backend get."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forebay.testing import FaultServer


@pytest.fixture(params=["obstore", "fsspec"])
def driver(request: pytest.FixtureRequest) -> str:
    """The test runs with each."""
    return str(request.param)


@pytest.fixture
def faults() -> Iterator[FaultServer]:
    """A server that misbehaves as told, empty."""
    with FaultServer() as server:
        yield server
