"""README and docs say what is true: each snippet runs, each list is the code's list."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import exceptions, hookspecs
from forebay._config import load_settings
from forebay._options import ENGINE_OPTIONS
from forebay._transfer import TransferPolicy
from forebay.downloader import Downloader, SupportsRangeRead
from forebay.testing import DownloaderConformance, FaultServer
from forebay.types import Stats

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md")),
    *sorted(path for folder in ("core", "backends", "plugins") for path in ROOT.glob(f"{folder}/**/README.md")),
]
STAND_IN = "https://data.example.org"

#: Shell lines that are not run here, and where they are.
RUN_ELSEWHERE = {
    "python3 -m venv .venv && . .venv/bin/activate && pip install . && forebay demo": ".ci/run",
    "python -m pip install -U pip && python -m pip install --group dev -r workspace.txt && python -m pytest": ".ci/run",
    'pip install "forebay[http]"': "nowhere before it is published, and marked so",
    "ruff format": ".ci/run, with --check",
    "ruff check": ".ci/run",
    "mypy": ".ci/run",
}


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of one language, each with the number of its first line."""
    text = page.read_text()
    found = re.finditer(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)) + 1, match.group(1)) for match in found]


def pages_with(language: str) -> list[Any]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES if blocks(page, language)]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[FaultServer]:
    """A server with the dataset that the pages call digits."""
    forebay.pack(
        ({"label": number % 10, "pixels": bytes([number % 256]) * 784} for number in range(400)),
        tmp_path / "made",
        chunk_bytes="64KiB",
    )
    with FaultServer(writable=True) as server:
        for file in (tmp_path / "made").iterdir():
            server.put(f"digits/{file.name}", file.read_bytes())
        yield server


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def run(arguments: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    keep = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    environment = keep | {"FOREBAY_CACHE_DIR": str(place / "default-cache"), "NO_PROXY": "*"}
    return subprocess.run(
        arguments, cwd=place, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def script_of(page: Path, server: FaultServer) -> str:
    """The page's Python blocks as one script whose line numbers are the page's."""
    lines = [""] * (page.read_text().count("\n") + 1)
    for first, block in blocks(page, "python"):
        for offset, line in enumerate(block.splitlines()):
            lines[first - 1 + offset] = line.replace(STAND_IN, server.url())
    assert not lines[0], "line 1 of a page is its heading"
    lines[0] = f'GATEWAY_HOST, GATEWAY_PORT = "127.0.0.1", {server.port}'
    return "\n".join(lines)


@pytest.mark.parametrize("page", pages_with("python"))
def test_python_snippets_run(page: Path, served: FaultServer, place: Path) -> None:
    script = place / f"test_{page.stem.lower().replace('-', '_')}.py"
    script.write_text(script_of(page, served))
    done = run([sys.executable, script.name], place)
    assert done.returncode == 0, f"line numbers are those of {page.name}\n{done.stderr}"
    assert not done.stderr


def test_conformance_snippet_is_a_passing_test(served: FaultServer, place: Path) -> None:
    page = ROOT / "docs" / "backend-authors.md"
    (place / "test_lake.py").write_text(script_of(page, served))
    done = run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp=basetemp", "test_lake.py"], place
    )
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed.group(1)) > 20


@pytest.mark.parametrize("page", pages_with("bash"))
def test_shell_snippets_run(page: Path, served: FaultServer, place: Path) -> None:
    warm = "import sys, forebay; forebay.open_dataset(sys.argv[1], cache_dir='cache')[0]"
    assert run([sys.executable, "-c", warm, served.url("digits")], place).returncode == 0  # pages look at a used cache
    for _, block in blocks(page, "bash"):
        for line in block.splitlines():
            command = line.partition("  #")[0].strip().replace(STAND_IN, served.url())
            if not command or command in RUN_ELSEWHERE:
                continue
            assert command.startswith("forebay "), f"{page.name}: who runs {command!r}?"
            done = run([sys.executable, "-m", *shlex.split(command)], place)
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            assert done.stdout
            assert not done.stderr


@pytest.mark.parametrize("page", pages_with("toml"))
def test_toml_snippets_mean_something(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (_, block) in enumerate(blocks(page, "toml")):
        parsed = tomllib.loads(block)
        if "project" in parsed:
            assert "forebay" in parsed["project"]["entry-points"]
            continue
        file = tmp_path / f"{number}.toml"
        file.write_text(block)
        monkeypatch.setenv("FOREBAY_CONFIG", str(file))
        assert load_settings().source == file


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_has_a_language_that_is_checked(page: Path) -> None:
    opened = re.findall(r"^```(\S*)\n.*?^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert set(opened) <= {"python", "bash", "toml", "text"}, "a block that no test looks at"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_whole_and_have_each_row_once(page: Path) -> None:
    """An empty line ends a table: what follows is shown as text."""
    for table in re.findall(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE):
        rows = table.splitlines()
        assert re.fullmatch(r"(\|[-: ]+)+\|", "".join(rows[1:2])), f"{page.name}: {table[:80]} has no heading"
        firsts = [row.split("|")[1].strip() for row in rows[2:] if row.startswith("| `")]
        assert len(set(firsts)) == len(firsts), f"{page.name}: {table[:80]} tells something twice"


def test_hooks_page_has_every_hook_with_its_signature() -> None:
    told = re.findall(r"^## `(\w+)(\(.*)`$", (ROOT / "docs" / "hooks.md").read_text(), re.MULTILINE)
    hooks = {
        name: str(inspect.signature(value)).replace("'", "")
        for name, value in vars(hookspecs).items()
        if name.startswith("forebay_")
    }
    assert dict(told) == hooks
    assert len(told) == len(hooks)


def test_risks_page_has_every_risk_that_a_test_cites_and_each_once() -> None:
    listed = re.findall(r"^\* \*\*([A-Z]\d+)\*\* ", (ROOT / "docs" / "risks.md").read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    cited = {
        risk
        for text in texts
        for cite in re.findall(r'(?:\bRisk |""")((?:[A-Z]\d+(?:, | and |-)?)+)', text)
        for risk in re.findall(r"[A-Z]\d+", cite)
    }
    assert len(cited) > 40
    named = {
        risk.upper()
        for text in texts
        for name in re.findall(r"def (test_\w+)", text)
        for risk in re.findall(r"(?<=_)[a-u]\d{1,2}(?=_|$)", name)
    }
    assert cited | named <= set(listed)


def test_backend_page_has_every_method_with_its_signature() -> None:
    (_, told), *_others = blocks(ROOT / "docs" / "backend-authors.md", "text")
    real = [line for cls in (Downloader, SupportsRangeRead) for line in signatures(cls)]
    assert sorted(told.splitlines()) == sorted(real)


def signatures(cls: type) -> Iterator[str]:
    for name, value in vars(cls).items():
        function = getattr(value, "__func__", value)
        if inspect.isfunction(function) and not name.startswith("_"):
            kind = "classmethod " if isinstance(value, classmethod) else ""
            kind = "async " if inspect.iscoroutinefunction(function) else kind
            plain = re.sub(r"(: |-> )'([^']+)'", r"\1\2", str(inspect.signature(function)))
            yield f"{kind}{name}{plain}"


def test_backend_page_tells_how_many_tests_there_are() -> None:
    assert "more than fifty tests" in (ROOT / "docs" / "backend-authors.md").read_text()
    assert 50 < len([name for name in dir(DownloaderConformance) if name.startswith("test_")]) < 100


def first_cells(page: Path, heading: str) -> list[str]:
    """What stands in backquotes in the first column of the first table after a heading."""
    _, _, rest = page.read_text().partition(f"\n{heading}\n")
    table = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    assert table is not None, heading
    rows = table.group(0).splitlines()[2:]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]


def test_guide_lists_are_complete() -> None:
    guide = ROOT / "docs" / "guide.md"
    assert sorted(first_cells(guide, "### What it did")) == sorted(field.name for field in dataclasses.fields(Stats))
    arguments = list(inspect.signature(forebay.open_dataset).parameters)
    assert sorted(first_cells(guide, "### Arguments of `open_dataset`")) == sorted(arguments[1:])
    arguments = list(inspect.signature(forebay.pack).parameters)
    assert sorted(first_cells(guide, "## Write a dataset")) == sorted(arguments[2:])
    assert set(first_cells(guide, "## Options")) >= set(ENGINE_OPTIONS)


def test_pytorch_page_has_every_argument() -> None:
    torch_parts = pytest.importorskip("forebay.torch")
    page, shared = ROOT / "docs" / "pytorch.md", set(inspect.signature(forebay.open_dataset).parameters)
    own = [name for name in inspect.signature(torch_parts.StreamingDataset).parameters if name not in shared]
    assert sorted(first_cells(page, "## Arguments")) == sorted(own)
    others = set(inspect.signature(torch_parts.StreamingDataLoader).parameters) - {"dataset", "others"}
    heading = "A `StreamingDataLoader` takes the dataset, and:"
    assert sorted(first_cells(page, heading)) == sorted(others)


def test_guide_tells_the_defaults_of_the_engine() -> None:
    guide, policy = (ROOT / "docs" / "guide.md").read_text(), TransferPolicy()
    for option, default in (
        ("timeout", f"{policy.timeout:g} unless set"),
        ("max_attempts", f"{policy.max_attempts} unless set"),
        ("max_concurrency", f"{policy.parallel_parts} unless set"),
        ("part_size", f'"{policy.part_size >> 20}MiB"` unless set'),
    ):
        (row,) = re.findall(rf"^\| `{option}` \|.*", guide, re.MULTILINE)
        assert default in row


def test_errors_page_has_every_class_with_its_bases() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \|$", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE
    )
    told = {name: re.findall(r"`(\w+)`", bases) for name, bases, _cause, _remedy in rows}
    real = {name: [base.__name__ for base in getattr(exceptions, name).__bases__] for name in exceptions.__all__}
    assert told == real
    assert len(rows) == len(told)
    assert set(exceptions.__all__) == {
        name
        for name, value in vars(exceptions).items()
        if isinstance(value, type) and value.__module__ == exceptions.__name__
    }
