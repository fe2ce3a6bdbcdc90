"""The metadata service of a machine in AWS, version 2 only: it counts who asks, and can be told to be too busy."""

from __future__ import annotations

import json
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

__all__ = ["Imds"]

_LIST = "/latest/meta-data/iam/security-credentials/"


class Imds:
    """A context manager on a free loopback port.

    ``busy`` is how many of the next requests it refuses (503), ``role`` the machine's (empty: it has none), a service
    of ``version`` 1 knows no tokens, and one that ``fails`` has a role and no keys of it.
    """

    KEY, SECRET, SESSION = "ASIAFROMTHEMACHINE", "secret-of-the-machine-0123456789", "session-of-the-machine-0123456789"

    def __init__(self) -> None:
        self.busy = 0
        self.role = "pond-reader"
        self.version = 2
        self.fails = False
        #: Requests by kind: ``token``, ``role``, ``keys``, ``refused``, and ``v1`` (without a token that it wants).
        self.hits: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="imds")

    @property
    def endpoint(self) -> str:
        """Where it answers, for ``AWS_EC2_METADATA_SERVICE_ENDPOINT``."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, method: str, path: str, token: str | None) -> tuple[int, str]:
        """Count a request; status and body."""
        with self._lock:
            if self.busy > 0:
                self.busy -= 1
                self.hits["refused"] += 1
                return 503, ""
            if method == "PUT" and (self.version == 1 or path != "/latest/api/token"):
                self.hits["refused"] += 1
                return 405, ""
            if method == "PUT":
                self.hits["token"] += 1
                return 200, "token-of-the-service"
            if self.version == 2 and token != "token-of-the-service":
                self.hits["v1"] += 1
                return 401, ""
            if path == _LIST:
                self.hits["role"] += 1
                return (200, self.role) if self.role else (404, "")
            if path == _LIST + self.role:
                self.hits["keys"] += 1
                return 200, json.dumps({"Code": "AssumeRoleUnauthorizedAccess"} if self.fails else self._keys())
            return 404, ""

    def _keys(self) -> dict[str, str]:
        now = datetime.now(UTC)
        form = "%Y-%m-%dT%H:%M:%SZ"
        return {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "AccessKeyId": self.KEY,
            "SecretAccessKey": self.SECRET,
            "Token": self.SESSION,
            "LastUpdated": now.strftime(form),
            "Expiration": (now + timedelta(hours=6)).strftime(form),
        }

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                status, body = service.answer(self.command, self.path, self.headers.get("X-aws-ec2-metadata-token"))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                if status == 200 and self.command == "PUT":
                    self.send_header("X-aws-ec2-metadata-token-ttl-seconds", "21600")
                self.send_header("Connection", "close")
                self.close_connection = True
                self.end_headers()
                self.wfile.write(body.encode())

            do_GET = do_PUT = _answer

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: stderr belongs to the tests."""

        return Handler

    def __enter__(self) -> Imds:
        self._server.daemon_threads = True
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()
