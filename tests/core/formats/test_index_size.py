"""Risk K7, Q7: an index of a million chunks is read in bounded time and memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, resource, sys, time
from pathlib import Path
from forebay._formats.litdata import LitdataFormat
data = Path(sys.argv[1]).read_bytes()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
layout = LitdataFormat(data, url="s3://bucket/data", options={}, allow_pickle=False)
seconds = time.process_time() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
index = layout.index
start = time.process_time()
places = [index.locate(item) for item in range(0, index.items, max(index.items // 10_000, 1))]
lookup = (time.process_time() - start) / len(places)
print(json.dumps({"seconds": seconds, "peak_mb": peak / 1024, "lookup": lookup, "last": index.chunk(999_999).name,
                  "items": index.items, "place": index.locate(index.items - 1)}))
"""


def test_a_million_chunks_K7(tmp_path: Path) -> None:
    leaf: dict[str, object] = {"type": None, "context": None, "children_spec": []}
    rows = ", ".join(
        f'{{"chunk_bytes": 67108864, "chunk_size": {1 + number % 3}, "dim": null, "filename": "chunk-0-{number}.bin"}}'
        for number in range(1_000_000)
    )
    config = json.dumps({"data_format": ["int"], "data_spec": json.dumps([1, leaf]), "compression": None})
    (tmp_path / "index.json").write_text(f'{{"chunks": [{rows}], "config": {config}}}')
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "index.json")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["items"] == sum(1 + number % 3 for number in range(1_000_000))
    assert (seen["last"], seen["place"]) == ("chunk-0-999999.bin", [999_999, 0])
    assert seen["seconds"] < 15, seen  # 2 s here; a build machine may be slower, not ten times
    assert seen["peak_mb"] < 450, seen  # the text itself is 90 MB; as dicts it would be 600 MB more
    assert seen["lookup"] < 50e-6, seen
