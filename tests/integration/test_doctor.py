"""`forebay doctor`: what was tried, in which order, what answered, and never a secret (issue 3, item 9)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from servers.azurite import Azurite
from servers.command import forebay
from servers.fakegcs import FakeGcs
from servers.nginx import Nginx
from servers.process import free_port
from servers.store import Store
from servers.weed import Weed

from forebay.cli._doctor import _clock
from forebay.testing import FaultServer

pytestmark = pytest.mark.slow

SETUP = ["settings", "backend", "options", "environment", "driver", "credentials"]
STORES = ("weed", "fakegcs", "azurite")
WRONG = "d3Jvbmcta2V5LXdyb25nLWtleS13cm9uZy1rZXktd3Jvbmcta2V5LXdyb25nLWtleQ=="
INDEX = b'{"chunks": [], "config": {}}'


def run(
    place: Path, url: str, options: Mapping[str, object], *flags: str, command: str = "doctor", **env: str
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own; whatever it prints is looked through for the secrets in play."""
    arguments = [part for name, value in options.items() for part in ("-O", f"{name}={value}")]
    done = forebay(place, command, *flags, url, *arguments, **env)
    held = {str(value) for name, value in options.items() if name in ("token", "account_key", "secret_access_key")}
    held |= {text for name, text in env.items() if name.endswith(("_KEY", "_SECRET", "_TOKEN"))}
    held |= {WRONG, Azurite.KEY, Weed.SECRET, FakeGcs.TOKEN}
    held |= {part[4:] for text in map(str, options.values()) for part in text.split("&") if part.startswith("sig=")}
    assert not [secret for secret in held if secret in done.stdout + done.stderr]
    return done


def told(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """The steps by their names, in order; the exit code has to agree with them."""
    answer = json.loads(done.stdout)
    assert done.returncode == (0 if answer["healthy"] else 1), done.stderr
    steps = {step["name"]: step for step in answer["steps"]}
    assert answer["healthy"] == (not failed(steps))
    return steps


def failed(steps: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [name for name, step in steps.items() if step["outcome"] == "failed"]


def without(options: Mapping[str, object], *names: str) -> dict[str, object]:
    return {name: value for name, value in options.items() if name not in names}


def outcomes(steps: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Each place that was looked at for credentials, and what came of it."""
    return {one["source"]: one["outcome"] for one in steps["credentials"]["facts"]["tried"]}


@pytest.mark.parametrize("name", STORES)
def test_what_lies_there(request: pytest.FixtureRequest, name: str, tmp_path: Path) -> None:
    """An object, a dataset, another folder and a bucket are told apart, and each can be read: exit code 0."""
    store: Store = request.getfixturevalue(name)
    store.put("doctor/a.bin", b"bytes")
    store.put("dataset/index.json", INDEX)
    for key, kind, steps in (
        ("/doctor/a.bin", "object", ["object", "read", "verdict"]),
        ("/doctor", "folder", ["object", "index", "list", "read", "verdict"]),
        ("/doctor/", "folder", ["index", "list", "read", "verdict"]),
        ("/dataset", "dataset", ["object", "index", "list", "read", "verdict"]),
        ("", "folder", ["index", "list", "read", "verdict"]),
    ):
        found = told(run(tmp_path, store.url + key, store.options, "--json"))
        assert list(found) == [*SETUP, *steps], key
        assert found["verdict"]["facts"]["kind"] == kind, key
        assert not failed(found)
    assert found["options"]["facts"]["endpoint_url"]["origin"] == "-O"


@pytest.mark.parametrize("name", STORES)
def test_nothing_lies_there(request: pytest.FixtureRequest, name: str, tmp_path: Path) -> None:
    store: Store = request.getfixturevalue(name)
    found = told(run(tmp_path, f"{store.url}/nothing/here.bin", store.options, "--json"))
    assert failed(found)[-1] == "read"
    assert found["read"]["facts"]["error"] == "ObjectNotFoundError"
    bucket = f"{store.url.partition('://')[0]}://no-such-bucket/key"
    done = run(tmp_path, bucket, store.options)
    assert done.returncode == 1
    assert "no such" in done.stdout.splitlines()[-1]
    assert "read" in done.stdout.splitlines()[-1].split()


def test_web_folders_and_objects(tmp_path: Path) -> None:
    """A web server refuses, or lists, a folder's own address: the index decides, and the object by itself."""
    with Nginx(tmp_path / "nginx") as server:
        server.put("set/index.json", INDEX)
        server.put("plain/x.bin", b"bytes")
        kinds = {}
        for key in ("set", "plain/x.bin", "plain/empty.bin", "plain"):
            server.put("plain/empty.bin", b"")
            found = told(run(tmp_path, server.url(key), {}, "--json"))
            kinds[key] = found.get("verdict", {}).get("facts", {}).get("kind")
        assert kinds == {"set": "dataset", "plain/x.bin": "object", "plain/empty.bin": "object", "plain": None}
        assert found["read"]["facts"]["error"] == "AccessDeniedError", "nginx answers 403 to a folder"
        user, password = "reader", "open sesame"
        private = server.url("set", section="basic")
        assert failed(told(run(tmp_path, private, {}, "--json"))) == ["object"]
        done = run(tmp_path, private, {"username": user, "password": password}, "--json")
        assert not failed(told(done))
        assert outcomes(told(done))["option username"] == "used"
        assert password not in done.stdout


def test_local_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.bin").write_bytes(b"x")
    for path, kind in ((tmp_path / "folder", "folder"), (tmp_path / "folder" / "a.bin", "object")):
        assert told(run(tmp_path, str(path), {}, "--json"))["verdict"]["facts"]["kind"] == kind
    assert failed(told(run(tmp_path, str(tmp_path / "none"), {}, "--json")))[-1] == "read"


@pytest.mark.parametrize("name", STORES)
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


@pytest.mark.parametrize(("name", "option"), [("weed", "secret_access_key"), ("azurite", "account_key")])
@pytest.mark.parametrize("driver", ["obstore", "fsspec"])
def test_wrong_key(request: pytest.FixtureRequest, name: str, option: str, driver: str, tmp_path: Path) -> None:
    store: Store = request.getfixturevalue(name)
    store.put("doctor/a.bin", b"bytes")
    options = {**store.options, option: WRONG, "driver": driver}
    found = told(run(tmp_path, f"{store.url}/doctor/a.bin", options, "--json"))
    last = found[failed(found)[-1]]
    assert last["facts"]["status"] == 403
    assert last["facts"]["error"] in ("AuthenticationError", "AccessDeniedError"), (
        "Azurite's word is AuthorizationFailure"
    )
    assert option in last["detail"], "the remedy is named"
    assert not last["facts"]["retryable"]
    if driver == "fsspec":
        assert last["facts"]["request_id"]
    assert found["clock"]["outcome"] == "ok", "a wrong clock looks so too"
    assert abs(found["clock"]["facts"]["seconds"]) < 60
    text = run(tmp_path, f"{store.url}/doctor/a.bin", options).stdout
    assert f"{option} (from -O)" in text


def test_anonymous(azurite: Azurite, weed: Weed, tmp_path: Path) -> None:
    """Nobody asks: refused where the bucket is private, and read where it is public."""
    azurite.make_bucket("doctor-public", public=True)
    azurite.put("a.bin", b"bytes", bucket="doctor-public")
    azurite.put("a.bin", b"bytes")
    options = {**without(azurite.options, "account_key"), "anonymous": True}
    found = told(run(tmp_path, "az://doctor-public/a.bin", options, "--json"))
    assert not failed(found)
    assert outcomes(found)["option anonymous"] == "used"
    assert failed(told(run(tmp_path, "az://bench/a.bin", options, "--json")))
    weed.put("a.bin", b"bytes")
    options = {**without(weed.options, "access_key_id", "secret_access_key"), "anonymous": True}
    found = told(run(tmp_path, "s3://bench/a.bin", options, "--json"))
    assert found[failed(found)[-1]]["facts"]["error"] == "AccessDeniedError"


def test_container_of_a_signed_address(azurite: Azurite, tmp_path: Path) -> None:
    """A container's signature as the portal gives it: an address that ends with the container names no object."""
    azurite.put("doctor/a.bin", b"bytes")
    for slash in ("", "/"):
        url = f"{azurite.endpoint}/{azurite.BUCKET}{slash}?{azurite.sas()}"
        found = told(run(tmp_path, url, {"backend": "azure"}, "--json"))
        assert list(found) == [*SETUP, "index", "list", "read", "verdict"]
        assert not failed(found)


def test_signature_that_has_ended_is_told_before_anything_is_asked(azurite: Azurite, tmp_path: Path) -> None:
    azurite.put("doctor/a.bin", b"bytes")
    options = without(azurite.options, "account_key")
    good = told(run(tmp_path, "az://bench/doctor/a.bin", {**options, "sas_token": azurite.sas()}, "--json"))
    assert not failed(good)
    assert "hint" not in good
    over = {**options, "sas_token": azurite.sas(lasts=timedelta(hours=-1))}
    found = told(run(tmp_path, "az://bench/doctor/a.bin", over, "--json"))
    assert "has ended" in found["hint"]["detail"]
    assert found["hint"]["outcome"] == "warning"
    assert found["object"]["facts"]["error"] == "AuthenticationError"
    assert found["object"]["facts"]["status"] is None, "the store was not asked"
    just = {**options, "sas_token": azurite.sas(lasts=timedelta(minutes=-1))}
    found = told(run(tmp_path, "az://bench/doctor/a.bin", just, "--json"))
    assert "has ended" in found["hint"]["detail"]
    assert found["object"]["facts"]["status"] == 403, "clocks differ by a minute: the store decides"
    writing = {**options, "sas_token": azurite.sas(permissions="wl")}
    assert "no reading" in told(run(tmp_path, "az://bench/doctor/a.bin", writing, "--json"))["hint"]["detail"]


def test_key_of_another_account_is_not_dropped_silently(azurite: Azurite, tmp_path: Path) -> None:
    """Its owner thinks that it is used: doctor says that it is not, and so does the log of a program."""
    options = without(azurite.options, "account_key")
    env = {"AZURE_STORAGE_ACCOUNT_NAME": "another", "AZURE_STORAGE_ACCOUNT_KEY": WRONG}
    done = run(tmp_path, "az://bench/doctor/a.bin", options, "--json", **env)
    found = told(done)
    assert outcomes(found)["AZURE_STORAGE_ACCOUNT_KEY"] == "passed over"
    hints = [step["detail"] for step in json.loads(done.stdout)["steps"] if step["name"] == "hint"]
    assert any("'another'" in hint and "devstoreaccount1" in hint for hint in hints)
    fetched = run(tmp_path, "az://bench/doctor/a.bin", options, command="fetch", **env)
    assert "passed over" in fetched.stderr
    assert fetched.returncode == 1


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://bench/a.bin", {"access_key_id": "AKIAEXAMPLE", "secret_access_key": WRONG}),
        ("gs://bench/a.bin", {"token": "ya29.a-token-of-somebody"}),
        ("az://bench/a.bin", {"account_name": "devstoreaccount1", "account_key": WRONG}),
    ],
)
def test_unreachable_host_ends_it(tmp_path: Path, url: str, options: dict[str, object]) -> None:
    """One try is enough where nobody listens; nothing is asked twice."""
    endpoint = f"http://127.0.0.1:{free_port()}"
    found = told(run(tmp_path, url, {**options, "endpoint_url": endpoint}, "--json"))
    assert list(found) == [*SETUP, "object"]
    assert found["object"]["facts"]["error"] == "ConnectionFailedError"
    assert found["object"]["facts"]["retryable"]


def test_where_options_and_keys_come_from(weed: Weed, tmp_path: Path) -> None:
    """An alias names its file, a variable itself; what is weaker than what is used is said to be passed over (M3)."""
    weed.put("doctor/a.bin", b"bytes")
    file = tmp_path / "forebay.toml"
    file.write_text(f'[scheme.lake]\nbackend = "s3"\nendpoint_url = "{weed.endpoint}"\n')
    env = {"AWS_ACCESS_KEY_ID": weed.KEY, "AWS_SECRET_ACCESS_KEY": weed.SECRET, "FOREBAY_S3_TIMEOUT": "7"}
    url = f"lake://{weed.BUCKET}/doctor/a.bin"
    found = told(run(tmp_path, url, {"region": "us-east-1"}, "--json", **env))
    origins = {name: one["origin"] for name, one in found["options"]["facts"].items()}
    assert origins == {
        "endpoint_url": f"[scheme.lake] in {file}",
        "region": "-O",
        "timeout": "FOREBAY_S3_TIMEOUT",
    }
    assert set(env) <= set(found["environment"]["facts"]["variables"])
    variables = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    assert outcomes(found)[variables] == "used"
    assert not failed(found)
    keys = {"access_key_id": weed.KEY, "secret_access_key": WRONG}
    found = told(run(tmp_path, url, keys, "--json", **env))
    assert outcomes(found)["options access_key_id, secret_access_key"] == "used"
    assert outcomes(found)[variables] == "passed over"
    assert failed(found) == ["object"]
    elsewhere = run(tmp_path, url, {"endpoint_url": f"http://127.0.0.1:{free_port()}"}, **env)
    assert f"passed over: endpoint_url (from [scheme.lake] in {file})" in elsewhere.stdout
    half = told(run(tmp_path, url, {}, "--json", AWS_ACCESS_KEY_ID=weed.KEY))
    assert outcomes(half)[variables] == "passed over"
    assert outcomes(half)["the machine's identity"] == "passed over", "AWS_EC2_METADATA_DISABLED"


def test_clock_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """L9: a request that a wrong clock has signed is refused in words that say nothing of clocks."""
    monkeypatch.setenv("NO_PROXY", "*")
    with FaultServer() as server:
        for hours, outcome, words in ((0, "ok", "the server's"), (1, "warning", "behind"), (-1, "warning", "ahead of")):
            moment = format_datetime(datetime.now(UTC) + timedelta(hours=hours), usegmt=True)
            server.put("time", b"", headers={"Date": moment})
            (step,) = _clock.compare(server.url("time"))
            assert (step.outcome, words in step.detail) == (outcome, True), step
    (step,) = _clock.compare(f"http://127.0.0.1:{free_port()}")
    assert step.outcome == "skipped"


def test_nothing_is_asked_where_nothing_can_be(tmp_path: Path) -> None:
    for url, error in (("nosuch://x/y", "UnknownSchemeError"), ("gs://Bad_Bucket/x", "InvalidURLError")):
        found = told(run(tmp_path, url, {}, "--json"))
        assert [found[name]["facts"]["error"] for name in failed(found)] == [error]
