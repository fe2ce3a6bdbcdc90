"""nginx on a free port, with a section for each thing that web servers do differently."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from servers.process import free_port, wait_until
from servers.require import require
from servers.store import ServerContext

__all__ = ["LoggedRequest", "Nginx"]

_CONF = """
daemon off; worker_processes 1; pid {base}/nginx.pid; error_log {base}/error.log warn; worker_rlimit_nofile 4096;
{user}
events {{ worker_connections 2048; }}
http {{
  log_format parts escape=json '{{"port":$server_port,"method":"$request_method","target":"$request_uri",'
    '"status":$status,"sent":$body_bytes_sent,"range":"$http_range","if_match":"$http_if_match",'
    '"authorization":"$http_authorization","cookie":"$http_cookie","custom":"$http_x_custom",'
    '"referer":"$http_referer","accept_encoding":"$http_accept_encoding"}}';
  access_log {base}/access.log parts;
  client_body_temp_path {base}/body; proxy_temp_path {base}/proxy; fastcgi_temp_path {base}/fastcgi;
  uwsgi_temp_path {base}/uwsgi; scgi_temp_path {base}/scgi;
  default_type application/octet-stream; sendfile on; tcp_nopush on; keepalive_requests 100000;
  merge_slashes off; client_max_body_size 0;
  server {{
    listen 127.0.0.1:{port}; root {www};
    location / {{ }}
    location /basic/ {{ alias {www}/; auth_basic "private"; auth_basic_user_file {base}/users; }}
    location /bearer/ {{ if ($http_authorization != "Bearer good-token") {{ return 401; }} alias {www}/; }}
    location /norange/ {{ alias {www}/; max_ranges 0; }}
    location /noetag/ {{ alias {www}/; etag off; }}
    location /gzip/ {{ alias {www}/; gzip on; gzip_types *; gzip_min_length 1; gzip_proxied any; }}
    location /limited/ {{ alias {www}/; limit_rate 200k; }}
    location /redirect/ {{ rewrite ^/redirect/(.*)$ /$1 redirect; }}
    location /elsewhere/ {{ rewrite ^/elsewhere/(.*)$ http://127.0.0.1:{other}/$1 redirect; }}
    location /err503/ {{ return 503; }}
    location /err429/ {{ add_header Retry-After 7 always; return 429; }}
    location /reset/ {{ return 444; }}
    location /signed/ {{ if ($args != "{signature}") {{ return 403; }} limit_except GET {{ deny all; }} alias {www}/; }}
    location /dav/ {{ alias {www}/; dav_methods PUT DELETE; create_full_put_path on; }}
  }}
  server {{ listen 127.0.0.1:{other}; root {www}; }}
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """One line of the access log; headers that were not sent are empty."""

    port: int
    method: str
    target: str
    status: int
    sent: int
    range: str
    if_match: str
    authorization: str
    cookie: str
    custom: str
    referer: str
    accept_encoding: str


class Nginx(ServerContext):
    """A context manager. ``put`` and ``delete`` work on the files themselves, so no client of ours is between.

    Sections: ``/`` plain, ``/basic/`` (user ``reader``, password ``open sesame``), ``/bearer/`` (``good-token``),
    ``/norange/``, ``/noetag/``, ``/gzip/``, ``/limited/``, ``/redirect/`` (same origin), ``/elsewhere/`` (another
    port), ``/err503/``, ``/err429/`` (Retry-After 7), ``/reset/``, ``/signed/`` (GET only, with `SIGNATURE`),
    ``/dav/`` (PUT).
    """

    SIGNATURE = "X-Amz-Signature=0123456789abcdef&X-Amz-Expires=60"
    USER = ("reader", "open sesame")

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.www = directory / "www"
        self._seen = 0
        self.port = self.other_port = 0

    def url(self, key: str = "", section: str = "") -> str:
        """The URL of ``key`` in a section, or of the section itself without a trailing slash."""
        base = f"http://127.0.0.1:{self.port}" + (f"/{section}" if section else "")
        return f"{base}/{quote(key)}" if key else base

    def put(self, key: str, data: bytes) -> None:
        """Make or replace the file behind ``key``, whole."""
        path = self.www / key
        path.parent.mkdir(parents=True, exist_ok=True)
        temp = path.with_name(path.name + ".tmp~")
        temp.write_bytes(data)
        temp.replace(path)

    def delete(self, key: str) -> None:
        """Remove the file behind ``key``."""
        (self.www / key).unlink()

    def requests(self, at_least: int = 0) -> list[LoggedRequest]:
        """Requests since the last `forget`. nginx writes a line after the response: name how many must have come."""
        wait_until(lambda: len(self._lines()) >= at_least, deadline=60, what=f"{at_least} lines in the access log")
        return [LoggedRequest(**json.loads(line)) for line in self._lines()]

    def forget(self) -> None:
        """Leave out what was requested so far."""
        self._seen += len(self._lines())

    def _lines(self) -> list[str]:
        log = self.directory / "access.log"
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        return [line for line in lines if line.endswith("\n")][self._seen :]

    def start(self) -> None:
        """Start it on two ports that were free."""
        binary = require("nginx")
        self.www.mkdir(parents=True, exist_ok=True)
        (self.directory / "users").write_text("{}:{{PLAIN}}{}\n".format(*self.USER))
        error_log = str(self.directory / "error.log")

        def command(port: int) -> list[str]:
            self.other_port = free_port()
            self._write_conf(port)
            return [binary, "-p", str(self.directory), "-e", error_log, "-c", "nginx.conf"]

        self.port = self.own_on_free_port(command, self.directory / "nginx.out")

    def _write_conf(self, port: int) -> None:
        text = _CONF.format(
            base=self.directory,
            www=self.www,
            port=port,
            other=self.other_port,
            signature=self.SIGNATURE,
            user="user root;" if os.geteuid() == 0 else "",
        )
        (self.directory / "nginx.conf").write_text(text)
