"""`forebay doctor`: what was tried, in which order, what answered, and never a secret (issue 3, item 9)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from servers.azurite import Azurite
from servers.store import Store

STEPS = ["settings", "backend", "options", "environment", "driver", "credentials", "list", "read"]
WRONG = "d3Jvbmcta2V5LXdyb25nLWtleS13cm9uZy1rZXktd3Jvbmcta2V5LXdyb25nLWtleQ=="


def run(
    place: Path, url: str, options: dict[str, object], *flags: str, command: str = "doctor"
) -> subprocess.CompletedProcess[str]:
    arguments = [part for name, value in options.items() for part in ("-O", f"{name}={value}")]
    return subprocess.run(
        [sys.executable, "-m", "forebay", command, *flags, url, *arguments],
        cwd=place,
        env={**os.environ, "NO_PROXY": "*"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if answer["healthy"] else 1), done.stderr
    return answer


@pytest.mark.parametrize("name", ["weed", "fakegcs", "azurite"])
def test_a_store_that_works(request: pytest.FixtureRequest, name: str, tmp_path: Path) -> None:
    store: Store = request.getfixturevalue(name)
    store.put("doctor/a.bin", b"bytes")
    done = run(tmp_path, f"{store.url}/doctor", store.options, "--json")
    answer = told(done)
    assert [step["name"] for step in answer["steps"]] == STEPS
    assert answer["healthy"], done.stdout
    secrets = [
        str(store.options[name]) for name in ("token", "account_key", "secret_access_key") if name in store.options
    ]
    assert secrets
    assert not [secret for secret in secrets if secret in done.stdout + done.stderr]


@pytest.mark.parametrize("name", ["weed", "fakegcs", "azurite"])
def test_ls_and_fetch(request: pytest.FixtureRequest, name: str, tmp_path: Path) -> None:
    store: Store = request.getfixturevalue(name)
    store.put("listed/a b.bin", b"bytes")
    listing = run(tmp_path, f"{store.url}/listed", store.options, command="ls")
    assert listing.stdout.split(maxsplit=1) == ["5", "a b.bin\n"], listing.stderr
    url = f"{store.url}/listed/a b.bin"
    done = run(tmp_path, url, store.options, "-o", str(tmp_path / "out"), command="fetch")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_bytes() == b"bytes"
    missing = run(tmp_path, f"{store.url}/listed/none.bin", store.options, command="fetch")
    assert missing.returncode == 1
    assert "there is no such object" in missing.stderr


def test_wrong_credentials_are_explained(azurite: Azurite, tmp_path: Path) -> None:
    done = run(tmp_path, f"{azurite.url}/doctor", {**azurite.options, "account_key": WRONG})
    assert done.returncode == 1
    lines = {line.split()[1]: line for line in done.stdout.splitlines()}
    assert list(lines) == STEPS
    assert lines["read"].startswith("failed")
    assert "AccessDeniedError" in lines["read"], "Azurite's word for it is AuthorizationFailure"
    assert "account_key" in lines["read"], "the remedy is named"
    assert "account_key (from -O)" in lines["options"] or "account_key (from options=)" in lines["options"]
    assert WRONG not in done.stdout + done.stderr


def test_nothing_is_asked_where_nothing_can_be(tmp_path: Path) -> None:
    for url, error in (("nosuch://x/y", "UnknownSchemeError"), ("gs://Bad_Bucket/x", "InvalidURLError")):
        done = run(tmp_path, url, {}, "--json")
        failed = [step for step in told(done)["steps"] if step["outcome"] == "failed"]
        assert [step["facts"]["error"] for step in failed] == [error]
