"""``.ci/run`` is green only where nothing was left out: a server that is missing ends it, with the remedy."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from servers.require import require, unavailable

ROOT = Path(__file__).parents[2]
CI = ROOT / ".ci" / "run"
#: Needs a right that a build machine may not give; its test says so.
OPTIONAL = {"mount"}


def test_every_server_of_the_tests_is_required() -> None:
    asked: set[str] = set()
    for file in (ROOT / "tests" / "servers").glob("*.py"):
        asked |= set(re.findall(r'\b(?:unavailable|require|installed)\("(\w+)"', file.read_text()))
    match = re.search(r'^export FOREBAY_REQUIRE="([\w,]+)', CI.read_text(), re.MULTILINE)
    assert match, "the tests run with a list"
    assert {"s3", "gcs", "azure", "nginx"} <= asked
    assert asked - OPTIONAL <= set(match[1].split(","))


def test_no_npm_and_no_azurite_is_no_green(tmp_path: Path) -> None:
    """Issue 3: it used to go on without the tests against Azurite."""
    require("nginx")
    if not Path("/usr/lib/nginx/modules/ngx_http_lua_module.so").exists():
        unavailable("nginx", "its modules are not installed, and the script would end there")
    tree, tools = tmp_path / "tree", tmp_path / "bin"
    (tree / ".ci").mkdir(parents=True)
    tools.mkdir()
    shutil.copy(CI, tree / ".ci" / "run")
    shutil.copy(ROOT / "README.md", tree)
    for name in ("bash", "dirname", "grep", "mktemp", "nginx", "printf", "rm", "wc"):
        (tools / name).symlink_to(require("a shell's tools", name))
    done = subprocess.run(
        [str(tools / "bash"), str(tree / ".ci" / "run")],
        env={"PATH": str(tools), "TMPDIR": str(tmp_path), "FOREBAY_REQUIRE": "nginx"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "npm install --no-save azurite@" in done.stderr, "the remedy"
    assert done.stderr.count("missing: ") == 1
    assert "README, first line" not in done.stdout, "at once, not after the tests"
