"""The conformance suite tests itself: a sound backend passes, each planted bug fails the test that is named for it."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path

import pytest

from forebay.testing import DownloaderConformance

pytestmark = [
    pytest.mark.xdist_group("conformance_suite"),
    pytest.mark.timeout(300),
    pytest.mark.slow,
]  # one run for all of them

PLANTED = Path(__file__).with_name("planted_bugs.py")
Outcomes = Mapping[str, Mapping[str, tuple[str, str]]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Class to test (without parameters) to (worst outcome, its text)."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "pytest.ini").write_text("[pytest]\n")
    options = ["-c", folder / "pytest.ini", "-p", "no:xdist", "-p", "no:cacheprovider", "--import-mode=importlib", "-q"]
    options += ["-o", "faulthandler_timeout=100"]  # a test that hangs shows where
    # Of a planted bug only its own test: the whole matrix takes half a minute and says no more.
    whole = ["TestSound", "TestSyncOnly", "TestWithoutRemote", "TestKnownGap"]
    chosen = [*whole, *(f"Test{bug}::{test}" for bug, test in _bugs().items())]
    nodes = [f"{PLANTED}::{one}" for one in chosen]
    command = [
        sys.executable,
        "-m",
        "pytest",
        *options,
        f"--junitxml={folder / 'out.xml'}",
        f"--basetemp={folder / 'base'}",
        *nodes,
    ]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=250, cwd=folder, check=False)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr
    seen: dict[str, dict[str, tuple[str, str]]] = {}
    rank = ["passed", "skipped", "failure", "error"]
    for case in ElementTree.parse(folder / "out.xml").iter("testcase"):
        group = seen.setdefault(case.attrib["classname"].rpartition(".")[2], {})
        name = case.attrib["name"].partition("[")[0]
        found = next((child for child in case if child.tag in rank), None)
        new = ("passed", "") if found is None else (found.tag, found.attrib.get("message", "") + (found.text or ""))
        group[name] = max(group.get(name, new), new, key=lambda one: rank.index(one[0]))
    return seen


SUITE = sorted(name for name in dir(DownloaderConformance) if name.startswith("test_"))


def test_sound_backend_passes_everything(outcomes: Outcomes) -> None:
    assert sorted(outcomes["TestSound"]) == SUITE
    others = {name: found for name, found in outcomes["TestSound"].items() if found[0] != "passed"}
    # These two hold for backends that lack the operation, which the next test covers.
    assert sorted(others) == ["test_list_says_when_it_cannot", "test_upload_says_when_it_cannot"]
    assert {outcome for outcome, _ in others.values()} == {"skipped"}


def test_one_method_is_enough(outcomes: Outcomes) -> None:
    found = outcomes["TestSyncOnly"]
    assert {name: text for name, (outcome, text) in found.items() if outcome not in ("passed", "skipped")} == {}
    for name in ("test_list_says_when_it_cannot", "test_upload_says_when_it_cannot", "test_range_is_the_exact_slice"):
        assert found[name][0] == "passed"


def test_each_planted_bug_fails_its_test(outcomes: Outcomes) -> None:
    for bug, test in _bugs().items():
        outcome, text = outcomes[f"Test{bug}"][test]
        assert outcome == "failure", f"{bug} came through {test}: {outcome} {text}"


def test_each_test_of_the_suite_has_a_planted_bug() -> None:
    assert sorted(set(_bugs().values())) == SUITE


def test_asserts_of_the_suite_show_values(outcomes: Outcomes) -> None:
    text = outcomes["TestCountsBlocks"]["test_stat_tells_the_truth"][1]
    assert "assert 512 in (10, None)" in text


def test_forgotten_remote_fixture_fails(outcomes: Outcomes) -> None:
    assert set(outcomes["TestWithoutRemote"]) == set(SUITE)
    for name, (outcome, text) in outcomes["TestWithoutRemote"].items():
        assert outcome in ("error", "failure"), name
        assert "TestWithoutRemote has no `remote` fixture" in text


def test_known_gap_is_a_visible_skip(outcomes: Outcomes) -> None:
    outcome, text = outcomes["TestKnownGap"]["test_pickles_after_use"]
    assert (outcome, "this store lives in one process" in text) == ("skipped", True)


def test_replacing_a_test_is_refused() -> None:
    with pytest.raises(TypeError, match="replaces test_pickles_after_use"):
        type("TestMine", (DownloaderConformance,), {"test_pickles_after_use": lambda self: None})
    mixin = type("Mixin", (), {"test_error_pickles": None})
    with pytest.raises(TypeError, match="replaces test_error_pickles"):
        type("TestMine", (mixin, DownloaderConformance), {})
    with pytest.raises(TypeError, match="no test of the conformance suite: test_of_nothing"):
        type("TestMine", (DownloaderConformance,), {"known_gaps": {"test_of_nothing": "typo"}})


def _bugs() -> dict[str, str]:
    """Name of the planted class to the test that it should fail, read without importing (it registers nothing here)."""
    bugs: dict[str, str] = {}
    current = ""
    for line in PLANTED.read_text().splitlines():
        if line.startswith("class "):
            current = line.removeprefix("class ").partition("(")[0]
        elif line.startswith("    bug_in = "):
            bugs[current] = line.partition('"')[2].rstrip('"')
    return bugs
