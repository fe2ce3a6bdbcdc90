"""The examples run as their first lines say, and say what they found (issue 5, item 9)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TRAINING = Path(__file__).parents[2] / "examples" / "training"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("train", ["killed in the middle of an epoch", "goes on at step 45", "both ways end with the same model"]),
        ("mixture", ["1200 samples, 900 and 300"]),
        ("lightning", ["the power went out after 416 samples", "went on with 1680 samples, to the end of epoch 1"]),
    ],
)
def test_example_runs_and_tells_the_end(name: str, told: list[str], tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FOREBAY_")}
    output = tmp_path / "output"
    with output.open("w") as file:  # not a pipe: what a killed process leaves behind would keep it open
        done = subprocess.run(
            [sys.executable, str(TRAINING / f"{name}.py")],
            cwd=tmp_path,
            env=environment | {"NO_PROXY": "*", "TMPDIR": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=170,
            check=False,
        )
    text = output.read_text()
    assert done.returncode == 0, text
    for words in told:
        assert words in text
    assert "Traceback" not in text
