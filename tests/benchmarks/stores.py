"""A near and a far store for benchmarks: nginx over files, with or without latency and a rate for each connection.

*near* answers at once. *far* waits 30 ms before the first byte and gives each connection 80 MB/s.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MODULES = Path("/usr/lib/nginx/modules")

CONFIG = """
{user}
load_module {modules}/ndk_http_module.so;
load_module {modules}/ngx_http_lua_module.so;
worker_processes 2; daemon off; pid {run}/nginx.pid; error_log {run}/error.log warn;
events {{ worker_connections 4096; }}
http {{
  log_format requests '$request_method $uri $status $body_bytes_sent $http_range';
  client_body_temp_path {run}/body; proxy_temp_path {run}/proxy; fastcgi_temp_path {run}/fastcgi;
  uwsgi_temp_path {run}/uwsgi; scgi_temp_path {run}/scgi;
  sendfile on; tcp_nopush on; keepalive_requests 100000; default_type application/octet-stream; etag on;
  server {{ listen 127.0.0.1:{far}; root {root}; access_log {run}/far.log requests; limit_rate 80m;
    access_by_lua_block {{ ngx.sleep(0.03) }} location / {{ max_ranges 8; }} }}
  server {{ listen 127.0.0.1:{near}; root {root}; access_log {run}/near.log requests; location / {{ max_ranges 8; }} }}
}}
"""


@dataclass(frozen=True, slots=True)
class Stores:
    """Base URLs of the two stores, and where their access logs lie."""

    near: str
    far: str
    logs: Path


@contextmanager
def stores(root: Path) -> Iterator[Stores]:
    """Serve the files below ``root`` until the block ends."""
    nginx = shutil.which("nginx") or "/usr/sbin/nginx"
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        near, far = _free_port(), _free_port()
        config = run / "nginx.conf"
        config.write_text(
            CONFIG.format(
                user="user root;" if os.getuid() == 0 else "", modules=MODULES, run=run, root=root, near=near, far=far
            )
        )
        process = subprocess.Popen([nginx, "-c", str(config), "-p", str(run)], stderr=subprocess.DEVNULL)
        try:
            for port in (near, far):
                _wait_until_open(port, process)
            yield Stores(f"http://127.0.0.1:{near}", f"http://127.0.0.1:{far}", run)
        finally:
            process.terminate()
            process.wait(10)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_open(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)
    raise RuntimeError("nginx did not start; it needs its lua module (Debian: libnginx-mod-http-lua)")
