"""The invented store, so that the example runs offline: objects in memory, one HTTP request each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


class LakeServer(ThreadingHTTPServer):
    """Holds objects by (lake, key); ``token`` opens it; the next ``failures`` answers are 503."""

    request_queue_size = 128

    def __init__(self, token: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.token = token
        self.objects: dict[tuple[str, str], bytes] = {}
        self.failures = 0


class Handler(BaseHTTPRequestHandler):
    server: LakeServer

    def do_GET(self) -> None:
        _, _, lake, key = self.path.split("/", 3)
        data = self.server.objects.get((unquote(lake), unquote(key)))
        if self.server.failures:
            self.server.failures -= 1
            self.answer(503)
        elif self.headers["X-Lake-Token"] != self.server.token:
            self.answer(403)
        elif data is None:
            self.answer(404)
        else:
            self.answer(200, data)

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the terminal quiet."""


@contextmanager
def lake_server(token: str) -> Iterator[LakeServer]:
    with LakeServer(token) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
