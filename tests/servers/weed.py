"""SeaweedFS as an S3 server that checks signatures, conditions and checksums."""

from __future__ import annotations

import json
import os
import random
import socket
from pathlib import Path
from typing import Any

from servers.process import ServerProcess, wait_until
from servers.require import installed, unavailable
from servers.store import BucketServer, call

__all__ = ["Weed"]

_PORTS = ("master", "volume", "filer", "admin", "s3")
_GRPC = 10_000  # each port's gRPC twin lies this much higher


class Weed(BucketServer):
    """S3 on a free port with one identity and one bucket. ``put`` and ``delete`` go through boto3.

    With ``anonymous=True`` it asks for no credentials at all; else whoever has none may read the bucket `PUBLIC`.
    """

    SCHEME, BUCKET = "s3", "bench"
    PUBLIC = "public"
    KEY, SECRET, REGION = "testkey", "testsecret-0123456789", "us-east-1"

    def __init__(self, directory: Path, *, anonymous: bool = False) -> None:
        super().__init__(directory)
        self.anonymous = anonymous
        self._client: Any = None

    @property
    def options(self) -> dict[str, object]:
        """What our backend needs."""
        options: dict[str, object] = {
            "endpoint_url": self.endpoint,
            "region": self.REGION,
            "addressing_style": "path",
            "access_key_id": self.KEY,
            "secret_access_key": self.SECRET,
        }
        return options

    @property
    def client(self) -> Any:
        """boto3's client for it."""
        return self._client

    def make_bucket(self, name: str) -> None:
        """Another bucket."""
        self._client.create_bucket(Bucket=name)

    def put(self, key: str, data: bytes, bucket: str = BUCKET) -> None:
        """Through boto3."""
        self._client.put_object(Bucket=bucket, Key=key, Body=data)

    def delete(self, key: str) -> None:
        """Through boto3."""
        self._client.delete_object(Bucket=self.BUCKET, Key=key)

    def start(self) -> None:
        """Start it on ports that were free, and make the bucket."""
        try:
            import boto3
            from botocore.config import Config
        except ImportError:
            unavailable("s3", "boto3 is not installed")
        binary = installed("s3", "weed")
        for attempt in range(3):
            ports = _free_ports(len(_PORTS))
            self.port = ports[-1]
            log = self.directory / "weed.out"
            env = {**os.environ, "GOMEMLIMIT": "1GiB", "TMPDIR": str(self.directory)}  # its logs go to TMPDIR
            try:
                process = ServerProcess(self._command(binary, ports, attempt), self.port, log, env)
            except RuntimeError:
                if attempt == 2:  # somebody else took a port, again and again
                    raise
            else:
                break
        self.own(process)
        wait_until(self._ready, deadline=20, what="SeaweedFS's first answer")
        self._client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.KEY,
            aws_secret_access_key=self.SECRET,
            region_name=self.REGION,
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 3}),
        )
        self._exits.callback(self._client.close)
        wait_until(self._make_bucket, deadline=20, what="SeaweedFS's first bucket")

    def _command(self, binary: str, ports: list[int], attempt: int) -> list[str]:
        data = self.directory / f"data{attempt}"
        data.mkdir(parents=True)
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": self.KEY, "secretKey": self.SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        stranger = {"name": "anonymous", "actions": [f"Read:{self.PUBLIC}", f"List:{self.PUBLIC}"]}
        config = self.directory / "s3.json"
        config.write_text(json.dumps({"identities": [identity, stranger]}))
        command = [binary, "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        command += [f"-{name}.port={port}" for name, port in zip(_PORTS, ports, strict=True)]
        command += [] if self.anonymous else [f"-s3.config={config}"]
        # Telemetry calls an outside host unless it is told not to.
        command += ["-master.telemetry=false", "-s3.autoCreateBucket=false", "-s3.cacheCapacityMB=256"]
        return [*command, "-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false"]

    def _ready(self) -> bool:
        try:
            return call("GET", f"{self.endpoint}/status", ok=(403, 404)).status > 0
        except OSError:
            return False

    def _make_bucket(self) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self.make_bucket(self.BUCKET)
            self.put("ready", b"")
            self.delete("ready")
        except self._client.exceptions.BucketAlreadyExists:
            return True
        except (BotoCoreError, ClientError):  # the filer behind it is not up yet
            return False
        return True


def _free_ports(count: int) -> list[int]:
    """Below the range from which the kernel takes ports for clients, each with a free twin for gRPC."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().randrange(11_000, 21_000)
        if port not in ports and _free(port) and _free(port + _GRPC):
            ports.append(port)
    return ports


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
