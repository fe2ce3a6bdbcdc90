"""The checks of tests/conftest.py catch what they are for."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from servers.require import require, unavailable

CONFTEST = Path(__file__).parents[2] / "conftest.py"


@pytest.fixture
def run_test(tmp_path: Path) -> Callable[[str], tuple[int, str]]:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text().replace("GRACE = 5.0", "GRACE = 0.2"))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    base = tmp_path / "base"

    def run(body: str) -> tuple[int, str]:
        (tmp_path / "test_it.py").write_text(textwrap.dedent(body))
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:xdist",
                f"--basetemp={base}",
                "test_it.py",
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(CONFTEST.parent)},  # the conftest there is a copy
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout

    return run


def test_leaks_of_every_kind_fail_the_test(run_test: Callable[[str], tuple[int, str]]) -> None:
    code, output = run_test(
        """
        import subprocess, sys, tempfile, threading

        stop = threading.Event()
        procs = []

        def test_thread():
            threading.Thread(target=stop.wait, name="mine", daemon=True).start()

        def test_process():
            procs.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))

        def test_file():
            tempfile.mkstemp()

        def test_clean():
            thread = threading.Thread(target=stop.wait, args=(0.01,))
            thread.start()
            with tempfile.NamedTemporaryFile():
                subprocess.run([sys.executable, "-c", ""])

        def test_end():
            stop.set()
            procs[0].communicate(timeout=60)
        """
    )
    assert code == 1
    assert "5 passed, 3 errors" in output
    for leak in ("left behind: thread mine", "left behind: process ", "left behind: temporary tmp"):
        assert leak in output


def test_environment_is_isolated(isolated_environment: Path) -> None:
    assert Path.home() == isolated_environment
    assert {name for name in os.environ if name.startswith("FOREBAY_")} <= {"FOREBAY_REQUIRE"}
    assert os.environ["XDG_CACHE_HOME"].startswith(str(isolated_environment))
    assert Path(tempfile.gettempdir()).name.startswith("fbt-")


def test_missing_server_skips_unless_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_REQUIRE", "other")
    with pytest.raises(pytest.skip.Exception, match="no-such-server is missing"):
        require("no-such-server")
    monkeypatch.setenv("FOREBAY_REQUIRE", "other, no-such-server")
    with pytest.raises(pytest.fail.Exception, match="no-such-server is required"):
        require("no-such-server")
    with pytest.raises(pytest.fail.Exception, match="it broke"):
        unavailable("other", "it broke")
    assert require("a shell", "sh")
