"""``forebay demo`` keeps its word, and says so when something else does not."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.cache_actor import until

from forebay.cli._demo.data import Checker, make_items
from forebay.cli._demo.stage import Stage, stage
from forebay.cli._demo.watch import watched
from forebay.exceptions import ForebayError


def demo(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    keep = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    return subprocess.run(
        [sys.executable, "-m", "forebay", "demo", "--size", "32MiB", *arguments],
        env=keep | {"TMPDIR": str(tmp_path), "NO_PROXY": "*"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_demo_reads_everything_within_the_budget(tmp_path: Path) -> None:
    """Risk D7: and leaves nothing behind."""
    done = demo(tmp_path, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    told = json.loads(done.stdout)
    assert told["version"] == 1
    assert told["ok"] is True
    assert told["items"] == 2 * 1024
    assert (told["bad_items"], told["missing_items"], told["leases"]) == (0, 0, 0)
    assert 0 < told["peak_cache_bytes"] <= told["max_cache_bytes"] < told["dataset_bytes"]
    assert told["bytes_fetched"] >= told["item_bytes"] // 2
    assert 0 < told["first_item_seconds"] < told["seconds"]
    assert not list(tmp_path.iterdir())


def test_demo_prints_a_short_table(tmp_path: Path) -> None:
    done = demo(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.partition("  ")[0] for line in done.stdout.splitlines()]
    assert rows == [
        "dataset",
        "items checked",
        "items/s",
        "MiB/s",
        "time to first item",
        "bytes fetched",
        "cache hits",
        "peak cache bytes",
        "leases left",
    ]


def test_bar_is_for_terminals(tmp_path: Path) -> None:
    """On a terminal it moves on stderr; the table on stdout stays clean."""
    terminal, other_end = pty.openpty()
    with open(terminal, "rb", buffering=0) as screen:
        process = subprocess.Popen(
            [sys.executable, "-m", "forebay", "demo", "--size", "8MiB", "--json"],
            env=os.environ | {"TMPDIR": str(tmp_path), "NO_PROXY": "*", "TERM": "xterm"},
            stdout=subprocess.PIPE,
            stderr=other_end,
            text=True,
        )
        os.close(other_end)
        shown = b""
        with contextlib.suppress(OSError):  # how Linux says that the last one has closed the other end
            while piece := screen.read(4096):
                shown += piece
        told, _ = process.communicate(timeout=60)
    assert process.returncode == 0, told + shown.decode()
    assert json.loads(told)["ok"] is True
    assert b"making a dataset" in shown
    assert b"streaming" in shown
    assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l"), "the cursor is shown again"


def test_demo_without_the_http_backend_says_what_to_install(tmp_path: Path) -> None:
    """S4: before anything is made."""
    code = (
        "import sys\n"
        "from forebay import _registry\n"
        "from forebay.exceptions import UnknownSchemeError\n"
        "def resolve(url, options=None):\n"
        "    raise UnknownSchemeError('no backend')\n"
        "_registry.resolve = resolve\n"
        "from forebay.cli import main\n"
        "sys.exit(main(['demo']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert 'pip install "forebay[http]"' in done.stderr


def test_demo_refuses_a_disk_that_is_too_small(tmp_path: Path) -> None:
    """D6: before it is full."""
    with pytest.raises(ForebayError, match="TMPDIR"), stage(needed_bytes=1 << 60, latency=0):
        pytest.fail("unreachable")


def test_checker_finds_each_kind_of_wrong_item() -> None:
    items = list(make_items(4))
    payload = items[2]["payload"]
    assert isinstance(payload, bytes)
    checker = Checker(4)
    checker.check(items[0])
    checker.check(items[0])  # again
    checker.check({**items[1], "number": 7})  # of another dataset
    checker.check({**items[2], "payload": payload[:-1] + bytes([payload[-1] ^ 1])})  # a bit flipped
    checker.check({**items[3], "payload": payload})  # another item's bytes
    assert (checker.good, checker.bad, checker.missing) == (1, 4, 3)


def test_items_are_the_same_in_every_run() -> None:
    assert list(make_items(3)) == list(make_items(3))


def test_watcher_sees_the_peak_and_not_only_the_end(tmp_path: Path) -> None:
    with watched(tmp_path) as peak:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "b").write_bytes(b"x" * 1000)
        (tmp_path / "c").write_bytes(b"x" * 10)
        seen = peak.samples
        until(lambda: peak.samples >= seen + 2, "two more looks")
        (tmp_path / "a" / "b").unlink()
    assert peak.bytes == 1010


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Stage]:
    with stage(needed_bytes=0, latency=0) as made:
        (made.data / "ten").write_bytes(b"0123456789")
        (made.data / "none").touch()
        yield made
    assert not made.data.parent.exists()


@pytest.mark.parametrize(
    ("key", "headers", "status", "body"),
    [
        ("ten", {}, 200, b"0123456789"),
        ("ten", {"Range": "bytes=2-4"}, 206, b"234"),
        ("ten", {"Range": "bytes=8-99"}, 206, b"89"),
        ("ten", {"Range": "bytes=7-"}, 206, b"789"),
        ("ten", {"Range": "bytes=-3"}, 206, b"789"),
        ("ten", {"Range": "bytes=10-"}, 416, b""),
        ("ten", {"If-Match": '"other"'}, 412, b""),
        ("none", {}, 200, b""),
        ("none", {"Range": "bytes=0-9"}, 416, b""),
        ("missing", {}, 404, b""),
        ("../server.py", {}, 404, b""),
        ("%2e%2e/%2e%2e/etc/passwd", {}, 404, b""),
    ],
)
def test_demo_server(places: Stage, key: str, headers: dict[str, str], status: int, body: bytes) -> None:
    told, received, etag = ask(places, key, headers)
    assert (told, received) == (status, body)
    if status == 200:
        assert etag
        assert ask(places, key, {"If-None-Match": etag}) == (304, b"", etag)
        assert ask(places, key, {"If-Match": etag}) == (200, body, etag)


def ask(places: Stage, key: str, headers: dict[str, str]) -> tuple[int, bytes, str | None]:
    connection = http.client.HTTPConnection(places.url.removeprefix("http://"), timeout=60)
    try:
        connection.request("GET", f"/{key}", headers=headers)
        response = connection.getresponse()
        return response.status, response.read(), response.headers["ETag"]
    finally:
        connection.close()
