"""The smallest plugin there is, made outside of the repository: one method, an entry point, known to the CLI (S5)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from servers.datasets import CHUNKS, ITEMS, put_dataset

pytest.importorskip("hatchling")  # installed here, so that pip fetches no build backend
pytestmark = [pytest.mark.xdist_group("third_party"), pytest.mark.timeout(300), pytest.mark.slow]

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "their-pond"
version = "3.1"
dependencies = ["forebay"]

[project.entry-points.forebay]
pond = "their_pond"

[tool.hatch.build.targets.wheel]
packages = ["their_pond"]
"""
MODULE = """
from forebay import BackendSpec, Downloader, hookimpl


class PondDownloader(Downloader):
    def download_fileobj(self, key, fileobj):
        if "secret" in key:
            raise PermissionError("the pond's keeper says no")
        with open(f"/{self.root.removeprefix('pond://')}/{key}", "rb") as file:
            fileobj.write(file.read())


@hookimpl
def forebay_register_backends():
    return [BackendSpec(name="pond", schemes=("pond",), load=lambda: PondDownloader, distribution="their-pond")]
"""


class Folder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, key: str, data: bytes) -> None:
        (self._folder / key).write_bytes(data)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the installed plugin and nothing else."""
    folder = tmp_path_factory.mktemp("pond")
    (folder / "source" / "their_pond").mkdir(parents=True)
    (folder / "source" / "pyproject.toml").write_text(PROJECT)
    (folder / "source" / "their_pond" / "__init__.py").write_text(MODULE)
    where = ["--target", str(folder / "packages"), str(folder / "source")]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", *where]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "packages"


@pytest.fixture
def water(tmp_path: Path) -> Path:
    folder = tmp_path / "water"
    folder.mkdir()
    put_dataset(Folder(folder), tmp_path / "made", compression="zstd")
    (folder / "fish.bin").write_bytes(b"trout")
    return folder


def run(packages: Path, place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(packages), "FOREBAY_CACHE_DIR": str(place / "cache")}
    command = [sys.executable, "-m", "forebay", *arguments]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_it_is_shown(packages: Path, tmp_path: Path) -> None:
    done = run(packages, tmp_path, "plugins", "--json")
    (line,) = [one for one in json.loads(done.stdout)["plugins"] if one["scheme"] == "pond"]
    assert (line["distribution"], line["version"], line["error"]) == ("their-pond", "3.1", None), line
    assert "pond" in run(packages, tmp_path, "plugins").stdout


def test_objects_and_datasets_are_read_by_its_scheme(packages: Path, tmp_path: Path, water: Path) -> None:
    """A root that cannot list shows its index's chunks; what is compressed comes decoded."""
    url = f"pond:/{water}"
    done = run(packages, tmp_path, "fetch", f"{url}/fish.bin", "-o", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_bytes() == b"trout"
    listed = run(packages, tmp_path, "ls", url)
    assert listed.returncode == 0, listed.stderr
    names = [line.split()[-1] for line in listed.stdout.splitlines()]
    assert [name for name in names if name.startswith("chunk-")] == sorted(
        one.name for one in water.iterdir() if one.name.startswith("chunk-")
    )
    script = f"import forebay\nwith forebay.open_dataset({url!r}) as ds: print(len(ds), ds[{ITEMS - 1}]['index'])"
    environment = {**os.environ, "PYTHONPATH": str(packages), "FOREBAY_CACHE_DIR": str(tmp_path / "cache")}
    read = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert read.stdout.split() == [str(ITEMS), str(ITEMS - 1)], read.stderr
    assert len([name for name in names if name.startswith("chunk-")]) == CHUNKS


def test_its_own_errors_reach_the_user(packages: Path, tmp_path: Path, water: Path) -> None:
    """A stranger's exception keeps its words; a missing file is a missing object; no traceback is shown."""
    for key, words in (("secret.bin", "keeper says no"), ("absent.bin", "absent.bin")):
        done = run(packages, tmp_path, "fetch", f"pond:/{water}/{key}")
        assert done.returncode == 1
        assert words in done.stderr
        assert "pond" in done.stderr
        assert "Traceback" not in done.stderr
