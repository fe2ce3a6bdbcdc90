"""Google's XML API with uploads, for obstore: nginx before a SeaweedFS that asks nobody who he is.

The two APIs have the same paths, bodies and listings; what has other names is renamed on the way.
"""

from __future__ import annotations

from pathlib import Path

from servers.fakegcs import FakeGcs
from servers.require import require
from servers.store import BucketServer
from servers.weed import Weed

__all__ = ["GcsXml"]

_CONF = """
daemon off; worker_processes 1; pid {base}/nginx.pid; error_log {base}/error.log warn;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_max_body_size 0; merge_slashes off;
  client_body_temp_path {base}/body; proxy_temp_path {base}/proxy; fastcgi_temp_path {base}/fastcgi;
  uwsgi_temp_path {base}/uwsgi; scgi_temp_path {base}/scgi;
  map $http_x_goog_if_generation_match $create {{ default ""; "0" "*"; }}
  upstream weed {{ server 127.0.0.1:{weed}; keepalive 16; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://weed; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_set_header Host 127.0.0.1:{weed}; proxy_set_header Authorization "";
      proxy_set_header x-amz-copy-source $http_x_goog_copy_source;
      proxy_set_header If-None-Match $create; proxy_set_header If-Match $http_if_match;
      proxy_request_buffering off; proxy_buffering off;
    }}
  }}
}}
"""


class GcsXml(BucketServer):
    """As `FakeGcs`, for the obstore driver alone; ``put`` and ``delete`` go through boto3 to SeaweedFS."""

    SCHEME, BUCKET = "gs", "bench"
    TOKEN = FakeGcs.TOKEN

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.weed = Weed(directory / "weed", anonymous=True)

    @property
    def options(self) -> dict[str, object]:
        """What our backend needs."""
        return {"endpoint_url": self.endpoint, "token": self.TOKEN, "project": "test"}

    def put(self, key: str, data: bytes) -> None:
        """Through boto3. `ValueError` where a store over a file system has no such name."""
        from botocore.exceptions import ClientError

        try:
            self.weed.put(key, data)
        except ClientError as exc:
            if exc.response["Error"]["Code"] not in ("ExistingObjectIsFile", "KeyTooLongError"):
                raise
            raise ValueError(f"SeaweedFS has no name for {key!r}") from exc

    def delete(self, key: str) -> None:
        """Through boto3."""
        self.weed.delete(key)

    def start(self) -> None:
        """Start SeaweedFS, then nginx."""
        binary = require("nginx")
        self.weed.directory.mkdir(parents=True)
        self._exits.enter_context(self.weed)
        self.processes += self.weed.processes
        run = [binary, "-p", str(self.directory), "-e", str(self.directory / "error.log"), "-c", "nginx.conf"]

        def command(port: int) -> list[str]:
            conf = _CONF.format(base=self.directory, weed=self.weed.port, port=port)
            (self.directory / "nginx.conf").write_text(conf)
            return run

        self.port = self.own_on_free_port(command, self.directory / "nginx.out")
