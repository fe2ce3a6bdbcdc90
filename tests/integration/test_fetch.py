"""`fetch`: one object as a file, through the cache, validated once a process, held until it is released."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import unicodedata
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import _fetch, exceptions
from forebay._prefetch import IOFuture, IOThread, wait_for
from forebay.testing import Fault, FaultServer, Gate, run_async

NEW_PROCESS = """
import sys
import forebay
path = forebay.fetch(sys.argv[1], cache_dir=sys.argv[2])
print(path.read_bytes().decode())
"""


def leases(cache: Path) -> int:
    observer = forebay.ChunkCache(cache)
    try:
        return observer.info().leases
    finally:
        observer.close()


def in_new_process(url: str, cache: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", NEW_PROCESS, url, str(cache)], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_the_file_has_the_bytes_as_stored_and_keeps_the_suffix(server: FaultServer, tmp_path: Path) -> None:
    data = bytes(range(256)) * 100
    server.put("a/archive.tar.zst", data)
    path = forebay.fetch(server.url("a/archive.tar.zst"), cache_dir=tmp_path)
    assert path.read_bytes() == data
    assert path.suffix == ".zst"
    assert leases(tmp_path) == 1
    forebay.release(path)
    assert leases(tmp_path) == 0
    forebay.release(path)


def test_a_second_fetch_is_local_and_two_fetches_need_two_releases(server: FaultServer, tmp_path: Path) -> None:
    """Risk C13: a whole object read twice is requested once."""
    server.put("x.bin", b"x" * 1000)
    first = forebay.fetch(server.url("x.bin"), cache_dir=tmp_path)
    second = forebay.fetch(server.url("x.bin"), cache_dir=tmp_path)
    assert first == second
    assert len(server.requests) == 1
    forebay.release(first)
    assert leases(tmp_path) == 1
    forebay.release(second)
    assert leases(tmp_path) == 0


def test_another_run_asks_whether_it_changed_and_fetches_only_then(server: FaultServer, tmp_path: Path) -> None:
    """Risk R2, R5: a validator decides, also where the size is the same."""
    server.put("x.txt", b"old!")
    url = server.url("x.txt")
    assert in_new_process(url, tmp_path) == "old!"
    server.forget_requests()
    assert in_new_process(url, tmp_path) == "old!"
    assert [request.method for request in server.requests] == ["HEAD"]
    server.put("x.txt", b"new!")
    assert in_new_process(url, tmp_path) == "new!"


def test_without_revalidation_nothing_is_asked(server: FaultServer, tmp_path: Path) -> None:
    server.put("x.txt", b"old")
    assert in_new_process(server.url("x.txt"), tmp_path) == "old"
    server.forget_requests()
    path = forebay.fetch(server.url("x.txt"), cache_dir=tmp_path, revalidate=False)
    assert path.read_bytes() == b"old"
    assert server.requests == []
    forebay.release(path)


def test_a_new_signature_is_the_same_object(tmp_path: Path) -> None:
    """Risk O9, U1: another presigned URL of one object hits the cache, and no secret lies there."""
    with FaultServer() as server:
        server.put("x.bin", b"signed")
        paths = [
            forebay.fetch(server.url("x.bin") + f"?X-Amz-Date=1&X-Amz-Signature={secret}", cache_dir=tmp_path)
            for secret in ("first-secret", "second-secret")
        ]
        assert paths[0] == paths[1]
        assert len(server.requests) == 1
        assert "X-Amz-Signature=first-secret" in server.requests[0].query
        for path in paths:
            forebay.release(path)
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"first-secret" not in file.read_bytes()


@pytest.mark.parametrize("name", ["a b#1.bin", "50%.bin", "x[1].bin", "ä@+=.bin", "a" * 300 + ".bin"])
def test_odd_names_do_not_collide_and_fit_the_disk(server: FaultServer, tmp_path: Path, name: str) -> None:
    """Risk O1-O8: own bytes for each key, and a name that the disk takes."""
    other = name.replace("1", "2").replace("a", "A")
    server.put(name, b"one")
    server.put(other, b"two" if other != name else b"one")
    for key in (name, other):
        path = forebay.fetch(server.url(key), cache_dir=tmp_path)
        assert path.read_bytes() == server.get(key)
        assert len(path.name) < 120
        forebay.release(path)


@pytest.mark.parametrize(
    "keys",
    [
        ("A.bin", "a.bin"),
        ("d/x.bin", "D/x.bin"),
        ("\u00e9.bin", "e\u0301.bin"),
        ("\u212b.bin", "\u00c5.bin", "A\u030a.bin"),
    ],
    ids=["case", "case of a folder", "NFC and NFD", "three spellings"],
)
def test_names_that_some_disks_take_for_one_do_not_collide(
    server: FaultServer, tmp_path: Path, keys: tuple[str, ...]
) -> None:
    """Risk O7: the file's name tells them apart also where a disk ignores case, or normalises Unicode."""
    for number, key in enumerate(keys):
        server.put(key, b"%d" % number)
    paths = [forebay.fetch(server.url(key), cache_dir=tmp_path) for key in keys]
    assert [path.read_bytes() for path in paths] == [b"%d" % number for number in range(len(keys))]
    folded = {unicodedata.normalize("NFKC", str(path.relative_to(tmp_path))).casefold() for path in paths}
    assert len(folded) == len(keys)
    assert len(server.requests) == len(keys)
    for path in paths:
        forebay.release(path)


def test_an_empty_object_is_an_empty_file(server: FaultServer, tmp_path: Path) -> None:
    """Risk Q1."""
    server.put("empty.bin", b"")
    path = forebay.fetch(server.url("empty.bin"), cache_dir=tmp_path)
    assert path.read_bytes() == b""
    forebay.release(path)


@pytest.mark.parametrize("fault", [Fault(framing="chunked"), Fault(framing="close"), Fault(gzip=True)])
def test_bodies_without_a_length_arrive_whole(server: FaultServer, tmp_path: Path, fault: Fault) -> None:
    """Risk P3, P4: chunked, closed at the end, compressed on the way."""
    data = b"0123456789" * 100_000
    server.put("x.bin", data)
    server.script("x.bin", fault, times=None)
    path = forebay.fetch(server.url("x.bin"), cache_dir=tmp_path)
    assert path.read_bytes() == data
    forebay.release(path)


def test_a_missing_object_is_a_file_not_found_error(server: FaultServer, tmp_path: Path) -> None:
    with pytest.raises(exceptions.ObjectNotFoundError, match=r"nothing\.bin"):
        forebay.fetch(server.url("nothing.bin"), cache_dir=tmp_path)
    assert leases(tmp_path) == 0
    with pytest.raises(FileNotFoundError):
        forebay.fetch(tmp_path / "nothing.bin")


def test_a_local_path_is_returned_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "a b%20.txt"
    file.write_text("here")
    assert forebay.fetch(file) == file
    assert forebay.fetch(file.as_uri()) == file


def test_the_timeout_is_for_the_whole_call_and_the_next_one_works(server: FaultServer, tmp_path: Path) -> None:
    """Risk J14, J15: a stalled download ends with its caller, and poisons nothing."""
    server.put("x.bin", b"x" * 1000)
    gate = Gate()
    server.script("x.bin", Fault(gate=gate, after=10))
    with pytest.raises(exceptions.StorageTimeoutError, match=r"x\.bin.*1\.5"):
        forebay.fetch(server.url("x.bin"), cache_dir=tmp_path, timeout=1.5)
    path = forebay.fetch(server.url("x.bin"), cache_dir=tmp_path, timeout=60)
    assert path.read_bytes() == b"x" * 1000
    forebay.release(path)
    gate.open()
    assert leases(tmp_path) == 0
    assert not list((tmp_path / "chunks").rglob("*.tmp"))


def test_afetch_overlaps_and_a_cancelled_one_leaves_nothing(server: FaultServer, tmp_path: Path) -> None:
    """Risk B8: cancellation removes the temporary file and the lease."""
    gate = Gate()
    for number in range(4):
        server.put(f"{number}.bin", bytes([number]) * 100)
        server.script(f"{number}.bin", Fault(gate=gate))
    server.put("slow.bin", b"s" * 100)
    server.script("slow.bin", Fault(hang=True, after=10))

    async def main() -> list[Path]:
        slow = asyncio.create_task(forebay.afetch(server.url("slow.bin"), cache_dir=tmp_path))
        group = [asyncio.create_task(forebay.afetch(server.url(f"{n}.bin"), cache_dir=tmp_path)) for n in range(4)]
        await asyncio.to_thread(server.wait_for_requests, 5)  # all five are under way at one time
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        gate.open()
        return await asyncio.gather(*group)

    paths = run_async(main())
    assert [path.read_bytes()[0] for path in paths] == [0, 1, 2, 3]
    assert leases(tmp_path) == 4
    for path in paths:
        forebay.release(path)
    assert not list((tmp_path / "chunks").rglob("*.tmp"))


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "beginning"])
def test_afetch_that_is_cancelled_while_it_opens_the_cache_keeps_no_engine(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """Risk C10: a thread cannot be cancelled, and what it opened then was nobody's for the life of the process."""
    server.put("x.bin", b"x")
    start, opening, go_on, opened = _fetch._start, threading.Event(), threading.Event(), threading.Event()

    def held(*arguments: Any) -> Any:
        if not begun:
            opening.set()
            assert go_on.wait(60)
        call = start(*arguments)
        opened.set()
        if begun:
            opening.set()
            assert go_on.wait(60)
        return call

    monkeypatch.setattr(_fetch, "_start", held)

    async def main() -> None:
        task = asyncio.ensure_future(forebay.afetch(server.url("x.bin"), cache_dir=tmp_path))
        assert await asyncio.to_thread(opening.wait, 60)
        task.cancel()
        await asyncio.wait([task])
        go_on.set()
        assert task.cancelled()

    run_async(main())  # its end waits for the thread
    assert opened.is_set()
    for thread in threading.enumerate():
        if thread.name == "forebay-close":
            thread.join(60)
    with forebay.ChunkCache(tmp_path) as observer:
        assert observer.info().holders == 0


def test_an_object_that_comes_as_the_time_is_up_is_a_timeout_of_ours(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Risk C10: it was an error without a word, and none of ours."""
    server.put("x.bin", b"x")

    def late(future: IOFuture[Any], thread: IOThread, _: float | None) -> None:
        wait_for(future, thread)
        raise FutureTimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(_fetch, "wait_for", late)
        with pytest.raises(exceptions.StorageTimeoutError, match="was not there after 9 s"):
            forebay.fetch(server.url("x.bin"), cache_dir=tmp_path, timeout=9)
    assert leases(tmp_path) == 0


_NEVER_MADE = """
import sys, threading
import forebay

begun = threading.Event()

class Slow(forebay.Downloader):
    def __init__(self, root, options=None):
        super().__init__(root, options)
        begun.set()
        threading.Event().wait()

    def download_fileobj(self, key, fileobj):
        fileobj.write(b"x")

forebay.register_downloader("slow", Slow)
threading.Thread(target=forebay.fetch, args=("slow://a/b",), kwargs={"cache_dir": sys.argv[1]}, daemon=True).start()
assert begun.wait(30)
"""


def test_a_downloader_that_is_never_made_keeps_no_interpreter(tmp_path: Path) -> None:
    """Risk A11: the interpreter's end waited for the lock of the daemon thread that made it, for ever."""
    done = subprocess.run(
        [sys.executable, "-c", _NEVER_MADE, str(tmp_path)], timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "still being made" in done.stderr


def test_an_object_larger_than_the_budget_says_so(server: FaultServer, tmp_path: Path) -> None:
    server.put("x.bin", b"x" * 10_000)
    with pytest.raises(exceptions.BudgetTooSmallError):
        forebay.fetch(server.url("x.bin"), cache_dir=tmp_path, max_cache_bytes=9_999)
    assert leases(tmp_path) == 0


def test_a_held_file_is_not_evicted(server: FaultServer, tmp_path: Path) -> None:
    for name in "abc":
        server.put(name, name.encode() * 1000)
    held = forebay.fetch(server.url("a"), cache_dir=tmp_path, max_cache_bytes=2000)
    for name in "bc":
        forebay.release(forebay.fetch(server.url(name), cache_dir=tmp_path, max_cache_bytes=2000))
    assert held.read_bytes() == b"a" * 1000
    assert sum(file.stat().st_size for file in (tmp_path / "chunks").rglob("*") if file.is_file()) <= 2000
    forebay.release(held)


def test_many_threads_fetch_one_object_once(server: FaultServer, tmp_path: Path) -> None:
    """Risk B14, B18: single flight within a process."""
    server.put("x.bin", b"x" * 100_000)
    server.script("x.bin", Fault(delay=0.1))
    found: list[bytes] = []

    def get() -> None:
        path = forebay.fetch(server.url("x.bin"), cache_dir=tmp_path)
        found.append(path.read_bytes())
        forebay.release(path)

    threads = [threading.Thread(target=get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert found == [b"x" * 100_000] * 8
    assert len(server.requests_for("x.bin", "GET")) == 1


def test_an_object_replaced_during_the_read_is_read_again_whole(server: FaultServer, tmp_path: Path) -> None:
    """Risk R4: never a mixture of two versions."""
    old, new = b"o" * 3_000_000, b"n" * 3_000_000
    server.put("x.bin", old)
    server.swap("x.bin", new, after=1)
    path = forebay.fetch(server.url("x.bin"), cache_dir=tmp_path, options={"part_size": "1MiB"})
    assert path.read_bytes() == new
    forebay.release(path)


def test_objects_of_one_bucket_share_a_downloader(tmp_path: Path) -> None:
    """Risk K4: one made for each object brings connections, and a question for credentials, of its own."""
    made: list[str] = []

    class Counted(forebay.Downloader):
        def __init__(self, root: str, options: dict[str, object] | None = None) -> None:
            super().__init__(root, options)
            made.append(root)

        def download_fileobj(self, key: str, fileobj: forebay.downloader.SupportsWrite) -> None:
            fileobj.write(key.encode())

    forebay.register_downloader("counted", Counted)
    try:
        for name in ("a", "b", "folder/c"):
            path = forebay.fetch(f"counted://bucket/{name}", cache_dir=tmp_path)
            assert path.read_bytes() == name.encode()
            forebay.release(path)
    finally:
        forebay.unregister_downloader("counted")
    assert made == ["counted://bucket"]
