"""Risk D10, K5, Q2: views outlive reader and file, writing to one does not reach the disk, no descriptor stays."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from formats.chunks import one_chunk
from formats.folder import FIXTURES, open_folder, readers

from forebay._formats._map import map_private

TOKENS = FIXTURES / "litdata65-tokens"


def arrays(folder: Path, count: int = 3) -> Any:
    raw = np.arange(4000.0)
    return one_chunk(folder, ["no_header_numpy:10", "no_header_tensor:3"], [(raw.tobytes(), raw.tobytes())] * count)


def test_views_stay_valid_after_close_and_after_the_file_is_gone(tmp_path: Path) -> None:
    reader = arrays(tmp_path)
    items = reader.read_many(range(3))
    (tmp_path / "c.bin").unlink()
    reader.close()
    reader.close()
    del reader
    gc.collect()
    for array, tensor in items:
        np.testing.assert_array_equal(array, np.arange(4000.0))
        assert torch.equal(tensor, torch.arange(4000, dtype=torch.float64))


def test_writing_to_a_view_changes_neither_file_nor_other_readers(tmp_path: Path) -> None:
    reader, other = arrays(tmp_path), arrays(tmp_path)
    before = (tmp_path / "c.bin").read_bytes()
    array, tensor = reader.read(0)
    array[:] = -1
    tensor[:] = -1
    assert (tmp_path / "c.bin").read_bytes() == before
    np.testing.assert_array_equal(other.read(0)[0], np.arange(4000.0))
    np.testing.assert_array_equal(reader.read(1)[0], np.arange(4000.0))


def test_blocks_of_tokens_are_views_that_can_be_written_to(tmp_path: Path) -> None:
    layout = open_folder(TOKENS, {"block_size": 11})
    reader = next(readers(layout, TOKENS, tmp_path))
    block = reader.read(3)
    wanted = block.tolist()
    assert block.untyped_storage().nbytes() == 11 * 8  # not the whole chunk: pickling one block copies one block
    block += 1
    assert reader.read(3).tolist() == [number + 1 for number in wanted]  # the same memory, so nothing was copied
    reader.close()
    assert block.tolist() == [number + 1 for number in wanted]
    with pytest.raises(IndexError):
        reader.read(3)


def test_a_closed_reader_says_so(tmp_path: Path) -> None:
    reader = arrays(tmp_path)
    reader.close()
    for read in (partial(reader.read, 0), partial(reader.read_many, range(20))):
        with pytest.raises(ValueError, match="closed"):
            read()


def test_maps_of_more_chunks_than_descriptors_D10(tmp_path: Path) -> None:
    """A user who keeps one tensor of each of many chunks must not run out of descriptors."""
    arrays(tmp_path)
    before = psutil.Process().num_fds()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 20, hard))
    try:
        maps = [map_private(tmp_path / "c.bin") for _ in range(300)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert psutil.Process().num_fds() == before
    assert len({int(each[-8:].view("<f8")[0]) for each in maps}) == 1


def test_address_space_is_given_back_when_the_last_view_goes(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"\x01" * (8 << 20))
    before = psutil.Process().memory_info().vms
    for _ in range(200):
        view = map_private(tmp_path / "large")[100:200]
        assert int(view.sum()) == 100
        del view
    gc.collect()
    assert psutil.Process().memory_info().vms - before < 100 << 20  # 200 maps are 1,600 MiB


def test_an_empty_file_maps_to_nothing_Q2(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert map_private(tmp_path / "empty").shape == (0,)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        map_private(tmp_path / "absent")


AT_EXIT = """
import atexit, sys
from functools import partial
from pathlib import Path
from forebay._formats._map import map_private
view = map_private(Path(sys.argv[1]))
kept = view[4:8]
atexit.register(lambda: print(bytes(kept)))
del view
"""


def test_views_are_valid_in_exit_handlers(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT, str(tmp_path / "file")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "b'4567'")
