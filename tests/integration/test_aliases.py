"""Aliases of ``forebay.toml`` on the command line: what `forebay plugins` says of them, and reading through them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from servers.azurite import Azurite
from servers.command import forebay
from servers.fakegcs import FakeGcs
from servers.process import free_port
from servers.store import Store

pytestmark = pytest.mark.slow

BACKENDS = {"weed": "s3", "fakegcs": "gcs", "azurite": "azure"}


def rows(place: Path, **env: str) -> dict[str, dict[str, Any]]:
    """What `forebay plugins` says of each scheme."""
    done = forebay(place, "plugins", "--json", **env)
    assert done.returncode == 0, done.stderr
    return {row["scheme"]: row for row in json.loads(done.stdout)["plugins"]}


def test_plugins_probes_with_the_options_that_a_url_would_get(tmp_path: Path) -> None:
    """Issue 3, item 1: it says which driver, and why, of each scheme as it is configured here; not of bare defaults."""
    (tmp_path / "forebay.toml").write_text(
        '[scheme.lake]\nbackend = "s3"\ndriver = "fsspec"\nendpoint_url = "http://127.0.0.1:9000"\n'
        '[scheme.az]\ndriver = "fsspec"\n'
        '[scheme.team]\nbackend = "http"\nheaders = { X-Team = "vision" }\n'
    )
    found = rows(tmp_path, FOREBAY_GCS_DRIVER="fsspec")
    drivers = {scheme: found[scheme]["driver"] for scheme in ("lake", "s3", "az", "abfs", "gs", "team", "http")}
    assert drivers == {
        "lake": "fsspec",
        "s3": "obstore",
        "az": "fsspec",
        "abfs": "obstore",
        "gs": "fsspec",
        "team": "fsspec",
        "http": "obstore",
    }
    lake = found["lake"]
    assert lake["note"] == f"alias in {tmp_path / 'forebay.toml'}; asked for with driver='fsspec'"
    assert (lake["distribution"], lake["version"]) == ("forebay-s3", found["s3"]["version"])
    assert lake["version"]
    assert lake["native_async"]
    assert "X-Team" in found["team"]["note"], "why obstore does not serve it"
    assert "vision" not in json.dumps(found)


def test_plugins_says_where_a_scheme_cannot_be_opened(tmp_path: Path) -> None:
    """What opening a URL would raise is told by the scheme's row, and harms no other."""
    (tmp_path / "forebay.toml").write_text(
        '[scheme.lake]\nbackend = "s3"\nendpoint = "http://127.0.0.1:9000"\n[scheme.gs]\ndriver = "gsutil"\n'
    )
    found = rows(tmp_path, AWS_PROFILE="nobody")
    assert "endpoint_url" in found["lake"]["error"], "the near name"
    assert "gsutil" in found["gs"]["error"]
    assert "nobody" in found["s3"]["error"]
    assert not found["az"]["error"]
    assert not found["http"]["error"]


@pytest.mark.parametrize("driver", ["obstore", "fsspec"])
@pytest.mark.parametrize("name", list(BACKENDS))
def test_reading_through_an_alias(request: pytest.FixtureRequest, name: str, driver: str, tmp_path: Path) -> None:
    """Issue 3, items 2 and 9: a scheme of one's own over each cloud, with all that its users need not know."""
    store: Store = request.getfixturevalue(name)
    store.put("alias/a b.bin", b"bytes")
    table = {"backend": BACKENDS[name], "driver": driver, **store.options}
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    (tmp_path / "forebay.toml").write_text("\n".join(["[scheme.lake]", *lines]))
    listing = forebay(tmp_path, "ls", f"lake://{store.BUCKET}/alias")
    assert listing.stdout.split(maxsplit=1) == ["5", "a b.bin\n"], listing.stderr
    done = forebay(tmp_path, "fetch", "-o", "out", f"lake://{store.BUCKET}/alias/a b.bin", "--cache-dir", "cache")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_bytes() == b"bytes"
    missing = forebay(tmp_path, "fetch", f"lake://{store.BUCKET}/alias/none", "--cache-dir", "cache")
    assert missing.returncode == 1
    assert "no such object" in missing.stderr or "404" in missing.stderr
    secrets = [str(store.options[key]) for key in ("token", "account_key", "secret_access_key") if key in store.options]
    assert secrets
    assert not [one for one in secrets if one in listing.stderr + done.stderr + missing.stderr + missing.stdout]


def test_alias_of_a_https_like_spelling(azurite: Azurite, tmp_path: Path) -> None:
    """CONTAINER@ACCOUNT names the account in the URL; a signature, in the alias, says who asks."""
    azurite.put("alias/a.bin", b"bytes")
    (tmp_path / "forebay.toml").write_text(
        f'[scheme.lake]\nbackend = "abfss"\nendpoint_url = "{azurite.endpoint}"\nsas_token = "{azurite.sas()}"\n'
        f'account_name = "{azurite.ACCOUNT}"\n'
    )
    done = forebay(tmp_path, "fetch", "-o", "out", "lake://bench/alias/a.bin", "--cache-dir", "cache")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_bytes() == b"bytes"
    other = forebay(tmp_path, "ls", "lake://bench@otheraccount.dfs.core.windows.net/alias")
    assert other.returncode == 1
    # The signature would go to somebody else's account: that is told, or it is passed over and nobody asks.
    assert "different storage accounts" in other.stderr or "there are no credentials" in other.stderr


def test_user_in_a_cloud_url_is_refused(fakegcs: FakeGcs, tmp_path: Path) -> None:
    """A bucket has no user: nothing is cut off and sent, and no password is shown."""
    endpoint = f"http://127.0.0.1:{free_port()}"
    for url, options in (
        ("s3://user:open-sesame@bench/a.bin", {"endpoint_url": endpoint, "anonymous": "true"}),
        ("gs://user:open-sesame@bench/a.bin", {"endpoint_url": endpoint, "token": fakegcs.TOKEN}),
        ("az://user:open-sesame@bench/a.bin", {"endpoint_url": endpoint, "account_name": "lakeaccount"}),
    ):
        flags = [part for name, value in options.items() for part in ("-O", f"{name}={value}")]
        done = forebay(tmp_path, "fetch", url, *flags, "--cache-dir", "cache")
        assert done.returncode == 1
        assert "names no" in done.stderr
        assert "open-sesame" not in done.stderr
