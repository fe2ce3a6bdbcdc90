"""pandas, pyarrow and dask read the clouds through ``forebay://URL`` and ``forebay::URL``, each object once."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import pytest
from servers.azurite import Azurite
from servers.fakegcs import FakeGcs
from servers.proxy import Proxy
from servers.weed import Weed

from forebay_fsspec import ForebayFileSystem

pd = pytest.importorskip("pandas")
pytestmark = pytest.mark.usefixtures("cache")
ROWS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """Tables in one cloud, and what its readers say: Forebay's options, or those of fsspec's own file system."""

    url: str
    protocol: str
    proxy: Proxy = field(repr=False)
    options: Mapping[str, object] = field(repr=False)
    inner: Mapping[str, object] = field(repr=False)

    def storage(self, chained: bool) -> dict[str, Any]:
        return {self.protocol: dict(self.inner)} if chained else {"options": dict(self.options)}

    def name(self, key: str, chained: bool) -> str:
        return f"forebay{'::' if chained else '://'}{self.url}/{key}"

    def gets(self, key: str) -> int:
        return sum(one.method == "GET" and one.target.partition("?")[0].endswith(key) for one in self.proxy.seen)


def frame(number: int) -> Any:
    return pd.DataFrame({"n": range(number * ROWS, (number + 1) * ROWS), "text": ["pond"] * ROWS})
