"""Azurite, Microsoft's emulator of Azure Blob Storage (npm): it checks account keys and SAS."""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from hashlib import sha256
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from servers.require import installed
from servers.store import Answer, BucketServer, call

__all__ = ["Azurite"]

_VERSION = "2023-11-03"


class Azurite(BucketServer):
    """Azure Blob Storage on a free port, in memory. ``put`` and ``delete`` are requests signed here."""

    SCHEME, BUCKET = "az", "bench"
    ACCOUNT = "devstoreaccount1"
    #: Known to everybody: it stands in Microsoft's documentation.
    KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    @property
    def endpoint(self) -> str:
        """Where the account answers."""
        return f"http://127.0.0.1:{self.port}/{self.ACCOUNT}"

    @property
    def options(self) -> dict[str, object]:
        """What our backend needs."""
        return {"endpoint_url": self.endpoint, "account_name": self.ACCOUNT, "account_key": self.KEY}

    @property
    def connection_string(self) -> str:
        """As the portal shows it."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={self.ACCOUNT};AccountKey={self.KEY};"
            f"BlobEndpoint={self.endpoint};"
        )

    def sas(self, container: str = BUCKET, *, permissions: str = "rl", lasts: timedelta = timedelta(hours=1)) -> str:
        """A shared access signature for a container; one of negative duration is expired."""
        expiry = (datetime.now(UTC) + lasts).strftime("%Y-%m-%dT%H:%M:%SZ")
        fields = [permissions, "", expiry, f"/blob/{self.ACCOUNT}/{container}", "", "", "https,http", _VERSION, "c"]
        text = "\n".join([*fields, *[""] * 7])
        query = {
            "sv": _VERSION,
            "sr": "c",
            "sp": permissions,
            "se": expiry,
            "spr": "https,http",
            "sig": self._sign(text),
        }
        return urlencode(query)

    def make_bucket(self, name: str, *, public: bool = False, exist_ok: bool = False) -> None:
        """Another container; a public one may be read and listed by anybody."""
        headers = {"x-ms-blob-public-access": "container"} if public else {}
        self.request("PUT", f"/{name}?restype=container", headers=headers, ok=(409,) if exist_ok else ())

    def put(self, key: str, data: bytes, bucket: str = BUCKET) -> None:
        """One Put Blob request."""
        self.request("PUT", f"/{bucket}/{quote(key)}", data, {"x-ms-blob-type": "BlockBlob"})

    def delete(self, key: str, bucket: str = BUCKET) -> None:
        """One Delete Blob request."""
        if self.request("DELETE", f"/{bucket}/{quote(key)}", ok=(404,)).status == 404:
            raise FileNotFoundError(key)

    def request(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        ok: tuple[int, ...] = (),
    ) -> Answer:
        """A request to the account, signed with its key."""
        url = self.endpoint + target
        sent = {
            "x-ms-date": format_datetime(datetime.now(UTC), usegmt=True),
            "x-ms-version": _VERSION,
            **(headers or {}),
        }
        custom = "".join(f"{name}:{sent[name]}\n" for name in sorted(sent) if name.startswith("x-ms-"))
        parts = urlsplit(url)
        resource = f"/{self.ACCOUNT}{parts.path}"
        resource += "".join(f"\n{name}:{value}" for name, value in sorted(parse_qsl(parts.query)))
        text = "\n".join([method, "", "", str(len(body) or ""), *[""] * 8, custom + resource])
        sent["Authorization"] = f"SharedKey {self.ACCOUNT}:{self._sign(text)}"
        return call(method, url, body, sent, ok=ok)

    def _sign(self, text: str) -> str:
        return b64encode(hmac.digest(b64decode(self.KEY), text.encode(), sha256)).decode()

    def start(self) -> None:
        """Start it and make the container."""
        binary = installed("azure", "azurite-blob")
        command = [binary, "--silent", "--skipApiVersionCheck", "--disableTelemetry", "--inMemoryPersistence"]
        command += ["--blobHost", "127.0.0.1", "--blobPort"]
        self.port = self.own_on_free_port(lambda port: [*command, str(port)], self.directory / "azurite.out")
        self.make_bucket(self.BUCKET)
