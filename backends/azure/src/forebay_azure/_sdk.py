"""The fsspec driver of this backend: the SDK that adlfs stands on, asked directly.

adlfs itself reads the environment where an option was given, knows no endpoint but https, and starts a thread of
fsspec's; its SDK does neither. Every read is one request whose headers tell etag and size, pinned with If-Match.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.core.pipeline.transport import AioHttpTransport
from azure.identity.aio import DefaultAzureCredential
from azure.storage.blob.aio import BlobServiceClient

from forebay._config import environ
from forebay_azure._options import AzureAccess
from forebay_drivers import tls
from forebay_drivers.credentials import Credentials, CredentialSource
from forebay_drivers.errors import Subject
from forebay_drivers.fsspec import AzureDialect, NativeDriver, Target, blob_info, download_options
from forebay_drivers.proxies import proxy_for

__all__ = ["make_driver"]

#: A part of the engine's is smaller, and so one request.
_ONE_REQUEST = 32 << 20
_PIECE = 8 << 20
_SMALL = 1 << 20


class _Files:
    """What the dialect needs instead of a file system: the SDK's client of the account."""

    def __init__(self, access: AzureAccess, source: CredentialSource | None) -> None:
        network = access.network
        self._credential = _credential(access, source)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=tls.context(network)),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        proxy = proxy_for(access.endpoint, environ())
        self.service_client = BlobServiceClient(
            access.endpoint,
            credential=self._credential,
            transport=AioHttpTransport(
                session=self._session,
                connection_timeout=network.connect_timeout,
                read_timeout=network.timeout,
            ),
            proxies={} if proxy is None else {"http": proxy, "https": proxy},
            retry_total=0,  # the engine's policy rules
            retry_connect=0,
            retry_read=0,
            retry_status=0,
            max_single_get_size=_ONE_REQUEST,
            max_chunk_get_size=_PIECE,
            # Blocks are read from the file while they are sent; as bytes they would be sent in one go.
            max_single_put_size=_SMALL,
            max_block_size=_PIECE,
            min_large_block_upload_threshold=1,
        )
        self._timeout_kwargs: dict[str, Any] = {}

    async def aclose(self) -> None:
        """Close the connections."""
        await self.service_client.close()
        await self._session.close()
        if isinstance(self._credential, DefaultAzureCredential):
            await self._credential.close()


class _Dialect(AzureDialect):
    async def awarm(self, fs: Any) -> None:
        """The SDK opens its session under a lock of its own."""

    async def astream(self, fs: Any, path: str, target: Target) -> bool:
        """Piece by piece, all of one etag."""
        container, name = self.split(path)
        body = await fs.service_client.get_blob_client(container, name).download_blob(**download_options())
        target.expect(blob_info(name, body.properties).checksums)
        async for piece in body.chunks():
            target.write(piece)
        return True

    async def aclose(self, fs: Any) -> None:
        """Close the client."""
        await fs.aclose()


def make_driver(
    access: AzureAccess, subject: Callable[[str], Subject], source: CredentialSource | None
) -> NativeDriver:
    """The driver of one root."""
    latest = _Latest(source)
    driver = NativeDriver(
        lambda: _Files(access, source),
        subject,
        prefix=f"{access.container}/{access.prefix}/" if access.prefix else f"{access.container}/",
        dialect=_Dialect(),
        before=latest.get if source is not None else None,
        abefore=latest.aget if source is not None else None,
    )
    latest.changed = driver.renew
    return driver


class _Latest:
    """Has the clients made anew when the callable has given other credentials."""

    def __init__(self, source: CredentialSource | None) -> None:
        self._source = source
        self._serial = 0
        self.changed: Callable[[], None] = lambda: None

    def get(self) -> None:
        if self._source is not None:
            self._look(self._source.get())

    async def aget(self) -> None:
        if self._source is not None:
            self._look(await self._source.aget())

    def _look(self, held: Credentials) -> None:
        serial, self._serial = self._serial, held.serial
        if serial not in (0, held.serial):
            self.changed()


class _Bearer:
    """A callable's token, as the SDK asks for one."""

    def __init__(self, source: CredentialSource) -> None:
        self._source = source

    async def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
        held = await self._source.aget()
        ends = held.expires_at
        return AccessToken(str(held.values["token"]), 2**31 if ends is None else int(ends))

    async def close(self) -> None:
        """Nothing is held."""

    async def __aenter__(self) -> _Bearer:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is held."""


def _credential(access: AzureAccess, source: CredentialSource | None) -> Any:
    auth = access.auth
    if auth.kind == "callable" and source is not None:
        values = source.get().values
        if values.get("account_key"):
            return AzureNamedKeyCredential(access.account, str(values["account_key"]))
        if values.get("sas_token"):
            return AzureSasCredential(str(values["sas_token"]).removeprefix("?"))
        return _Bearer(source)
    if auth.kind == "key":
        return AzureNamedKeyCredential(access.account, auth.text)
    if auth.kind == "sas":
        return AzureSasCredential(auth.text)
    return None if auth.kind == "anonymous" else DefaultAzureCredential()
