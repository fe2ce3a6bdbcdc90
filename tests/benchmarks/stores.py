"""A near and a far store for benchmarks: nginx over files, with or without latency and a rate for each connection.

*near* answers at once. *far* waits 30 ms before the first byte and gives each connection 80 MB/s.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from servers.process import ServerProcess, free_port

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
        near, far = free_port(), free_port()
        config = run / "nginx.conf"
        config.write_text(
            CONFIG.format(
                user="user root;" if os.getuid() == 0 else "", modules=MODULES, run=run, root=root, near=near, far=far
            )
        )
        # nginx listens on both ports before it answers on one. It needs its lua module (Debian: libnginx-mod-http-lua).
        process = ServerProcess([nginx, "-c", str(config), "-p", str(run)], near, run / "nginx.out")
        try:
            yield Stores(f"http://127.0.0.1:{near}", f"http://127.0.0.1:{far}", run)
        finally:
            process.stop()
