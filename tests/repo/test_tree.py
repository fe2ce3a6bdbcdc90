"""The repository as a stranger finds it: what README promises, what each distribution has, what must not be in it."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import forebay

ROOT = Path(__file__).parents[2]
MEMBERS = sorted(
    path.parent for folder in ("core", "backends", "plugins") for path in ROOT.glob(f"{folder}/**/pyproject.toml")
)
README = (ROOT / "README.md").read_text()
CI = (ROOT / ".ci" / "run").read_text()

#: First parts of absolute paths that every machine has, or that stand for "some path" in tests and examples.
EVERYWHERE = {"bin", "data", "dev", "etc", "lib", "nvme", "proc", "sbin", "sys", "tmp", "usr", "var"}
#: Where people and build machines keep their own things; what this machine has besides is added.
SOMEWHERE = {"Users", "home", "media", "mnt", "opt", "root", "scratch", "srv"}
PUBLIC_HOSTS = {
    "127.0.0.1",
    "ACCOUNT.blob.core.windows.net",
    "ACCOUNT.r2.cloudflarestorage.com",
    "data.example.org",
    "github.com",
    "host",
    "pluggy.readthedocs.io",
    "storage.googleapis.com",
    "www.apache.org",
}


def tracked(*patterns: str) -> Iterator[Path]:
    """Files that git knows or would know; without git, all that lie there."""
    listing = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns],
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0:
        paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        paths = [path for pattern in patterns for path in ROOT.rglob(pattern) if ".venv" not in path.parts]
    yield from (path for path in paths if path.is_file())


def test_readme_has_exactly_two_set_up_lines() -> None:
    before_users = README.split("## You train a model")[0]
    shell = re.findall(r"^```bash\n(.*?)^```", before_users, re.MULTILINE | re.DOTALL)
    lines = [line for block in shell for line in block.splitlines() if "published form" not in line]
    assert len(lines) == 2
    assert lines[0].startswith("python3 -m venv .venv && ")
    assert lines[0].endswith(" && pip install . && forebay demo")
    assert lines[1].startswith("python -m pip install ")
    assert lines[1].endswith(" && python -m pytest")


def test_ci_runs_the_very_lines_of_the_readme() -> None:
    patterns = re.findall(r"_line=\$\(readme_line '(.*)'\)", CI)
    assert len(patterns) == 2
    for pattern in patterns:
        assert len(re.findall(pattern, README, re.MULTILINE)) == 1, pattern
    for tool in ("ruff format --check", "ruff check", "mypy"):
        assert f"\n{tool}\n" in CI
    assert 'bash -euo pipefail -c "$test_line"' in CI
    assert 'bash -euo pipefail -c "$demo_line"' in CI


def test_published_form_is_marked_as_such() -> None:
    for path in tracked("*.md"):
        for line in path.read_text().splitlines():
            if re.match(r'pip install "?forebay\b', line):
                assert "published form" in line, f"{path}: {line}"


def test_root_and_workspace_name_every_distribution() -> None:
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())
    installed = {dependency.split("{root:uri}/")[1] for dependency in root["project"]["dependencies"]}
    listed = {line.split()[1].split("[")[0] for line in _workspace_lines()}
    here = {str(member.relative_to(ROOT)) for member in MEMBERS}
    assert {name.removeprefix("./") for name in listed} == here
    assert installed == here


def _workspace_lines() -> list[str]:
    lines = (ROOT / "workspace.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("member", MEMBERS, ids=lambda path: path.name)
def test_each_distribution_stands_alone(member: Path) -> None:
    project = tomllib.loads((member / "pyproject.toml").read_text())["project"]
    assert (member / project["readme"]).read_text().startswith(f"# {project['name']}\n")
    readme = (member / project["readme"]).read_text()
    assert len(readme.splitlines()) >= 10, "an index shows this page and no other"
    dead = [link for link in re.findall(r"\]\(([^)]+)\)", readme) if not link.startswith(("https://", "#"))]
    assert not dead, "an index has no other files of the repository"
    assert project["license"] == "Apache-2.0"
    assert project["license-files"] == ["LICENSE"], "a wheel without it has no licence"
    assert (member / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert project["requires-python"] == ">=3.11"
    packages = [path for path in (member / "src").iterdir() if path.is_dir() and not path.name.endswith(".egg-info")]
    assert [path.name for path in packages] == [project["name"].replace("-", "_")]
    assert (packages[0] / "py.typed").exists(), "types that nobody sees"


def test_no_paths_of_somebodys_machine() -> None:
    """Each top-level directory of the machine that runs this counts, so nobody can leave their own paths behind."""
    here = {path.name for path in Path("/").iterdir() if path.is_dir()}
    names = "|".join(sorted(re.escape(name) for name in (here | SOMEWHERE) - EVERYWHERE))
    own = re.compile(rf"(?<![\w.~*}}/:$\\-])/(?:{names})/\w")
    assert own.search('open("/home/somebody/x")')
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked("*.py", "*.md", "*.toml", "*.txt", "*.yml", "*.json", "*.in", ".ci/run")
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if own.search(line) and "somebody" not in line
    ]
    assert not found


def test_no_hosts_that_only_a_workplace_knows() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {host}"
        for path in tracked("*.md", "*.toml", "*.txt", ".ci/run", "LICENSE")
        for host in re.findall(r"https?://([A-Za-z0-9.-]+)", path.read_text())
        if host not in PUBLIC_HOSTS
    }
    assert not found


def test_no_test_sleeps() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in tracked("tests/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep")
        if "#" not in path.read_text().splitlines()[node.lineno - 1]
    ]
    assert not found, "wait on an event with a deadline, or say on the line why the sleep is what is tested"


def test_nothing_unfinished_in_the_product() -> None:
    mark = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b|raise NotImplemented" + "Error")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked("core/*.py", "backends/*.py", "plugins/*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if mark.search(line)
    ]
    assert not found


def test_licence_is_the_whole_text() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Version 2.0, January 2004" in text
    assert text.rstrip().endswith("limitations under the License.")


@pytest.mark.parametrize("name", forebay.__all__)
def test_public_name_is_documented(name: str) -> None:
    value = getattr(forebay, name)
    if not isinstance(value, ModuleType | type) and not callable(value):
        pytest.skip("a value")
    assert inspect.getdoc(value), f"forebay.{name} has no docstring"
    if isinstance(value, type):
        for member, function in vars(value).items():
            if not member.startswith("_") and inspect.isfunction(function):
                assert inspect.getdoc(getattr(value, member)), f"forebay.{name}.{member} has no docstring"


@pytest.mark.parametrize("function", ["open_dataset", "fetch"])
def test_guide_explains_every_argument(function: str) -> None:
    guide = (ROOT / "docs" / "guide.md").read_text()
    missing = [
        name
        for name in inspect.signature(getattr(forebay, function)).parameters
        if name != "url" and f"`{name}" not in guide
    ]
    assert not missing


def test_guide_explains_every_environment_variable() -> None:
    guide = (ROOT / "docs" / "guide.md").read_text()
    read = {
        variable
        for path in tracked("core/src/*.py")
        for variable in re.findall(r"""["'](FOREBAY_[A-Z]+(?:_[A-Z]+)*)["']""", path.read_text())
    }
    assert read
    assert not {variable for variable in read if f"`{variable}`" not in guide}
