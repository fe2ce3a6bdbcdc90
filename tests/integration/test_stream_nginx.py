"""Datasets that other writers wrote, from a real web server: right bytes, and each chunk fetched once."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.nginx import Nginx
from servers.readers import read_digests, send_digests

FIXTURES = Path(__file__).parent.parent / "fixtures"
NAMES = sorted(path.name for path in FIXTURES.glob("litdata*"))


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with Nginx(tmp_path_factory.mktemp("nginx")) as server:
        for file in FIXTURES.rglob("*"):
            if file.is_file():
                server.put(file.relative_to(FIXTURES).as_posix(), file.read_bytes())
        yield server


def format_options(name: str) -> dict[str, object] | None:
    return {"block_size": 11} if "tokens" in name else None


def expected(name: str) -> list[str]:
    digests: list[str] = json.loads((FIXTURES / name / "expected.json").read_text())["sha256"]
    return digests


def fetched(nginx: Nginx, at_least: int) -> Counter[str]:
    return Counter(request.target for request in nginx.requests(at_least) if "chunk-" in request.target)


def chunk_targets(name: str) -> dict[str, int]:
    return {f"/{name}/{file.name}": 1 for file in (FIXTURES / name).glob("chunk-*")}


def test_all_fixtures_are_there() -> None:
    assert len(NAMES) == 6


@pytest.mark.parametrize("name", NAMES)
def test_one_process_gets_every_item_and_fetches_each_chunk_once(nginx: Nginx, tmp_path: Path, name: str) -> None:
    nginx.forget()
    assert read_digests(nginx.url(name), str(tmp_path), format_options(name)) == expected(name)
    assert fetched(nginx, 1 + len(chunk_targets(name))) == chunk_targets(name)


def test_four_processes_share_one_cache_and_fetch_each_chunk_once(nginx: Nginx, tmp_path: Path) -> None:
    """Risk B1, B4, B18: single flight over processes, and nobody sees a part of a file."""
    nginx.forget()
    context = multiprocessing.get_context("forkserver")
    barrier = context.Barrier(4)
    work = [(name, nginx.url(name), format_options(name)) for name in NAMES]
    pipes, children = [], []
    for _ in range(4):
        here, there = context.Pipe()
        child = context.Process(target=send_digests, args=(there, barrier, str(tmp_path), work))
        child.start()
        pipes.append(here)
        children.append(child)
    for here in pipes:
        assert here.poll(90), "a child hangs or died"
        assert here.recv() == {name: expected(name) for name in NAMES}
    for child in children:
        child.join(90)
        assert child.exitcode == 0
    everything = {target: count for name in NAMES for target, count in chunk_targets(name).items()}
    assert fetched(nginx, 4 * len(NAMES) + len(everything)) == everything
