"""The real litdata reads what `forebay.pack` wrote. Skipped where there is none: it is no dependency of ours.

Point ``FOREBAY_TEST_LITDATA`` at a Python that has it (``python -m venv v && v/bin/pip install litdata==0.2.65 zstd``),
or install it beside forebay. Run with 0.2.65 and 0.2.76 when the layout changes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from formats.canon import canon
from PIL import Image

import forebay

READ = """
import json, shutil, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import litdata
from formats.canon import canon
source, copy, block = Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
shutil.copytree(source, copy)  # its reader decompresses in place
loader = {"item_loader": litdata.TokensLoader(block_size=block)} if block else {}
dataset = litdata.StreamingDataset(str(copy), **loader)
items = list(dataset) if block else [dataset[i] for i in range(len(dataset))]
print(json.dumps([litdata.__version__, [canon(item) for item in items]]))
"""


#: Read here: the fixtures of the suite hide variables of ours from the tests themselves.
CHOSEN = os.environ.get("FOREBAY_TEST_LITDATA")


def python_with_litdata() -> str:
    if CHOSEN:
        return CHOSEN
    if importlib.util.find_spec("litdata") is None:
        pytest.skip("litdata is not installed, and FOREBAY_TEST_LITDATA names no Python that has it")
    return sys.executable


def read(python: str, folder: Path, copy: Path, block_size: int = 0) -> list[str]:
    tests = str(Path(__file__).resolve().parents[1])
    done = subprocess.run(
        [python, "-W", "ignore", "-c", READ, tests, str(folder), str(copy), str(block_size)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    digests: list[str] = json.loads(done.stdout.splitlines()[-1])[1]
    return digests


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_litdata_reads_our_items(tmp_path: Path, compression: str | None) -> None:
    python = python_with_litdata()
    items = [
        {
            "int": i, "float": i / 7, "bool": i % 2 == 0, "str": f"é {i}", "bytes": bytes(range(i)),
            "flat": np.arange(i % 5 + 1, dtype=np.int16), "array": np.full((2, 3), i, np.float32),
            "t1": torch.arange(i % 4 + 1), "t2": torch.full((2, 2), i, dtype=torch.float16), "t0": torch.tensor(i),
            "image": Image.new("RGB", (4, 3), (i, 0, i)), "nested": [i, (f"x{i}", {"k": i})],
        }
        for i in range(30)
    ]  # fmt: skip
    forebay.pack(items, tmp_path / "d", chunk_bytes=3000, compression=compression)
    assert read(python, tmp_path / "d", tmp_path / "copy") == [canon(item) for item in items]


def test_litdata_reads_a_dataset_that_was_overwritten(tmp_path: Path) -> None:
    python = python_with_litdata()
    forebay.pack(range(5), tmp_path / "d")
    forebay.pack(range(9), tmp_path / "d", overwrite=True)
    assert read(python, tmp_path / "d", tmp_path / "copy") == [canon(number) for number in range(9)]


def test_litdata_cuts_our_tokens_into_the_same_blocks(tmp_path: Path) -> None:
    python = python_with_litdata()
    texts = [torch.arange(i * 10, i * 10 + i % 9 + 1) for i in range(50)]
    forebay.pack(texts, tmp_path / "d", chunk_bytes=500, tokens=True)
    with forebay.open_dataset(str(tmp_path / "d"), format_options={"block_size": 7}) as dataset:
        ours = [canon(block) for block in dataset]
    assert read(python, tmp_path / "d", tmp_path / "copy", 7) == ours
