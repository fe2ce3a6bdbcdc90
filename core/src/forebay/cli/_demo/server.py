"""The demo's HTTP server: static files with ranges, ETags and a pause before each answer.

It runs as a process of its own, started by path with nothing but the standard library, so that it shares no interpreter
lock with the reader that the demo measures. Its standard input is a pipe from the parent: when that ends, because the
parent is done or was killed, the server removes the demo's directory and ends too.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, root: Path, latency: float) -> None:
        self.root = root.resolve()
        self.latency = latency
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no news; anything else is told as usual."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # the base says Any in two ways


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # the head leaves at once, the body follows through sendfile
    server: _Server

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal belongs to the demo."""

    def _answer(self, *, body: bool) -> None:
        time.sleep(self.server.latency)
        path = self._path()
        if path is None:
            self._head(HTTPStatus.NOT_FOUND, 0)
            return
        with open(path, "rb") as file:
            stat = os.fstat(file.fileno())
            etag = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'
            if self.headers.get("If-Match", etag) not in (etag, "*"):
                self._head(HTTPStatus.PRECONDITION_FAILED, 0, etag)
                return
            if self.headers.get("If-None-Match") == etag:
                self._head(HTTPStatus.NOT_MODIFIED, 0, etag)
                return
            span = self._span(stat.st_size)
            if span is None:
                self._head(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, 0, etag, f"bytes */{stat.st_size}")
                return
            start, stop, partial = span
            status = HTTPStatus.PARTIAL_CONTENT if partial else HTTPStatus.OK
            self._head(status, stop - start, etag, f"bytes {start}-{stop - 1}/{stat.st_size}" if partial else None)
            if body and stop > start:
                self.connection.sendfile(file, start, stop - start)

    def _path(self) -> Path | None:
        path = (self.server.root / unquote(urlsplit(self.path).path).lstrip("/")).resolve()
        return path if path.is_relative_to(self.server.root) and path.is_file() else None

    def _span(self, size: int) -> tuple[int, int, bool] | None:
        """The bytes asked for as (start, stop, whether it is a range); None where they do not lie in the file."""
        match = _RANGE.fullmatch(self.headers.get("Range", ""))
        if match is None or match.group(0) == "bytes=-":
            return 0, size, False
        first, last = match.groups()
        if not first:
            return max(size - int(last), 0), size, True
        start = int(first)
        return (start, min(int(last) + 1, size) if last else size, True) if start < size else None

    def _head(self, status: HTTPStatus, length: int, etag: str | None = None, content_range: str | None = None) -> None:
        self.send_response(status)
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(length))
        self.send_header("Accept-Ranges", "bytes")
        if etag:
            self.send_header("ETag", etag)
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()


def _end_with_parent(debris: Path) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    shutil.rmtree(debris, ignore_errors=True)
    os._exit(0)


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path, help="what is served")
    parser.add_argument("debris", type=Path, help="the directory to remove when the parent is gone")
    parser.add_argument("latency", type=float, help="seconds before each answer")
    arguments = parser.parse_args()
    server = _Server(arguments.root, arguments.latency)
    threading.Thread(target=_end_with_parent, args=(arguments.debris,), daemon=True).start()
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _main()
