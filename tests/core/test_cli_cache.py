"""``forebay cache`` while others use the directory: what it shows of them, the dead, damage, and what is in use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from servers.cache_actor import Actor, put

from forebay._cache import open_cache


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def run(directory: Path, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forebay", "cache", command, "--cache-dir", str(directory), *arguments],
        env=os.environ | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def told(directory: Path, command: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run(directory, command, "--json").stdout)
    return answer


def test_info_tells_datasets_and_what_each_living_process_holds(directory: Path) -> None:
    """Risk C11, D8: what a cache does can be seen from outside, as text and as JSON."""
    with Actor(directory, max_bytes=1000) as one, Actor(directory) as two, Actor(directory) as dead:
        one.call("put", chunk=1, size=100)
        one.call("put", chunk=2, size=200, hard=False)
        two.call("put", chunk=3, size=150, lease=False)
        two.call("acquire", chunk=4)
        two.call("reserve", chunk=4, total=50)
        dead.call("acquire", chunk=1)
        dead.call("acquire", chunk=5)
        dead.call("reserve", chunk=5, total=300)
        dead.kill()
        answer = told(directory, "info")
        assert answer["dead_holders"] == 1
        assert told(directory, "info")["dead_holders"] == 0, "they were buried"
        text = run(directory, "info").stdout
    found = {name: answer[name] for name in ("bytes", "max_bytes", "chunks", "leases", "holders", "version")}
    assert found == {"bytes": 500, "max_bytes": 1000, "chunks": 3, "leases": 3, "holders": 2, "version": 1}
    (dataset,) = answer["datasets"]
    assert (dataset["dataset"], dataset["chunks"], dataset["bytes"]) == ("da7a", 3, 450)
    assert dataset["url"].startswith("http://host/da7a/")
    by_pid = {process.pop("pid"): process for process in answer["processes"]}
    assert set(by_pid) == {one.pid, two.pid}
    assert (by_pid[one.pid]["reading"], by_pid[one.pid]["prefetched"], by_pid[one.pid]["fetching"]) == (1, 1, 0)
    assert (by_pid[two.pid]["reading"], by_pid[two.pid]["fetching"], by_pid[two.pid]["reserved_bytes"]) == (0, 1, 50)
    assert by_pid[one.pid]["budget"] == 1000
    assert f"process {one.pid} on " in text
    assert "dataset da7a: 3 chunks, 450 B" in text
    assert "500 B of 1000 B" in text
    assert "dead holders  0" in text


@pytest.mark.parametrize("harm", ["flipped", "cut", "missing", "planted"])
def test_verify_finds_planted_corruption_and_exits_with_1(directory: Path, harm: str) -> None:
    """Risk B9, B19: whatever is not what was published is named, and left as it is."""
    cache = open_cache(directory, max_bytes=1000)
    path, other = put(cache, 1, 200, lease=False).path, put(cache, 2, 200, lease=False).path
    cache.close()
    assert run(directory, "verify").returncode == 0
    if harm == "flipped":
        path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    elif harm == "cut":
        os.truncate(path, 199)
    elif harm == "missing":
        path.unlink()
    else:
        path = other.with_name("planted.bin")
        path.write_bytes(b"p")
    done = run(directory, "verify")
    assert done.returncode == 1
    assert path.name in done.stdout
    assert "2 chunks, 1 problem" in done.stdout
    assert len(told(directory, "verify")["problems"]) == 1
    assert other.exists()


def test_clear_keeps_what_is_in_use_and_says_by_whom(directory: Path) -> None:
    """Risk C6, C9: the chunk under a living reader stays, all else goes; then nothing is left."""
    with Actor(directory, max_bytes=1000) as reader:
        reader.call("put", chunk=1)
        reader.call("put", chunk=2, lease=False)
        done = run(directory, "clear")
        assert done.returncode == 1
        assert f"process {reader.pid}" in done.stderr
        assert told(directory, "info")["chunks"] == 1
        assert reader.call("read", chunk=1)["data"]
    assert run(directory, "clear").returncode == 0
    assert told(directory, "info")["bytes"] == 0


def test_gc_removes_what_a_killed_process_left(directory: Path) -> None:
    """Risk B16, E8: the temporary, the reservation and the lease."""
    with Actor(directory, max_bytes=1000) as victim:
        victim.call("acquire", chunk=1)
        victim.call("reserve", chunk=1, total=400)
        victim.call("write", chunk=1, size=400)
        victim.kill()
    assert list(directory.rglob("*.tmp"))
    answer = told(directory, "gc")
    assert (answer["bytes"], answer["leases"]) == (0, 0)
    assert not list(directory.rglob("*.tmp"))
