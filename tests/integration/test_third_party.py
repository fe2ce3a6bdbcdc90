"""A third party's plugin project, installed with pip as anybody would, works and passes our suite (S5)."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.xdist_group("third_party"), pytest.mark.timeout(300), pytest.mark.slow]

EXAMPLE = Path(__file__).parents[2] / "examples" / "third_party_backend"


def _run(*command: str, cwd: Path, packages: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"PYTHONPATH": str(packages)} if packages else {})
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that holds the installed example and nothing else."""
    folder = tmp_path_factory.mktemp("third_party")
    source = shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    # A developer's environment may have the build backend already; then nothing is fetched.
    offline = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    target = folder / "packages"
    done = _run("pip", "install", "--quiet", "--no-deps", *offline, "--target", str(target), str(source), cwd=folder)
    assert done.returncode == 0, done.stderr
    return target


def test_installed_plugin_passes_its_own_tests(packages: Path, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    options = ["-q", "-rs", "-p", "no:xdist", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'base'}"]
    done = _run("pytest", *options, "tests", cwd=tmp_path, packages=packages)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert "passed" in done.stdout


def test_installed_plugin_is_shown(packages: Path, tmp_path: Path) -> None:
    done = _run("forebay", "plugins", "--json", cwd=tmp_path, packages=packages)
    assert done.returncode == 0, done.stderr
    lines = [one for one in json.loads(done.stdout)["plugins"] if one["scheme"] == "lake"]
    assert len(lines) == 1
    assert (lines[0]["distribution"], lines[0]["version"], lines[0]["native_async"]) == ("forebay-lake", "0.1.0", False)
    assert not lines[0]["error"]


def test_without_the_plugin_its_scheme_is_unknown(tmp_path: Path) -> None:
    done = _run("forebay", "ls", "lake://127.0.0.1:1/fish", cwd=tmp_path)
    assert done.returncode != 0
    assert "lake" in done.stderr
    assert "Traceback" not in done.stderr


def test_inprocess_example_runs(tmp_path: Path) -> None:
    example = EXAMPLE.parent / "inprocess_downloader.py"
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1000 items" in done.stdout
    assert list(tmp_path.iterdir()) == [], "the example cleans up after itself"
