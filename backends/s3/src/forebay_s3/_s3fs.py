"""s3fs as the second driver: how its session is made from our options alone, and its credentials."""

from __future__ import annotations

import asyncio
import inspect
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioCredentials
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore.credentials import ReadOnlyCredentials
from s3fs import S3FileSystem

from forebay._config import environ
from forebay.types import ObjectInfo
from forebay_drivers import tls
from forebay_drivers.credentials import CredentialSource
from forebay_drivers.errors import HEAD_SAYS_LITTLE, Subject
from forebay_drivers.fsspec import NativeDriver, S3Dialect, Target
from forebay_drivers.options import Network
from forebay_drivers.proxies import proxy_for
from forebay_s3._options import S3Options

__all__ = ["make_driver"]

_PIECE = 1 << 20
_SINGLE = 64 << 20  # the largest file that is stored in one request
_POOL = 256  # the engine's limiter decides how many requests there are; the pool must not


def make_driver(
    bucket: str,
    prefix: str,
    options: S3Options,
    subject: Callable[[str], Subject],
    source: CredentialSource | None,
) -> NativeDriver:
    """Make the driver of one root."""
    inner = f"{bucket}/{prefix}/" if prefix else f"{bucket}/"
    dialect = _S3Dialect(asks=options.asks_checksums)
    return NativeDriver(lambda: _filesystem(options, source), subject, prefix=inner, dialect=dialect)


def _filesystem(options: S3Options, source: CredentialSource | None) -> S3FileSystem:
    net = options.network
    # What AWS_PROFILE says has been read already; a profile that nobody needs may be wrong.
    session = AioSession(session_vars={"profile": (None, None, None, None)}, profile=options.profile)
    if source is not None:
        session._credentials = _SourceCredentials(source)
    keys = options.keys
    fs = S3FileSystem(
        asynchronous=True,
        skip_instance_cache=True,
        use_listings_cache=False,
        session=session,
        anon=options.anonymous,
        key=None if keys is None else keys.access_key_id,
        secret=None if keys is None else keys.secret_access_key,
        token=None if keys is None else keys.session_token,
        endpoint_url=options.endpoint_url,
        s3_additional_kwargs={"RequestPayer": "requester"} if options.requester_pays else {},
        client_kwargs={
            "region_name": options.region,
            # Only its truth counts where `_sessions` works.
            "verify": str(net.ca_file) if net.verify_tls and net.ca_file is not None else net.verify_tls,
        },
        config_kwargs={
            "s3": {"addressing_style": "path" if options.path_style else "virtual"},
            # Compatible stores refuse checksum headers that they do not know.
            "request_checksum_calculation": "when_supported" if options.aws else "when_required",
            # Bodies are compared here: the SDK compares a response at a time, and tries again without an end.
            "response_checksum_validation": "when_required",
            "ignore_configured_endpoint_urls": True,  # ours is the one
            "proxies": _proxies(options),
            "retries": {"total_max_attempts": 1},
            "connect_timeout": net.connect_timeout,
            "read_timeout": net.timeout,
            "max_pool_connections": _POOL,
            **_sessions(net),
        },
    )
    fs.retries = 1  # the engine retries, with jitter and a budget
    return fs


def _proxies(options: S3Options) -> dict[str, str]:
    """The proxy by the rules that obstore has; botocore reads ``NO_PROXY`` in another way."""
    proxy = proxy_for(options.endpoint_url or f"https://s3.{options.region}.amazonaws.com", environ())
    return {} if proxy is None else {"http": proxy, "https": proxy}


def _sessions(net: Network) -> dict[str, Any]:
    """The SDK's connections with the authorities that every driver trusts; by itself it takes certifi's.

    Releases before 3 of aiobotocore do not let one choose: there ``ca_file`` alone is trusted.
    """
    if "http_session_cls" not in inspect.signature(AioConfig.__init__).parameters:
        return {}

    class Session(AIOHTTPSession):  # type: ignore[misc]
        def _build_verify_context(self) -> ssl.SSLContext:
            return tls.context(net)

    return {"http_session_cls": Session}


class _SourceCredentials(AioCredentials):  # type: ignore[misc]  # aiobotocore ships no types
    """A user's callable as the SDK sees it: asked for each signature."""

    def __init__(self, source: CredentialSource) -> None:
        super().__init__("", "", method="forebay")
        self._source = source

    async def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """The credentials that are valid now."""
        values = (await self._source.aget()).values
        token = values.get("session_token") or values.get("token")
        return ReadOnlyCredentials(values["access_key_id"], values["secret_access_key"], token)


class _S3Dialect(S3Dialect):
    """With whole bodies as one response, and errors that say why."""

    async def awarm(self, fs: Any) -> None:
        """Make the session, and let no request be sent to another region: botocore would, for ever where none is told.

        obstore does not either: a wrong region is an error that names the option.
        """
        await super().awarm(fs)
        client = await fs.set_session()
        client.meta.events.register("before-call.s3", _stay)
        if self._asks:
            for call in ("GetObject", "HeadObject"):
                client.meta.events.register(f"before-call.s3.{call}", _ask_for_checksums)

    async def astat(self, fs: Any, path: str, key: str) -> ObjectInfo:
        """One HEAD; where it is refused, a small GET, whose error has a reason."""
        try:
            return await super().astat(fs, path, key)
        except OSError as exc:
            response = getattr(exc.__cause__, "response", {})
            if response.get("ResponseMetadata", {}).get("HTTPStatusCode") not in HEAD_SAYS_LITTLE:
                raise
        _, info = await self.acat(fs, path, key, 0, 1, None)
        assert info is not None
        return info

    async def astream(self, fs: Any, path: str, target: Target) -> bool:
        """One GET, piece by piece."""
        bucket, name = self.split(path)
        response = await fs._call_s3("get_object", Bucket=bucket, Key=name)
        target.expect(self.info(name, response).checksums)
        body = response["Body"]
        try:
            while piece := await body.read(_PIECE):
                target.write(piece)
        finally:
            body.close()
        return True

    async def aput(self, fs: Any, local: Path, path: str) -> None:
        """One PUT; s3fs's parts for a large file, whose key s3fs itself has to take as it is."""
        if (await asyncio.to_thread(local.stat)).st_size > _SINGLE:
            await super().aput(fs, local, path)
            return
        bucket, name = self.split(path)
        file = await asyncio.to_thread(local.open, "rb")
        try:
            await fs._call_s3("put_object", Bucket=bucket, Key=name, Body=file)
        finally:
            file.close()


def _ask_for_checksums(params: dict[str, Any], **_: Any) -> None:
    """Have the store show what it has. Asked in the call itself, botocore would compare too, and ranges with wholes."""
    if "Range" not in params["headers"]:
        params["headers"]["x-amz-checksum-mode"] = "ENABLED"


def _stay(context: dict[str, Any], **_: Any) -> None:
    """Tell botocore's redirector that it has done its work."""
    context.setdefault("s3_redirect", {})["redirected"] = True
