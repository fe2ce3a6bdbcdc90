"""The HTTP/1.1 that `FaultServer` speaks, as far as it needs no connection: parsing, preconditions, ranges, bodies."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import unquote

from forebay.testing._faults import Fault, ServedRequest

__all__ = ["MalformedRequestError", "Response", "Served", "find_response", "plain", "read_request"]


class MalformedRequestError(Exception):
    """Bytes that are no HTTP/1.1 request."""


@dataclass(slots=True)
class Served:
    """An object as the server holds it. ``etag`` is sent as it stands; an empty one is not sent."""

    data: bytes
    etag: str
    headers: dict[str, str] = field(default_factory=dict)
    modified: str = field(default_factory=lambda: formatdate(usegmt=True))

    @classmethod
    def make(cls, data: bytes, etag: str | None, headers: dict[str, str]) -> Served:
        """An object whose etag is a strong digest of its bytes unless another is given."""
        if etag is None:
            etag = f'"{hashlib.blake2b(data, digest_size=12).hexdigest()}"'
        return cls(data, etag, headers)


@dataclass(slots=True)
class Response:
    """A response before it is framed. ``body`` is None where none may follow (HEAD, 304)."""

    status: int
    headers: dict[str, str]
    body: memoryview = field(default_factory=lambda: memoryview(b""))
    length: int = 0

    def head(self, fault: Fault, *, keep_alive: bool) -> bytes:
        """The status line and the headers, with the fault's headers and framing."""
        headers = dict(self.headers)
        if fault.framing == "chunked":
            headers["Transfer-Encoding"] = "chunked"
        elif fault.framing == "length" and self.status != HTTPStatus.NOT_MODIFIED:
            headers["Content-Length"] = str(self.length)
        headers["Connection"] = "keep-alive" if keep_alive else "close"
        for name, value in fault.headers.items():
            for old in [old for old in headers if old.lower() == name.lower()]:
                del headers[old]
            if value:
                headers[name] = value
        try:
            reason = HTTPStatus(self.status).phrase
        except ValueError:
            reason = "Unknown"
        lines = [f"HTTP/1.1 {self.status} {reason}", *(f"{name}: {value}" for name, value in headers.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def plain(status: int, text: str = "", **headers: str) -> Response:
    """A response that carries a line of text. Underscores in header names stand for hyphens."""
    body = text.encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status, {"Content-Type": "text/plain", **named}, memoryview(body), len(body))


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ServedRequest | None:
    """Read one request with its body; None where the client closed the connection between two requests."""
    line = await reader.readline()
    if not line:
        return None
    try:
        method, target, version = line.decode("latin-1").split()
    except ValueError:
        raise MalformedRequestError(f"not a request line: {line[:80]!r}") from None
    if not version.startswith("HTTP/1."):
        raise MalformedRequestError(f"not HTTP/1: {version}")
    headers: dict[str, str] = {}
    while (line := await reader.readline()) not in (b"\r\n", b"\n"):
        if not line or len(headers) > 200:
            raise MalformedRequestError("headers without an end")
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise MalformedRequestError(f"not a header: {line[:80]!r}")
        headers[name.strip().lower()] = value.strip()
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    path, _, query = target.partition("?")
    key = unquote(path, errors="surrogateescape").removeprefix("/")
    body = await _read_body(reader, headers)
    return ServedRequest(method=method, target=target, key=key, query=query, headers=headers, body=body)


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    pieces: list[bytes] = []
    while size := int((await reader.readline()).partition(b";")[0], 16):
        pieces.append(await reader.readexactly(size))
        await reader.readline()
    while (await reader.readline()).strip():  # trailers, up to the empty line
        pass
    return b"".join(pieces)


def find_response(request: ServedRequest, served: Served | None, fault: Fault) -> Response:
    """Answer a GET or HEAD for ``served`` by the rules of RFC 9110, bent by ``fault``."""
    if served is None:
        return plain(HTTPStatus.NOT_FOUND, "no such object\n")
    headers = {"Accept-Ranges": "bytes", "Last-Modified": served.modified, "Content-Type": "application/octet-stream"}
    if served.etag:
        headers["ETag"] = served.etag
    headers.update(served.headers)
    if (if_match := request.headers.get("if-match")) is not None and not _matches(if_match, served.etag, strong=True):
        return plain(HTTPStatus.PRECONDITION_FAILED, "another version\n")
    if_none_match = request.headers.get("if-none-match")
    if if_none_match is not None and _matches(if_none_match, served.etag, strong=False):
        return Response(HTTPStatus.NOT_MODIFIED, headers)
    if fault.gzip:
        data = gzip.compress(served.data, mtime=0)
        headers["Content-Encoding"] = "gzip"
        return _whole(headers, data, fault)
    if request.method == "GET" and not fault.ignore_range and _range_applies(request, served):
        return _ranged(request, served, headers, fault)
    return _whole(headers, served.data, fault)


def _whole(headers: dict[str, str], data: bytes, fault: Fault) -> Response:
    return Response(HTTPStatus.OK, headers, _bend(data, fault), len(data))


def _range_applies(request: ServedRequest, served: Served) -> bool:
    """Whether there is one satisfiable kind of range; several ranges and unknown units may be ignored."""
    value = request.range
    if value is None or not value.startswith("bytes=") or "," in value:
        return False
    if_range = request.headers.get("if-range")
    return if_range is None or (if_range == served.etag and not if_range.startswith("W/"))


def _ranged(request: ServedRequest, served: Served, headers: dict[str, str], fault: Fault) -> Response:
    size = len(served.data)
    first, _, last = (request.range or "").removeprefix("bytes=").partition("-")
    try:
        if first:
            start, stop = int(first), min(int(last) + 1, size) if last else size
        else:
            start, stop = max(size - int(last), 0), size
    except ValueError:
        return _whole(headers, served.data, fault)
    if first and last and int(last) < int(first):
        return _whole(headers, served.data, fault)
    if start >= size or start >= stop:
        return plain(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "no such range\n", Content_Range=f"bytes */{size}")
    start, stop = (max(start + fault.shift_range, 0), max(min(stop + fault.shift_range, size), 0))
    claimed = fault.content_range if fault.content_range is not None else f"bytes {start}-{stop - 1}/{size}"
    headers["Content-Range"] = claimed
    data = served.data[start:stop]
    return Response(HTTPStatus.PARTIAL_CONTENT, headers, _bend(data, fault), len(data))


def _bend(data: bytes, fault: Fault) -> memoryview:
    """The body with one byte flipped and bytes added, as the fault says; the promised length stays."""
    if fault.corrupt_at is None and not fault.extra:
        return memoryview(data)
    bent = bytearray(data) + bytes(fault.extra)
    if fault.corrupt_at is not None and fault.corrupt_at < len(data):
        bent[fault.corrupt_at] ^= 0xFF
    return memoryview(bytes(bent))


def _matches(header: str, etag: str, *, strong: bool) -> bool:
    """Whether an If-Match (strong comparison) or If-None-Match (weak) header covers ``etag``."""
    if header.strip() == "*":
        return True
    if not etag or (strong and etag.startswith("W/")):
        return False
    wanted = [tag.strip() for tag in header.split(",")]
    if strong:
        return etag in wanted
    return etag.removeprefix("W/") in [tag.removeprefix("W/") for tag in wanted]
