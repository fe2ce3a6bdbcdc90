"""The store of one bucket as obstore makes it, from our options alone."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from obstore.store import GCSStore

from forebay._config import environ
from forebay_drivers.credentials import CredentialSource
from forebay_drivers.obstore import client_config, retry_config
from forebay_gcs._options import ACCOUNT_KEY, ACCOUNT_PATHS, GcsOptions

if TYPE_CHECKING:
    from obstore.store import GCSConfig, GCSCredential, GCSCredentialProvider

__all__ = ["make_store"]

_NOBODY = Path(__file__).with_name("nobody.json")


def make_store(bucket: str, options: GcsOptions, source: CredentialSource | None) -> GCSStore:
    """obstore reads the environment too, so whatever it could find there is said here."""
    # Without Accept-Encoding the store decompresses objects that were stored gzip-encoded: those are other bytes.
    headers = {"Accept-Encoding": "gzip"}
    if options.user_project is not None:
        headers["x-goog-user-project"] = options.user_project
    config: GCSConfig = {"skip_signature": False}
    if options.endpoint is not None:
        config["base_url"] = options.endpoint
    provider: GCSCredentialProvider | None = None
    auth = options.auth
    if auth.kind not in ("chain", "key"):
        config |= _instead_of_the_environments()
    if auth.kind == "anonymous":
        config["skip_signature"] = True
        # For all that skip_signature does not cover (uploads), obstore would ask the machine for an identity.
        provider = _Fixed("")
    elif auth.kind == "bearer":
        provider = _Fixed(auth.text)
    elif auth.kind == "callable" and source is not None:
        provider = _Source(source)
    elif auth.kind == "key":
        content = json.loads(auth.text)
        if auth.type == "service_account":
            # obstore wants a field that files made by hand leave out.
            config["service_account_key"] = json.dumps({"private_key_id": "", **content})
        elif auth.path is not None:
            config["application_credentials"] = auth.path
    return GCSStore(
        bucket,
        config=config,
        client_options=client_config(options.network, headers),
        retry_config=retry_config(),
        credential_provider=provider,
    )


def _instead_of_the_environments() -> GCSConfig:
    """An account that nobody signs with, in place of one in the environment: obstore reads that one all the same.

    It fails where it cannot read it, whoever asks. Either form can only be hidden by the same form.
    """
    if any(environ().get(name) for name in ACCOUNT_PATHS):
        return {"service_account": str(_NOBODY)}
    if environ().get(ACCOUNT_KEY):
        return {"service_account_key": _NOBODY.read_text(encoding="utf-8")}
    return {}


class _Fixed:
    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self) -> GCSCredential:
        return {"token": self._token, "expires_at": None}


class _Source:
    """Asked for each request: obstore would keep credentials by rules of its own, the source knows better."""

    def __init__(self, source: CredentialSource) -> None:
        self._source = source

    def __call__(self) -> GCSCredential:
        return {"token": str(self._source.get().values["token"]), "expires_at": datetime(1970, 1, 2, tzinfo=UTC)}
