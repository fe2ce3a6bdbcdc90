"""The fsspec driver of this backend: the SDK that adlfs stands on, asked directly.

adlfs itself reads the environment where an option was given, knows no endpoint but https, and starts a thread of
fsspec's; its SDK does neither. Every read is one request whose headers tell etag and size, pinned with If-Match.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from azure.core import MatchConditions
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import IncompleteReadError
from azure.identity.aio import DefaultAzureCredential
from azure.storage.blob.aio import BlobServiceClient

from forebay.downloader import SupportsWrite
from forebay.types import ObjectInfo
from forebay_azure._options import AzureAccess
from forebay_drivers.credentials import Credentials, CredentialSource
from forebay_drivers.errors import Subject
from forebay_drivers.fsspec import Dialect, NativeDriver, object_info

__all__ = ["make_driver"]

#: A part of the engine's is smaller, and so one request.
_ONE_REQUEST = 32 << 20
_PIECE = 8 << 20


class _Files:
    """What the dialect needs instead of a file system: the SDK's client of the account."""

    def __init__(self, access: AzureAccess, source: CredentialSource | None) -> None:
        network = access.network
        self._credential = _credential(access, source)
        self.service_client = BlobServiceClient(
            access.endpoint,
            credential=self._credential,
            retry_total=0,  # the engine's policy rules
            retry_connect=0,
            retry_read=0,
            retry_status=0,
            max_single_get_size=_ONE_REQUEST,
            max_chunk_get_size=_PIECE,
            connection_timeout=network.connect_timeout,
            read_timeout=network.timeout,
            connection_verify=str(network.ca_file) if network.ca_file is not None else network.verify_tls,
        )
        self._container = self.service_client.get_container_client(access.container)

    def blob(self, name: str) -> Any:
        """The client of one object; its name goes out percent-encoded and else as it is."""
        return self._container.get_blob_client(name)

    def names(self, prefix: str) -> Any:
        """All objects whose name starts with ``prefix``."""
        return self._container.list_blobs(name_starts_with=prefix)

    async def aclose(self) -> None:
        """Close the connections."""
        await self.service_client.close()
        if isinstance(self._credential, DefaultAzureCredential):
            await self._credential.close()


class _Dialect(Dialect):
    literal_slashes = True
    tells = True

    async def awarm(self, fs: Any) -> None:
        """The SDK opens its session under a lock of its own."""

    async def acat(
        self, fs: Any, path: str, key: str, start: int, stop: int | None, if_match: str | None
    ) -> tuple[bytes, ObjectInfo | None]:
        """One GET, with the object's facts from its headers."""
        pin = {} if if_match is None else {"etag": if_match, "match_condition": MatchConditions.IfNotModified}
        length = None if stop is None else stop - start
        body = await fs.blob(path).download_blob(start or (None if stop is None else 0), length, **pin)
        return await body.readall(), _info(key, body.properties)

    async def astream(self, fs: Any, path: str, fileobj: SupportsWrite) -> bool:
        """Piece by piece, all of one etag; the store's MD5, where it has one, is compared."""
        body = await fs.blob(path).download_blob()
        digest = hashlib.md5(usedforsecurity=False)
        async for piece in body.chunks():
            digest.update(piece)
            fileobj.write(piece)
        promised = body.properties.content_settings.content_md5
        if promised is not None and bytes(promised) != digest.digest():
            raise IncompleteReadError("the MD5 of the body is another than the store's")
        return True

    async def astat(self, fs: Any, path: str, key: str) -> ObjectInfo:
        """The object's properties."""
        return _info(key, await fs.blob(path).get_blob_properties())

    async def afind(self, fs: Any, folder: str) -> Mapping[str, Mapping[str, Any]]:
        """All pages of a listing without delimiter."""
        return {one.name: _facts(one) async for one in fs.names(f"{folder}/" if folder else "")}

    async def aput(self, fs: Any, local: Path, path: str) -> None:
        """In blocks that become an object at the end."""
        file = await asyncio.to_thread(local.open, "rb")
        try:
            await fs.blob(path).upload_blob(file, overwrite=True)
        finally:
            file.close()

    async def aclose(self, fs: Any) -> None:
        """Close the client."""
        await fs.aclose()


def make_driver(
    access: AzureAccess, subject: Callable[[str], Subject], source: CredentialSource | None
) -> NativeDriver:
    """The driver of one root."""
    latest = _Latest(source)
    driver = NativeDriver(
        lambda: _Files(access, source),  # type: ignore[arg-type,return-value]  # all that the dialect asks of it
        subject,
        prefix=f"{access.prefix}/" if access.prefix else "",
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


def _info(key: str, properties: Any) -> ObjectInfo:
    return object_info(key, _facts(properties))


def _facts(properties: Any) -> dict[str, Any]:
    return {
        "size": properties.size,
        "etag": properties.etag,
        "version_id": properties.get("version_id"),
        "last_modified": properties.last_modified,
    }
