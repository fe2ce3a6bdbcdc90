"""`FaultServer`: a small HTTP/1.1 server that serves objects from memory and misbehaves exactly as it is told."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import struct
import threading
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from types import TracebackType
from urllib.parse import quote

from forebay.testing._faults import Fault, Script, ServedRequest
from forebay.testing._http import MalformedRequestError, Response, Served, find_response, plain, read_request

__all__ = ["FaultServer"]

_PIECE = 256 * 1024
_GOOD = Fault()


class FaultServer:
    """An HTTP/1.1 server on a free loopback port, in its own thread, as a context manager.

    It does ranges, ETag, If-Match, If-None-Match, If-Range, keep-alive; all that it does wrong it was told through
    `script`. Every method may be called from any thread while it serves.

    Args:
        tls: Serve https with this context.
        username: Ask for basic authentication.
        password: The password that goes with it.
        bearer_token: Ask for this bearer token.
        require_query: Refuse (403) any request whose query string is another, as a presigned URL does.
        writable: Accept PUT and DELETE.
        latency: Seconds before each response.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        username: str | None = None,
        password: str = "",
        bearer_token: str | None = None,
        require_query: str | None = None,
        writable: bool = False,
        latency: float = 0.0,
    ) -> None:
        self._tls = tls
        self._authorization: str | None = None
        if username is not None:
            self._authorization = "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()
        elif bearer_token is not None:
            self._authorization = f"Bearer {bearer_token}"
        self._require_query = require_query
        self._writable = writable
        self.latency = latency
        self._changed = threading.Condition()
        self._objects: dict[str, Served] = {}
        self._swaps: dict[str, list[tuple[int, Served]]] = {}
        self._scripts: list[Script] = []
        self._requests: list[ServedRequest] = []
        self._active = 0
        #: The largest number of requests that were being answered at one time.
        self.peak = 0
        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    # -- what tests say -------------------------------------------------------------------------------------------

    def url(self, key: str = "") -> str:
        """The URL of ``key`` (percent-encoded), or of the root without a trailing slash."""
        base = f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"
        return f"{base}/{quote(key, safe='/', errors='surrogateescape')}" if key else base

    def put(self, key: str, data: bytes, etag: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        """Hold ``data`` under ``key``. ``etag=None`` makes a strong one from the bytes, ``""`` sends none."""
        with self._changed:
            self._objects[key] = Served.make(data, etag, dict(headers or {}))

    def swap(self, key: str, data: bytes, *, after: int, etag: str | None = None) -> None:
        """Replace the object once ``after`` more requests for it were answered (or are being answered)."""
        with self._changed:
            self._swaps.setdefault(key, []).append((after, Served.make(data, etag, {})))

    def delete(self, key: str) -> None:
        """Forget the object; a missing one is no error."""
        with self._changed:
            self._objects.pop(key, None)

    def get(self, key: str) -> bytes | None:
        """The bytes held under ``key``."""
        with self._changed:
            served = self._objects.get(key)
            return None if served is None else served.data

    def etag(self, key: str) -> str:
        """The etag of the object as it is sent."""
        with self._changed:
            return self._objects[key].etag

    def script(
        self,
        key: str | None,
        fault: Fault,
        *,
        times: int | None = 1,
        skip: int = 0,
        methods: Sequence[str] = ("GET", "HEAD"),
    ) -> None:
        """Bend the next ``times`` responses (None: all) for ``key`` (None: any) after ``skip`` good ones.

        A response takes one fault, the earliest scripted one that still has a turn.
        """
        with self._changed:
            self._scripts.append(Script(key, fault, frozenset(methods), skip, times))

    def unscript(self) -> None:
        """Forget every scripted fault."""
        with self._changed:
            self._scripts.clear()

    @property
    def requests(self) -> list[ServedRequest]:
        """All requests so far, in order of arrival."""
        with self._changed:
            return list(self._requests)

    def requests_for(self, key: str, method: str | None = None) -> list[ServedRequest]:
        """The requests for ``key`` so far, of one method or of all."""
        return [one for one in self.requests if one.key == key and method in (None, one.method)]

    def forget_requests(self) -> None:
        """Empty the record of requests."""
        with self._changed:
            self._requests.clear()
            self.peak = self._active

    def wait_for_requests(self, count: int, *, key: str | None = None, timeout: float = 30.0) -> None:
        """Return once ``count`` requests (for ``key``) have arrived; TimeoutError past the deadline."""

        def arrived() -> int:
            return sum(1 for one in self._requests if key is None or one.key == key)

        with self._changed:
            if not self._changed.wait_for(lambda: arrived() >= count, timeout):
                raise TimeoutError(f"{arrived()} of {count} requests arrived within {timeout} s")

    # -- life -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> FaultServer:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="forebay-fault-server", daemon=True)
        self._thread.start()
        ready.wait()
        if self._failure is not None:
            raise RuntimeError("the server did not start") from self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        thread, loop, stop = self._thread, self._loop, self._stop
        if thread is None or loop is None or stop is None:
            return
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        if thread.is_alive():
            raise RuntimeError("the server's thread did not end")
        self._thread = None
        if self._failure is not None and error is None:
            raise RuntimeError("the server broke") from self._failure

    def _run(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as error:  # noqa: BLE001 - a thread's edge: the error is raised again by the owner
            self._failure = error
        finally:
            ready.set()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        connections: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            writer.transport.set_write_buffer_limits(0)  # a drain waits for the kernel: cuts come where they should
            try:
                await self._talk(reader, writer)
            except asyncio.CancelledError:
                pass  # only the server's own end cancels; asyncio.streams would log a cancelled connection as an error
            finally:
                connections.discard(task)
                writer.transport.abort()

        server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=self._tls, backlog=512, limit=2**20)
        try:
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            await self._stop.wait()
        finally:
            server.close()
            for task in connections:
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)

    # -- one connection -------------------------------------------------------------------------------------------

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await read_request(reader, writer)) is not None:
                with self._changed:
                    self._active += 1
                    self.peak = max(self.peak, self._active)
                try:
                    keep_alive = await self._answer(request, writer)
                finally:
                    with self._changed:
                        self._active -= 1
                if not keep_alive:
                    break
            writer.close()
            await writer.wait_closed()
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, TimeoutError):
            return  # the client went away in the middle: its business
        except (MalformedRequestError, ValueError) as error:
            writer.write(plain(HTTPStatus.BAD_REQUEST, f"{error}\n").head(_GOOD, keep_alive=False))
            writer.close()

    def _take(self, request: ServedRequest) -> tuple[Served | None, Fault]:
        """Record the request; find its object as it is now and its fault."""
        with self._changed:
            self._requests.append(request)
            served = self._objects.get(request.key)
            fault = next((script.fault for script in self._scripts if script.take(request)), _GOOD)
            waiting = [(count - 1, new) for count, new in self._swaps.get(request.key, [])]
            for count, new in waiting:
                if count == 0:
                    self._objects[request.key] = new
            self._swaps[request.key] = [(count, new) for count, new in waiting if count > 0]
            self._changed.notify_all()
        return served, fault

    async def _answer(self, request: ServedRequest, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether the connection can go on."""
        served, fault = self._take(request)
        if delay := self.latency + fault.delay:
            await asyncio.sleep(delay)
        if fault.after is None and not await self._survives(fault, writer):
            return False
        response = self._respond(request, served, fault)
        keep_alive = fault.framing != "close" and not fault.extra and request.headers.get("connection") != "close"
        writer.write(response.head(fault, keep_alive=keep_alive))
        if request.method == "HEAD" or response.status == HTTPStatus.NOT_MODIFIED:
            await writer.drain()
            return keep_alive
        return await self._send_body(response.body, fault, writer) and keep_alive

    def _respond(self, request: ServedRequest, served: Served | None, fault: Fault) -> Response:
        if self._authorization is not None and request.headers.get("authorization") != self._authorization:
            challenge = self._authorization.partition(" ")[0] + ' realm="test"'
            return plain(HTTPStatus.UNAUTHORIZED, "who are you?\n", WWW_Authenticate=challenge)
        if self._require_query is not None and request.query != self._require_query:
            return plain(HTTPStatus.FORBIDDEN, "the signature does not match\n")
        if fault.status is not None:
            return Response(fault.status, {"Content-Type": "text/plain"}, memoryview(fault.body), len(fault.body))
        if request.method in ("GET", "HEAD"):
            return find_response(request, served, fault)
        if self._writable and request.method in ("PUT", "DELETE"):
            return self._write(request)
        return plain(HTTPStatus.METHOD_NOT_ALLOWED, "no such method here\n", Allow="GET, HEAD")

    def _write(self, request: ServedRequest) -> Response:
        if request.method == "DELETE":
            self.delete(request.key)
            return plain(HTTPStatus.NO_CONTENT)
        if request.headers.get("if-none-match") == "*" and self.get(request.key) is not None:
            return plain(HTTPStatus.PRECONDITION_FAILED, "it exists\n")
        self.put(request.key, request.body)
        return plain(HTTPStatus.CREATED, ETag=self.etag(request.key))

    async def _send_body(self, body: memoryview, fault: Fault, writer: asyncio.StreamWriter) -> bool:
        """Send the body, in the fault's pieces and up to its end; False where the connection is finished."""
        piece = fault.drip[0] if fault.drip else _PIECE
        sent = 0
        stops = fault.after if fault.after is not None else -1
        while True:
            if sent == stops:
                await writer.drain()
                if not await self._survives(fault, writer):
                    return False
                stops = -1
            if sent >= len(body):
                break
            end = min(sent + piece, len(body))
            if sent < stops:
                end = min(end, stops)
            self._write_piece(body[sent:end], fault, writer)
            sent = end
            await writer.drain()
            if fault.drip:
                await asyncio.sleep(fault.drip[1])
        if fault.framing == "chunked":
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        return fault.framing != "close"

    @staticmethod
    def _write_piece(piece: memoryview, fault: Fault, writer: asyncio.StreamWriter) -> None:
        if fault.framing == "chunked":
            writer.write(b"%x\r\n" % len(piece))
            writer.write(piece)
            writer.write(b"\r\n")
        else:
            writer.write(piece)

    @staticmethod
    async def _survives(fault: Fault, writer: asyncio.StreamWriter) -> bool:
        """Let the fault's gate, hang, reset or cut happen; whether the connection lives on."""
        if fault.gate is not None:
            await fault.gate.passed()
        if fault.hang:
            await asyncio.Event().wait()
        if fault.reset:
            raw: socket.socket = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return False
        return not fault.cut
