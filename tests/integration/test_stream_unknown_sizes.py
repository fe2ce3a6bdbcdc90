"""A layout whose index does not tell how large its chunks are: windows are claimed as that becomes known."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from servers.datasets import put_dataset

from forebay.testing import FaultServer

PLUGIN = '''
import numpy as np
import forebay
from forebay._formats.litdata import LitdataFormat
from forebay.formats import DatasetIndex
from forebay.types import FormatSpec

class Sizeless(LitdataFormat):
    """As litdata, but for what an index tells of sizes: of the first chunk alone, or of none."""
    name = "sizeless"

    def __init__(self, data, *, url, options, allow_pickle):
        known = options.get("known", 0)
        super().__init__(data, url=url, options={}, allow_pickle=allow_pickle)
        old = self.index
        sizes = np.where(np.arange(len(old)) < known, old.decoded_bytes, -1)
        self.index = DatasetIndex(names=old.names, items=old.item_counts, decoded_bytes=sizes, stored_bytes=sizes)

@forebay.hookimpl
def forebay_register_formats():
    return [FormatSpec(name="sizeless", index_names=("index.json",), load=lambda: Sizeless)]
'''

HEAD = """
import sys
import forebay
from forebay.exceptions import BudgetTooSmallError

url, cache, size = sys.argv[1], sys.argv[2], int(sys.argv[3])

def opened(chunks, window=3, known=0, prefetch=0):
    return forebay.open_dataset(
        url, cache_dir=cache, max_cache_bytes=int(chunks * size), shuffle=True, shuffle_window=window,
        prefetch=prefetch, format="sizeless", format_options={"known": known})

def refused(read, *words):
    try:
        read()
    except BudgetTooSmallError as exc:
        assert all(word in str(exc) for word in words), exc
    else:
        raise SystemExit("it was not refused")
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the layout as a distribution of a third party's."""
    info = tmp_path / "site" / "sizeless-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sizeless\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[forebay]\nsizeless = sizeless_plugin\n")
    (tmp_path / "site" / "sizeless_plugin.py").write_text(PLUGIN)
    return tmp_path / "site"


def run(server: FaultServer, site: Path, tmp_path: Path, code: str) -> None:
    """Run ``code`` behind `HEAD` in a process that has the layout installed, and does not wait for long."""
    put_dataset(server, tmp_path)
    size = max(file.stat().st_size for file in (tmp_path / "dataset").glob("chunk-*"))
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", HEAD + code, server.url(), str(tmp_path / "cache"), str(size)],
        env={**os.environ, "PYTHONPATH": path, "FOREBAY_WAIT_TIMEOUT": "20", "FOREBAY_PREFETCH_MIN": "0"},
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begin < 20


def test_a_window_too_large_for_the_budget_is_refused_once_a_chunk_is_there(
    server: FaultServer, site: Path, tmp_path: Path
) -> None:
    """Risk D2: the arithmetic comes with the first chunk, and from then on before anything is read."""
    run(
        server,
        site,
        tmp_path,
        """
with opened(2.5) as ds:
    refused(lambda: list(ds), "shuffle_window=3", "largest window that fits is 2")
    refused(lambda: next(iter(ds)), "shuffle_window=3", "largest window that fits is 2")
refused(lambda: opened(2.5, known=1), "largest window that fits is 2")
""",
    )


def test_windows_of_two_readers_have_to_fit_together(server: FaultServer, site: Path, tmp_path: Path) -> None:
    """Risk C2: the reader that learns that they do not is refused; the other goes on, and so does the next."""
    run(
        server,
        site,
        tmp_path,
        """
with opened(4) as one, opened(4) as two:
    first, second = iter(one), iter(two)
    got = [next(first)]
    refused(lambda: next(second), "other readers keep")
    got += list(first)
    assert sorted(item["index"] for item in got) == list(range(40))
    assert sorted(item["index"] for item in two) == list(range(40))
""",
    )


def test_a_window_that_fits_is_read(server: FaultServer, site: Path, tmp_path: Path) -> None:
    run(
        server,
        site,
        tmp_path,
        """
for known in (0, 1):
    with opened(3, known=known, prefetch=2) as ds:
        for _ in range(2):
            assert sorted(item["index"] for item in ds) == list(range(40))
""",
    )
