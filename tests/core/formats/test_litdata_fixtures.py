"""What litdata 0.2.65 and 0.2.76 wrote comes back item for item, however it is asked for."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formats.canon import canon
from formats.folder import FIXTURES, open_folder, read_folder, readers

FOLDERS = sorted(path.name for path in FIXTURES.glob("litdata*"))


def options(folder: str) -> dict[str, object]:
    return {"block_size": 11} if "tokens" in folder else {}


def expected(folder: str) -> list[str]:
    digests: list[str] = json.loads((FIXTURES / folder / "expected.json").read_text())["sha256"]
    return digests


def test_all_six_fixtures_are_here() -> None:
    assert len(FOLDERS) == 6


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_item_has_the_digest_that_its_writer_gave(folder: str, tmp_path: Path) -> None:
    items = read_folder(FIXTURES / folder, tmp_path, options(folder))
    assert [canon(item) for item in items] == expected(folder)


@pytest.mark.parametrize("folder", FOLDERS)
def test_one_by_one_batches_and_shuffled_batches_give_the_same_items(folder: str, tmp_path: Path) -> None:
    layout, digests = open_folder(FIXTURES / folder, options(folder)), expected(folder)
    first = 0
    for reader in readers(layout, FIXTURES / folder, tmp_path):
        here = digests[first : first + len(reader)]
        assert [canon(reader.read(item)) for item in range(len(reader))] == here
        order = random.Random(0).choices(range(len(reader)), k=50)  # repeats too; past the bound of the slow way
        for asked in (order, np.array(order), np.array(order, dtype=np.int32), order[:3]):
            assert [canon(item) for item in reader.read_many(asked)] == [here[item] for item in asked]
        back = range(len(reader) - 1, -1, -1)
        assert [canon(item) for item in reader.read_many(back)] == here[::-1]
        first += len(reader)
    assert first == layout.index.items == len(digests)


def test_items_that_do_not_exist_are_index_errors(tmp_path: Path) -> None:
    layout = open_folder(FIXTURES / "litdata65-plain")
    reader = next(readers(layout, FIXTURES / "litdata65-plain", tmp_path))
    for item in (-1, len(reader)):
        with pytest.raises(IndexError, match="14"):
            reader.read(item)
        with pytest.raises(IndexError, match="14"):
            reader.read_many([0] * 20 + [item])


def test_the_index_says_which_chunk_holds_an_item() -> None:
    index = open_folder(FIXTURES / "litdata65-plain").index
    assert [index.locate(item) for item in (0, 13, 14, 24)] == [(0, 0), (0, 13), (1, 0), (1, 10)]
    chunks, places = index.locate_many(np.array([24, 0, 14]))
    assert (chunks.tolist(), places.tolist()) == ([1, 0, 1], [10, 0, 0])
    for item in (-1, 25):
        with pytest.raises(IndexError):
            index.locate(item)
        with pytest.raises(IndexError):
            index.locate_many(np.array([item]))


WITHOUT_TORCH = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
class Block:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" or name.startswith("torch."):
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Block())
import numpy as np
from formats.canon import canon
from formats.folder import FIXTURES, read_folder
emb, rest, tokens = [], [], []
for item in read_folder(FIXTURES / "litdata65-plain", Path(sys.argv[2])):
    emb.append(item.pop("emb"))
    rest.append(canon(item))
for block in read_folder(FIXTURES / "litdata65-tokens", Path(sys.argv[2]), {"block_size": 11}):
    tokens.append(block)
assert "torch" not in sys.modules
assert all(type(array) is np.ndarray for array in emb + tokens)
emb[0][:] = 0  # a view of a read-only map would end the process here
print(json.dumps({"emb": [array.tolist() for array in emb[1:]], "rest": rest,
                  "tokens": [[str(array.dtype), array.tolist()] for array in tokens]}))
"""


def test_without_torch_tensor_leaves_are_arrays_of_the_same_numbers(tmp_path: Path) -> None:
    tests = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, tests, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    items: list[dict[str, Any]] = read_folder(FIXTURES / "litdata65-plain", tmp_path)
    assert seen["emb"] == [item.pop("emb").tolist() for item in items][1:]
    assert seen["rest"] == [canon(item) for item in items]
    blocks = read_folder(FIXTURES / "litdata65-tokens", tmp_path, {"block_size": 11})
    assert seen["tokens"] == [["int64", block.tolist()] for block in blocks]


IMPORTS = """
import sys
from pathlib import Path
from forebay._formats.litdata import LitdataFormat
folder = Path(sys.argv[1])
layout = LitdataFormat((folder / "index.json").read_bytes(), url="x", options={}, allow_pickle=False)
reader = layout.open_chunk(folder / layout.index.chunk(0).name, 0)
assert "torch" not in sys.modules and "PIL" not in sys.modules, "loaded before the first item"
reader.read(0)
assert "torch" in sys.modules and "PIL" in sys.modules
"""


def test_torch_and_pillow_are_imported_at_the_first_item_not_with_the_index() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, str(FIXTURES / "litdata65-plain")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
