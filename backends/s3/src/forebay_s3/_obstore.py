"""The S3 store as obstore makes it, from our options alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from obstore.store import S3Store

from forebay_drivers.credentials import CredentialSource
from forebay_drivers.obstore import client_config, retry_config
from forebay_s3._options import Keys, S3Options

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Credential, S3CredentialProvider

__all__ = ["make_store"]


def make_store(bucket: str, options: S3Options, source: CredentialSource | None) -> S3Store:
    """Make the store of one bucket. obstore reads the environment too, so all that it could find is said here."""
    config: S3Config = {
        "region": options.region,
        "virtual_hosted_style_request": not options.path_style,
        "skip_signature": options.anonymous,
        "request_payer": options.requester_pays,
    }
    if options.endpoint_url is not None:
        # By this name, or AWS_ENDPOINT_URL_S3 would be the stronger one (measured, obstore 0.12.1).
        endpoint = _endpoint(bucket, options.endpoint_url, path_style=options.path_style)
        config["aws_endpoint_url_s3"] = endpoint
    if options.metadata_endpoint is not None:
        config["metadata_endpoint"] = options.metadata_endpoint
    provider: S3CredentialProvider | None = None
    if source is not None:
        provider = _SourceProvider(source)
    elif options.keys is not None:
        # Not as configuration: there a token in the environment would be joined to keys that are not its own.
        provider = _KeysProvider(options.keys)
    return S3Store(
        bucket,
        config=config,
        client_options=client_config(options.network),
        retry_config=retry_config(),
        credential_provider=provider,
    )


def _endpoint(bucket: str, url: str, *, path_style: bool) -> str:
    """obstore wants the bucket in the endpoint where it belongs to the host name."""
    if path_style:
        return url
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{bucket}.{parts.netloc}"))


class _KeysProvider:
    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def __call__(self) -> S3Credential:
        keys = self._keys
        return {
            "access_key_id": keys.access_key_id,
            "secret_access_key": keys.secret_access_key,
            "token": keys.session_token,
            "expires_at": None,
        }


class _SourceProvider:
    """Asked for each request: obstore would keep credentials by rules of its own, the source knows better."""

    def __init__(self, source: CredentialSource) -> None:
        self._source = source

    def __call__(self) -> S3Credential:
        values: Mapping[str, object] = self._source.get().values
        token = values.get("session_token") or values.get("token")
        return {
            "access_key_id": str(values["access_key_id"]),
            "secret_access_key": str(values["secret_access_key"]),
            "token": None if token is None else str(token),
            "expires_at": datetime(1970, 1, 2, tzinfo=UTC),
        }
