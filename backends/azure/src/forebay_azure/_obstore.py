"""The store of one container as obstore makes it, from what was found out here alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from obstore.store import AzureStore

from forebay_azure._options import AzureAccess
from forebay_drivers.credentials import CredentialSource
from forebay_drivers.obstore import client_config, retry_config

if TYPE_CHECKING:
    from obstore.store import AzureCredential, AzureCredentialProvider

__all__ = ["make_store"]


def make_store(access: AzureAccess, source: CredentialSource | None) -> AzureStore:
    """obstore reads the environment too, so whatever it could find there is said here."""
    provider: AzureCredentialProvider | None = None
    if access.auth.kind in ("key", "sas"):
        provider = _Fixed(access.auth.kind, access.auth.text)
    elif access.auth.kind == "callable" and source is not None:
        provider = _Source(source)
    return AzureStore(
        access.container,
        config={
            "account_name": access.account,
            "endpoint": access.endpoint,
            "use_emulator": False,  # it would go to an address of its own whatever the endpoint is
            "skip_signature": access.auth.kind == "anonymous",
        },
        client_options=client_config(access.network),
        retry_config=retry_config(),
        credential_provider=provider,
    )


class _Fixed:
    def __init__(self, kind: str, text: str) -> None:
        self._kind = kind
        self._text = text

    def __call__(self) -> AzureCredential:
        if self._kind == "key":
            return {"access_key": self._text, "expires_at": None}
        return {"sas_token": self._text, "expires_at": None}


class _Source:
    """Asked for each request: obstore would keep credentials by rules of its own, the source knows better."""

    def __init__(self, source: CredentialSource) -> None:
        self._source = source

    def __call__(self) -> AzureCredential:
        values, expired = self._source.get().values, datetime(1970, 1, 2, tzinfo=UTC)
        if values.get("account_key"):
            return {"access_key": str(values["account_key"]), "expires_at": expired}
        if values.get("sas_token"):
            return {"sas_token": str(values["sas_token"]).removeprefix("?"), "expires_at": expired}
        return {"token": str(values["token"]), "expires_at": expired}
