"""One dataset in four kinds of store: who may read it gets the same digests, who may not hears why in seconds (L)."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import monotonic

import pytest
from formats.canon import canon
from formats.folder import FIXTURES
from servers.access import Access, Credentials, Visit, access_to
from servers.nginx import Nginx
from servers.proxy import Plan, Proxy

import forebay
from forebay.exceptions import StorageError

pytestmark = pytest.mark.slow

FIXTURE = FIXTURES / "litdata-zstd-chunk"
SERVERS = {"s3": "weed", "gcs": "fakegcs", "azure": "azurite"}
#: Seconds for a refusal: no pause of a retry fits many times into it, also on a machine that is busy.
SOON = 5.0


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in (*SERVERS, "http")]
)
def access(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    if request.param == "http":
        with Nginx(tmp_path_factory.mktemp("nginx")) as server:
            yield filled(access_to(server))
    else:
        yield filled(access_to(request.getfixturevalue(SERVERS[request.param])))


def filled(place: Access) -> Access:
    for file in FIXTURE.iterdir():
        place.put(f"access/{file.name}", file.read_bytes())
    return place


@pytest.fixture(params=["obstore", "fsspec"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def gate(access: Access) -> Iterator[Proxy]:
    with Proxy(access.port, Plan(), host=access.host) as proxy:
        proxy.gate = access.gate
        yield proxy


def digests(visit: Visit, driver: str, cache: Path) -> list[str]:
    options = {**visit.options, "driver": driver}
    with forebay.open_dataset(visit.url, cache_dir=cache, max_cache_bytes="64MiB", options=options) as dataset:
        return [canon(item) for item in dataset]


def test_the_same_digests_for_everybody_who_may_read(access: Access, driver: str, gate: Proxy, tmp_path: Path) -> None:
    """Risk L1, L5, L8: keys, signatures, tokens, nobody at all, and a callable whose first answer has expired."""
    expected = json.loads((FIXTURE / "expected.json").read_text())["sha256"]
    welcome: Mapping[str, Visit] = {name: one for name, one in access.visits(gate.port).items() if not one.error}
    assert {"key", "anonymous"} <= set(welcome)
    for name, visit in welcome.items():
        assert digests(visit, driver, tmp_path / name) == expected, name
        call = visit.options.get("credentials")
        if isinstance(call, Credentials):
            assert call.calls == 2, "the expired ones are asked for anew, once"


def test_who_may_not_read_hears_why(
    access: Access, driver: str, gate: Proxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Risk L4, L6, L11, U1, U2, U3: a refusal is an error of its own class at once, names key, backend and remedy, and
    shows no secret in its text, its notes, its causes or the log."""
    caplog.set_level(logging.DEBUG, "forebay")
    refused = {name: one for name, one in access.visits(gate.port).items() if one.error}
    assert {"nobody", "wrong", "expired"} <= set(refused)
    for name, visit in refused.items():
        asked, start = gate.requests, monotonic()
        with pytest.raises(StorageError) as caught:
            digests(visit, driver, tmp_path / name)
        assert monotonic() - start < SOON
        error = caught.value
        assert isinstance(error, visit.error), f"{name}: {error!r}"
        assert (error.key, error.backend) == ("index.json", access.backend), name
        for word in ("index.json", access.backend, visit.says):
            assert word in str(error), f"{name}: {error}"
        assert gate.requests - asked <= 2, f"{name}: what is refused for good is not asked for again and again"
        text = "".join(traceback.format_exception(error)) + repr(vars(error)) + caplog.text
        assert not [secret for secret in visit.secrets if secret in text], name
