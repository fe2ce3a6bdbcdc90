"""Each way to start workers, whatever the parent did before: every item, or an error that says what to do."""

from __future__ import annotations

import asyncio
import functools
import json
import multiprocessing
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from servers.datasets import put_dataset
from servers.loaders import FolderDownloader, as_pairs, indices, threads
from servers.moto import Moto

import forebay
from forebay import exceptions
from forebay.testing import FaultServer
from forebay.torch import StreamingDataLoader, StreamingDataset

pytestmark = pytest.mark.slow

#: A forked child has two seconds for its first request to fail; some more for the machine that the tests share.
LIMIT = 4.0


@pytest.fixture(params=["http", "s3"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """A dataset's URL and the options that reach it."""
    if request.param == "http":
        with FaultServer() as running:
            put_dataset(running, tmp_path)
            yield running.url(), {}
        return
    moto: Moto = request.getfixturevalue("moto")
    put_dataset(moto, tmp_path, prefix="start/")
    yield f"{moto.url}/start", dict(moto.options)


def run(code: str, folder: Path, *arguments: object, how: str = "file") -> subprocess.CompletedProcess[str]:
    """Run a program from a file, from ``-c`` or from standard input."""
    code = textwrap.dedent(code)
    script = folder / "program.py"
    script.write_text(code)
    command = {"file": [str(script)], "-c": ["-c", code], "stdin": ["-"]}[how]
    return subprocess.run(
        [sys.executable, *command, *map(str, arguments)],
        input=code if how == "stdin" else "",
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )


@pytest.mark.parametrize("method", [None, "spawn"])
def test_two_workers_after_the_parent_read(
    remote: tuple[str, dict[str, object]], tmp_path: Path, method: str | None
) -> None:
    """A3, A4, A5, J1, J2, J3, J5: also a second loader after one without workers."""
    url, options = remote
    with StreamingDataset(url, cache_dir=tmp_path / "cache", options=options) as dataset:
        if method is None:
            loader = StreamingDataLoader(dataset, batch_size=4, num_workers=2, collate_fn=indices)
            assert sorted(index for batch in loader for index in batch) == list(range(40))
            assert dataset[3]["index"] == 3
            alone = StreamingDataLoader(dataset, batch_size=4, collate_fn=indices)
            assert sorted(index for batch in alone for index in batch) == list(range(40))
            for chunk in (tmp_path / "cache" / "chunks").rglob("*.bin"):
                chunk.unlink()
        else:
            assert dataset[3]["index"] == 3
        loader = StreamingDataLoader(
            dataset, batch_size=4, num_workers=2, collate_fn=indices, multiprocessing_context=method
        )
        assert sorted(index for batch in loader for index in batch) == list(range(40))
        assert dataset[4]["index"] == 4


FORK = """
    import json, sys, time
    from servers.loaders import indices
    from forebay.torch import StreamingDataLoader, StreamingDataset

    url, options, cache = json.loads(sys.argv[1])
    for used in (False, True):
        dataset = StreamingDataset(url, cache_dir=f"{cache}-{used}", options=options)
        if used:
            assert dataset[3]["index"] == 3
        loader = StreamingDataLoader(
            dataset, batch_size=4, num_workers=2, collate_fn=indices, multiprocessing_context="fork"
        )
        start = time.monotonic()
        try:
            said = sorted(index for batch in loader for index in batch)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        print(json.dumps([said, time.monotonic() - start]))
"""


@pytest.mark.parametrize("driver", [None, "obstore"])
def test_two_forked_workers(remote: tuple[str, dict[str, object]], tmp_path: Path, driver: str | None) -> None:
    """A3, A4, J1, J2, J3, J4: another driver takes over; where one was asked for, an error at once."""
    url, options = remote
    given = {**options, **({"driver": driver} if driver else {})}
    done = run(FORK, tmp_path, json.dumps([url, given, str(tmp_path / "cache")]))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 2
    for said, seconds in answers:
        if said != list(range(40)):
            assert driver == "obstore", said
            assert said.startswith("ForkedRuntimeError"), said
            assert 'multiprocessing_context="forkserver"' in said
            assert seconds < LIMIT
    if driver == "obstore" and url.startswith("s3:"):  # http has two drivers in one, and goes on with the other
        assert answers[1][0] != list(range(40)), "the test reached no fork after a use"


def test_forked_workers_of_a_parent_that_only_opened_keep_the_fast_driver(server: FaultServer, tmp_path: Path) -> None:
    """J1, J2: our errors advise `fork` before anything was read: nobody warns of another driver then."""
    put_dataset(server, tmp_path)
    code = FORK.replace("(False, True)", "(False, False)")  # the second one asks only whether the index is the same
    done = run(code, tmp_path, json.dumps([server.url(), {}, str(tmp_path / "cache")]))
    assert [json.loads(line)[0] for line in done.stdout.splitlines()] == [list(range(40))] * 2
    assert done.stderr == ""


def test_default_is_safe_and_what_the_program_chose_is_kept(server: FaultServer, tmp_path: Path) -> None:
    """J5: fork is what Python 3.13 and older take where nobody chose, so it has to be asked for by name."""
    put_dataset(server, tmp_path)
    before = multiprocessing.get_start_method(allow_none=True)
    preload = forkserver._forkserver._preload_modules  # type: ignore[attr-defined]

    def method(dataset: StreamingDataset, asked: Any = None) -> str:
        loader = StreamingDataLoader(dataset, num_workers=2, multiprocessing_context=asked)
        context: Any = loader.multiprocessing_context
        return str(context.get_start_method())

    try:
        multiprocessing.set_forkserver_preload(["__main__", "json.tool"])
        with StreamingDataset(server.url(), cache_dir=tmp_path / "cache") as dataset:
            for chosen, expected in ((None, "forkserver"), ("fork", "forkserver"), ("spawn", "spawn")):
                multiprocessing.set_start_method(chosen, force=True)
                assert method(dataset) == expected
                assert method(dataset, "fork") == "fork"
                assert method(dataset, multiprocessing.get_context("forkserver")) == "forkserver"
            with pytest.raises(exceptions.ConfigError, match=r"'thread' is none of fork, spawn, forkserver"):
                method(dataset, "thread")
        loads = forkserver._forkserver._preload_modules  # type: ignore[attr-defined]
        assert loads[0] == "json.tool"
        assert "forebay.torch" in loads
        assert len(loads) == len(set(loads))
    finally:
        multiprocessing.set_start_method(before, force=True)
        forkserver._forkserver._preload_modules = preload  # type: ignore[attr-defined]


REGISTERED = """
    import os, sys
    from pathlib import Path
    import forebay
    from forebay.torch import StreamingDataLoader, StreamingDataset

    class Lake(forebay.Downloader):
        def download_fileobj(self, key, fileobj):
            fileobj.write(Path(sys.argv[1], key).read_bytes())

    def collate(items):
        maps = Path(f"/proc/{os.getppid()}/maps").read_text()
        return [item["index"] for item in items], "libtorch" in maps

    if __name__ == "__main__":
        import multiprocessing
        forebay.register_downloader("lake", Lake)
        dataset = StreamingDataset("lake://data", cache_dir=sys.argv[2])
        for method in sys.argv[3:]:
            if method != "forkserver":
                multiprocessing.set_start_method(method, force=True)
            loader = StreamingDataLoader(dataset, batch_size=4, num_workers=2, collate_fn=collate)
            batches = list(loader)
            print(sorted(index for batch, _ in batches for index in batch) == list(range(40)))
            print(loader.multiprocessing_context.get_start_method(), all(preloaded for _, preloaded in batches))
"""


def test_scheme_registered_in_a_script_reaches_its_workers(server: FaultServer, tmp_path: Path) -> None:
    """J5; and the server of workers has torch loaded, so that the next ones start in a moment."""
    put_dataset(server, tmp_path)
    done = run(REGISTERED, tmp_path, tmp_path / "dataset", tmp_path / "cache", "forkserver", "spawn")
    assert done.stderr == ""
    assert done.stdout.split() == ["True", "forkserver", "True", "True", "spawn", "True"]


PROMPT = """
    import sys
    from pathlib import Path
    import forebay
    from forebay.exceptions import ConfigError
    from forebay.torch import StreamingDataLoader, StreamingDataset

    class Lake(forebay.Downloader):
        def download_fileobj(self, key, fileobj):
            fileobj.write(Path(sys.argv[1], key).read_bytes())

    def collate(items):
        return [item["index"] for item in items]

    dataset = StreamingDataset(sys.argv[1], cache_dir=sys.argv[2])
    for options in ({}, {"collate_fn": collate}, {"worker_init_fn": collate}):
        try:
            print(len(list(StreamingDataLoader(dataset, num_workers=1, **options))))
        except ConfigError as error:
            print(f"{type(error).__name__}: {error}")
    forebay.register_downloader("lake", Lake)
    dataset = StreamingDataset("lake://data", cache_dir=sys.argv[2])
    try:
        StreamingDataLoader(dataset, num_workers=1)
    except ConfigError as error:
        print(f"{type(error).__name__}: {error}")
    loader = StreamingDataLoader(dataset, num_workers=2, multiprocessing_context="fork", collate_fn=collate)
    print(len(list(loader)))
"""


def test_what_is_typed_at_a_prompt_cannot_be_sent(server: FaultServer, tmp_path: Path) -> None:
    """Said at once, with the name; what does not need the prompt works, and so does fork."""
    put_dataset(server, tmp_path)
    done = run(PROMPT, tmp_path, tmp_path / "dataset", tmp_path / "cache", how="-c")
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "40"
    assert lines[1].startswith("ConfigError: workers cannot import collate (collate_fn): it is defined in a notebook")
    assert lines[2].startswith("ConfigError: workers cannot import collate (worker_init_fn)")
    assert lines[3].startswith("ConfigError: workers cannot import Lake (lake://)")
    assert all('multiprocessing_context="fork"' in line for line in lines[1:4])
    assert lines[4] == "40"


def test_program_from_standard_input_is_told_so(server: FaultServer, tmp_path: Path) -> None:
    """Workers would look for a file named <stdin>."""
    put_dataset(server, tmp_path)
    done = run(PROMPT, tmp_path, tmp_path / "dataset", tmp_path / "cache", how="stdin")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ConfigError: workers cannot import the program, which was read from <stdin>")
    assert lines[4] == "40"


UNGUARDED = """
    import sys
    from forebay.torch import StreamingDataLoader, StreamingDataset

    with open(sys.argv[3], "a") as log:
        log.write("x")
    dataset = StreamingDataset(sys.argv[1], cache_dir=sys.argv[2])
    for batch in StreamingDataLoader(dataset, num_workers=2):
        pass
"""


def test_script_without_a_main_guard(server: FaultServer, tmp_path: Path) -> None:
    """One error that names the remedy, soon, and no more processes than workers."""
    put_dataset(server, tmp_path)
    begin = time.monotonic()
    done = run(UNGUARDED, tmp_path, tmp_path / "dataset", tmp_path / "cache", tmp_path / "log")
    assert time.monotonic() - begin < 90
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("forebay.exceptions.WorkerCrashedError: worker ")
    assert "exited with code 1; it ended before its first batch, and its own output above says why" in last
    assert 'needs `if __name__ == "__main__":`' in last
    assert "bootstrapping phase" not in done.stderr
    assert len((tmp_path / "log").read_text()) <= 3


def test_what_cannot_be_pickled_is_named(server: FaultServer, tmp_path: Path) -> None:
    put_dataset(server, tmp_path)

    class Local(FolderDownloader):
        pass

    with StreamingDataset(server.url(), cache_dir=tmp_path / "cache") as dataset:
        for name in ("collate_fn", "worker_init_fn"):
            with pytest.raises(exceptions.ConfigError, match=f"^{name} cannot be sent to a worker") as caught:
                StreamingDataLoader(dataset, num_workers=2, **{name: lambda items: items})  # type: ignore[arg-type]
            assert caught.value.option == name
            partial = functools.partial(lambda number, items: items, 1)
            with pytest.raises(exceptions.ConfigError, match=f"^{name} cannot be sent"):
                StreamingDataLoader(dataset, num_workers=2, **{name: partial})  # type: ignore[arg-type]
        StreamingDataLoader(dataset, collate_fn=lambda items: items)  # nothing has to be sent
    forebay.register_downloader("local-lake", Local)
    try:
        with (
            StreamingDataset(f"local-lake:/{tmp_path / 'dataset'}", cache_dir=tmp_path / "cache") as dataset,
            pytest.raises(exceptions.ConfigError, match=r"^local-lake:// cannot be sent to a worker"),
        ):
            StreamingDataLoader(dataset, num_workers=2)
    finally:
        forebay.unregister_downloader("local-lake")


class Holds(StreamingDataset):
    """Somebody's subclass, with something of its own."""

    extra: object = None


def test_dataset_that_holds_what_cannot_be_pickled(server: FaultServer, tmp_path: Path) -> None:
    put_dataset(server, tmp_path)
    with Holds(server.url(), cache_dir=tmp_path / "cache") as dataset:
        dataset.extra = lambda: None
        loader = StreamingDataLoader(dataset, num_workers=2)
        with (
            pytest.warns(UserWarning, match="pickle error"),
            pytest.raises(exceptions.ConfigError, match="the dataset cannot be sent to a worker"),
        ):
            iter(loader)
        dataset.extra = None
        assert len(list(loader)) == 40


def test_inside_of_a_running_loop_with_few_threads_a_worker(server: FaultServer, tmp_path: Path) -> None:
    """J8, J10: a notebook has a loop already; what a worker has of threads is bounded."""
    put_dataset(server, tmp_path)

    async def main() -> list[tuple[int, int]]:
        with StreamingDataset(server.url(), cache_dir=tmp_path / "cache") as dataset:
            return list(StreamingDataLoader(dataset, batch_size=4, num_workers=2, collate_fn=threads))

    found = asyncio.run(main())
    assert sum(count for count, _ in found) == 40
    assert max(number for _, number in found) <= 16 + 2 * (os.cpu_count() or 1)


def test_workers_have_the_surroundings_of_their_trainer(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork server keeps the environment and the directory of its start: another cache, other keys, another folder."""
    put_dataset(server, tmp_path)
    with StreamingDataset(server.url(), cache_dir=tmp_path / "other") as dataset:
        assert len(list(StreamingDataLoader(dataset, num_workers=1))) == 40  # the fork server runs
    monkeypatch.setenv("FOREBAY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for url in (server.url(), "dataset"):
        with StreamingDataset(url) as dataset:
            loader = StreamingDataLoader(dataset, batch_size=4, num_workers=2, collate_fn=as_pairs)
            pairs = [pair for batch in loader for pair in batch]
            assert sorted(index for index, _ in pairs) == list(range(40))
            assert os.getpid() not in {pid for _, pid in pairs}
    assert len(list((tmp_path / "cache" / "chunks").rglob("*.bin"))) == 8
