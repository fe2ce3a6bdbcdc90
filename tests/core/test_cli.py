"""The command line: what it prints, where, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.testing import Fault, FaultServer

COMMANDS = (
    ("demo",),
    ("fetch",),
    ("ls",),
    ("plugins",),
    ("doctor",),
    ("cache",),
    ("cache", "info"),
    ("cache", "verify"),
    ("cache", "gc"),
    ("cache", "clear"),
)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Run ``forebay`` as a person does, away from their settings."""
    keep = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "forebay", *arguments],
            cwd=tmp_path,
            env=keep | {"FOREBAY_CACHE_DIR": str(tmp_path / "cache"), "NO_PROXY": "*"} | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    forebay.pack(
        ({"number": number, "text": "x" * 100} for number in range(100)), tmp_path / "data", chunk_bytes="4KiB"
    )
    return tmp_path / "data"


def the_error(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one line that a failure prints."""
    assert done.returncode == code, done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("forebay: ")
    return lines[0]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_shows_an_example(run: Any, command: tuple[str, ...]) -> None:
    done = run(*command, "--help")
    assert done.returncode == 0
    assert not done.stderr
    assert (
        f"  Example:\n    forebay {command[0]} " in done.stdout
        or "  Example:\n    forebay plugins\n" in done.stdout
        or (command == ("demo",) and "  Example:\n    forebay demo\n" in done.stdout)
    )
    if command != ("cache",):
        assert "--json" in done.stdout


def test_help_starts_light() -> None:
    code = (
        "import sys\n"
        "from forebay.cli import main\n"
        "assert main(['fetch', '--help']) == 0\n"
        "heavy = {'torch', 'numpy', 'obstore', 'fsspec', 'aiohttp', 'rich', 'sqlite3', 'asyncio', 'pluggy'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("fetch",),
        ("fetch", "a", "b"),
        ("fetch", "a", "-O", "novalue"),
        ("fetch", "a", "--max-cache-bytes", "many"),
        ("fetch", "a", "--timeout", "0"),
        ("fetch", "a", "-o", "missing/folder/file"),
        ("fetch", "a", "-o", "."),
        ("fetch", "a", "-o", "-", "--json"),
        ("demo", "--size", "3"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(run: Any, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert not done.stdout
    assert "Traceback" not in done.stderr


def test_option_without_a_name_is_not_printed(run: Any) -> None:
    """U1: what was typed may be a secret."""
    assert "hunter2" not in run("fetch", "a", "-O", "hunter2").stderr


def test_version(run: Any) -> None:
    assert run("--version").stdout.startswith("forebay 0.")


def test_fetch_prints_the_path_in_the_cache(run: Any, server: FaultServer, tmp_path: Path) -> None:
    server.put("a/b.bin", b"body" * 1000)
    done = run("fetch", server.url("a/b.bin"))
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    path = Path(done.stdout.strip())
    assert path.is_relative_to(tmp_path / "cache")
    assert path.suffix == ".bin"
    assert path.read_bytes() == b"body" * 1000


def test_fetch_copies_to_a_file_that_appears_whole(run: Any, server: FaultServer, tmp_path: Path) -> None:
    server.put("x", b"new" * 1000)
    (tmp_path / "out").write_bytes(b"old")
    done = run("fetch", server.url("x"), "-o", "out", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told == {"version": 1, "command": "fetch", "url": server.url("x"), "path": "out", "bytes": 3000}
    assert (tmp_path / "out").read_bytes() == b"new" * 1000
    assert {path.name for path in tmp_path.iterdir()} == {"out", "cache"}


def test_fetch_writes_through_a_link_and_into_a_device(run: Any, server: FaultServer, tmp_path: Path) -> None:
    """A file put in the place of /dev/null would take it away from everybody."""
    server.put("x", b"body")
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("target")
    os.mkfifo(tmp_path / "pipe")
    assert run("fetch", server.url("x"), "-o", "link").returncode == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"body"
    reader = subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE)
    assert run("fetch", server.url("x"), "-o", "pipe").returncode == 0
    assert reader.communicate(timeout=90)[0] == b"body"
    assert (tmp_path / "pipe").is_fifo()


def test_fetch_to_stdout_is_the_bytes_and_nothing_else(server: FaultServer, tmp_path: Path) -> None:
    body = bytes(range(256)) * 100
    server.put("x", body)
    done = subprocess.run(
        [sys.executable, "-m", "forebay", "fetch", server.url("x"), "-o", "-", "--cache-dir", str(tmp_path / "cache")],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, body, b"")


def test_fetch_of_a_missing_object_fails_in_one_line(run: Any, server: FaultServer, tmp_path: Path) -> None:
    """B17: a failure is an exit code, and leaves no file."""
    done = run("fetch", server.url("nowhere.bin"), "-o", "out")
    assert "nowhere.bin" in the_error(done)
    assert "''" not in the_error(done), "a URL has no empty key"
    assert not (tmp_path / "out").exists()
    done = run("fetch", server.url("nowhere.bin"), "--json")
    assert "nowhere.bin" in the_error(done)
    told = json.loads(done.stdout)
    assert (told["version"], told["command"]) == (1, "fetch")
    assert told["error"]["type"] == "ObjectNotFoundError"


def test_unknown_option_is_said_to_come_from_where_it_was_typed(run: Any, server: FaultServer) -> None:
    line = the_error(run("fetch", "-O", "tiemout=3", server.url("x.bin")), 2)
    assert "'tiemout'" in line
    assert "(from -O)" in line
    assert "did you mean 'timeout'" in line
    assert server.requests == []


def test_secrets_stay_out_of_the_output(run: Any, server: FaultServer) -> None:
    """U1: neither the query string nor the password, not in the traceback either."""
    url = server.url("nowhere.bin").replace("http://", "http://user:hunter2@") + "?X-Amz-Signature=hunter3"
    for arguments in (("fetch", url), ("fetch", url, "--json"), ("--debug", "fetch", url), ("ls", url)):
        done = run(*arguments)
        assert done.returncode == 1
        assert "hunter" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("max_atempts=2", "did you mean 'max_attempts'"),
        ("max_attempts=soon", "max_attempts"),
        ("max_attempts=0", "max_attempts"),
        ("timeout=-1", "timeout"),
        ("driver=none", "driver"),
    ],
)
def test_an_option_that_the_backend_refuses_is_wrong_usage(
    run: Any, server: FaultServer, option: str, said: str
) -> None:
    """M12: it is never ignored; before any request, and a script can tell it from a store that fails."""
    assert said in the_error(run("fetch", "-O", option, server.url("any.bin")), 2)
    assert not server.requests


@pytest.mark.parametrize("how", ["option", "group option", "environment"])
def test_debug_adds_the_traceback(run: Any, server: FaultServer, how: str) -> None:
    url = server.url("nowhere.bin")
    if how == "option":
        done = run("fetch", "--debug", url)
    elif how == "group option":
        done = run("--debug", "fetch", url)
    else:
        done = run("fetch", url, FOREBAY_DEBUG="1")
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("forebay: ")


def test_unknown_scheme_says_what_there_is(run: Any) -> None:
    """S6: a near miss is no hit."""
    assert "'httpx'" in the_error(run("fetch", "httpx://host/x"))


def test_options_reach_the_backend_with_their_types(run: Any, server: FaultServer) -> None:
    server.put("x", b"body")
    server.script("x", Fault(status=503), times=None)
    done = run("fetch", server.url("x"), "-O", "max_attempts=2", "-O", 'headers={"X-Team": "vision"}')
    the_error(done)
    asked = server.requests_for("x")
    assert {request.headers.get("x-team") for request in asked} == {"vision"}
    assert len(asked) == 2


def test_ls_lists_what_can_be_listed(run: Any, dataset: Path) -> None:
    done = run("ls", str(dataset))
    assert done.returncode == 0, done.stderr
    listed = {line.split()[1]: int(line.split()[0]) for line in done.stdout.splitlines()}
    assert listed == {file.name: file.stat().st_size for file in dataset.iterdir()}
    told = json.loads(run("ls", "--json", str(dataset)).stdout)
    assert told["source"] == "listing"
    assert {entry["key"]: entry["size"] for entry in told["objects"]} == listed


def test_ls_shows_the_index_of_a_root_that_cannot_list(run: Any, dataset: Path, server: FaultServer) -> None:
    for file in dataset.iterdir():
        server.put(f"data/{file.name}", file.read_bytes())
    done = run("ls", "--json", server.url("data"))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["source"] == "index"
    assert {entry["key"] for entry in told["objects"]} == {file.name for file in dataset.glob("*.bin")}
    assert sum(entry["items"] for entry in told["objects"]) == 100
    assert run("ls", server.url("data")).stdout.splitlines()[0].split()[2] == "items"


def test_ls_says_when_there_is_neither_listing_nor_index(run: Any, server: FaultServer) -> None:
    text = the_error(run("ls", server.url("empty")))
    assert server.url("empty") in text
    assert "list" in text


def test_plugins_shows_who_serves_what(run: Any) -> None:
    done = run("plugins")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()}
    assert rows["file"][2] == "forebay"
    assert rows["http"][2] == rows["https"][2] == "forebay-http"
    assert rows["http"][5] == "yes"
    told = json.loads(run("plugins", "--json").stdout)
    assert {plugin["scheme"] for plugin in told["plugins"]} >= {"file", "memory", "http", "https"}


def test_alias_that_leads_nowhere_is_shown(run: Any, tmp_path: Path) -> None:
    (tmp_path / "forebay.toml").write_text('[scheme.safe]\ntimeout = 9\n[scheme.minio]\nbackend = "s4"\n')
    done = run("plugins")
    assert done.returncode == 0
    errors = [line for line in done.stdout.splitlines() if line.startswith("error: ")]
    assert [line.split(": ")[1] for line in errors] == ["minio", "safe"]
    assert all(str(tmp_path / "forebay.toml") in line for line in errors)


def test_broken_plugin_is_shown_and_harms_nobody(run: Any, tmp_path: Path) -> None:
    """S2: the others work, and its error is told."""
    meta = tmp_path / "site" / "broken-1.0.dist-info"
    meta.mkdir(parents=True)
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text("[forebay]\nbroken = broken_plugin\n")
    (tmp_path / "site" / "broken_plugin.py").write_text("raise RuntimeError('cannot start')\n")
    done = run("plugins", PYTHONPATH=str(tmp_path / "site"))
    assert done.returncode == 0, done.stderr
    assert any(line.startswith("file ") for line in done.stdout.splitlines())
    assert any("broken" in line and "cannot start" in line for line in done.stdout.splitlines())


@pytest.mark.parametrize("command", ["info", "verify", "gc", "clear"])
def test_failed_cache_command_has_the_name_that_success_has(run: Any, command: str) -> None:
    told = json.loads(run("cache", command, "--cache-dir", "nowhere", "--json").stdout)
    assert told["command"] == f"cache {command}"
    assert told["error"]["type"] == "CacheError"


def test_cache_commands(run: Any, server: FaultServer, tmp_path: Path) -> None:
    server.put("x.bin", b"body" * 1000)
    path = Path(run("fetch", server.url("x.bin")).stdout.strip())
    told = json.loads(run("cache", "info", "--json").stdout)
    assert (told["bytes"], told["chunks"], told["leases"]) == (4000, 1, 0)
    assert told["directory"] == str(tmp_path / "cache")
    assert "of" in run("cache", "info", "--cache-dir", str(tmp_path / "cache")).stdout
    done = run("cache", "verify")
    assert (done.returncode, done.stdout) == (0, "1 chunk, 0 problems\n")
    path.chmod(0o600)
    path.write_bytes(b"evil" * 1000)
    done = run("cache", "verify", "--json")
    assert done.returncode == 1
    assert len(json.loads(done.stdout)["problems"]) == 1
    assert run("cache", "gc").returncode == 0
    done = run("cache", "clear")
    assert done.returncode == 0, done.stderr
    assert "0 chunks and 0 leases left" in done.stdout
    assert not [file for file in (tmp_path / "cache" / "chunks").rglob("*") if file.is_file()]


@pytest.mark.parametrize("what", ["info", "verify", "gc", "clear"])
def test_mistyped_cache_directory_is_an_error_and_not_a_new_cache(run: Any, tmp_path: Path, what: str) -> None:
    assert "no cache" in the_error(run("cache", what, "--cache-dir", "cahce"))
    assert not (tmp_path / "cahce").exists()


def test_home_is_expanded_in_a_cache_directory(run: Any, server: FaultServer, tmp_path: Path) -> None:
    server.put("a.bin", b"data")
    for place in ({}, {"FOREBAY_CACHE_DIR": "~/other"}):
        arguments = () if place else ("--cache-dir=~/other",)
        assert run("fetch", *arguments, server.url("a.bin"), HOME=str(tmp_path), **place).returncode == 0
    assert (tmp_path / "other" / "FORMAT").is_file()
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize("directory", ["", "~nobody-of-that-name/x"])
def test_cache_directory_that_is_none_is_wrong_usage(run: Any, directory: str) -> None:
    done = run("cache", "info", "--cache-dir", directory)
    assert done.returncode == 2
    assert "--cache-dir" in done.stderr


def test_output_survives_a_poor_encoding(run: Any, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "größe.bin").write_bytes(b"x")
    done = run("ls", "data", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "gr\\xf6" in done.stdout
    assert json.loads(run("ls", "data", "--json", PYTHONIOENCODING="ascii").stdout)["objects"][0]["key"] == "größe.bin"


def test_names_cannot_drive_the_terminal(run: Any, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a\x1b]0;owned\x07\nb").touch()
    done = run("ls", "data")
    assert done.stdout == "             0  a\\x1b]0;owned\\x07\\x0ab\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_a_failure(dataset: Path, unbuffered: str) -> None:
    """B17: a listing cut off by a full disk is no success; Python keeps what it could not write, and tries again."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "forebay", "ls", str(dataset)],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_reader_that_goes_away_is_no_noise(tmp_path: Path) -> None:
    """J12: forebay ls … | head -1."""
    (tmp_path / "many").mkdir()
    for number in range(3000):
        (tmp_path / "many" / f"{number:060d}").touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "forebay", "ls", str(tmp_path / "many")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(90) == 1
    process.stderr.close()
