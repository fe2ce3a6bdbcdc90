"""Servers that the tests of one process share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from servers.process import LASTING
from servers.store import ServerContext

__all__ = ["session_server"]

Server = TypeVar("Server", bound=ServerContext)


def session_server(make: Callable[[Path], Server]) -> object:
    """A fixture of the session: the running server. No test is blamed for its processes."""

    @pytest.fixture(scope="session")
    def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        with make(tmp_path_factory.mktemp("server")) as server:
            pids = {process.pid for process in server.processes}
            LASTING.update(pids)
            try:
                yield server
            finally:
                LASTING.difference_update(pids)

    return started
