"""moto as a second S3 server, with IAM: it tells a wrong secret from a user who may not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from servers.require import installed, unavailable
from servers.store import BucketServer

__all__ = ["Moto"]


class Moto(BucketServer):
    """S3 on a free port with one user, who may do everything with S3. ``put`` and ``delete`` go through boto3."""

    SCHEME, BUCKET = "s3", "bench"
    REGION = "us-east-1"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.key = self.secret = ""
        self._client: Any = None

    @property
    def options(self) -> dict[str, object]:
        """What our backend needs."""
        return {
            "endpoint_url": self.endpoint,
            "region": self.REGION,
            "addressing_style": "path",
            "access_key_id": self.key,
            "secret_access_key": self.secret,
        }

    @property
    def client(self) -> Any:
        """boto3's client for it."""
        return self._client

    def put(self, key: str, data: bytes) -> None:
        """Through boto3."""
        self._client.put_object(Bucket=self.BUCKET, Key=key, Body=data)

    def delete(self, key: str) -> None:
        """Through boto3."""
        self._client.delete_object(Bucket=self.BUCKET, Key=key)

    def start(self) -> None:
        """Start it, make the user with the three calls that are free, then the bucket."""
        try:
            import boto3
        except ImportError:
            unavailable("s3", "boto3 is not installed")
        command = [installed("s3", "moto_server"), "-H", "127.0.0.1"]
        # Without this variable it takes any credentials for good ones.
        env = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "3"}
        self.port = self.own_on_free_port(lambda port: [*command, "-p", str(port)], self.directory / "moto.out", env)
        iam = self._boto(boto3, "iam", "any", "any")
        iam.create_user(UserName="tests")
        access = iam.create_access_key(UserName="tests")["AccessKey"]
        self.key, self.secret = access["AccessKeyId"], access["SecretAccessKey"]
        statement = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.put_user_policy(UserName="tests", PolicyName="all", PolicyDocument=policy)
        self._client = self._boto(boto3, "s3", self.key, self.secret)
        self._client.create_bucket(Bucket=self.BUCKET)

    def _boto(self, boto3: Any, service: str, key: str, secret: str) -> Any:
        client = boto3.client(
            service,
            endpoint_url=self.endpoint,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            region_name=self.REGION,
        )
        self._exits.callback(client.close)
        return client
