"""The fault server does what it is told, seen by clients that are not ours (http.client and a bare socket)."""

from __future__ import annotations

import gzip
import http.client
import socket
import ssl
import threading
from time import monotonic
from urllib.parse import urlsplit

import pytest
import trustme

from forebay.testing import Fault, FaultServer, Gate


def ask(
    server: FaultServer, key: str, method: str = "GET", headers: dict[str, str] | None = None, body: bytes | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, urlsplit(server.url(key)).path or "/", body=body, headers=headers or {})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


@pytest.mark.parametrize("key", ["a", "a b/ä#?%20+[1].bin", "//a", "a//b/", "x=y&z@"])
def test_keys_are_exact_bytes(server: FaultServer, key: str) -> None:
    server.put(key, b"data")
    assert ask(server, key)[0::2] == (200, b"data")
    assert [one.key for one in server.requests] == [key]
    assert ask(server, key + "x")[0] == 404


@pytest.mark.parametrize(
    ("asked", "status", "said", "got"),
    [
        ("bytes=0-3", 206, "bytes 0-3/10", b"0123"),
        ("bytes=8-99", 206, "bytes 8-9/10", b"89"),
        ("bytes=7-", 206, "bytes 7-9/10", b"789"),
        ("bytes=-4", 206, "bytes 6-9/10", b"6789"),
        ("bytes=-99", 206, "bytes 0-9/10", b"0123456789"),
        ("bytes=10-", 416, "bytes */10", None),
        ("bytes=3-1", 200, None, b"0123456789"),
        ("items=1-2", 200, None, b"0123456789"),
        ("bytes=0-1,4-5", 200, None, b"0123456789"),
    ],
)
def test_ranges(server: FaultServer, asked: str, status: int, said: str | None, got: bytes | None) -> None:
    server.put("a", b"0123456789")
    answer, headers, body = ask(server, "a", headers={"Range": asked})
    assert (answer, headers.get("content-range")) == (status, said)
    if got is not None:
        assert body == got
    assert server.requests[0].range == asked


def test_range_of_empty_object_is_416(server: FaultServer) -> None:
    server.put("a", b"")
    assert ask(server, "a", headers={"Range": "bytes=0-0"})[0] == 416
    assert ask(server, "a")[0::2] == (200, b"")


def test_preconditions(server: FaultServer) -> None:
    server.put("a", b"data", etag='"1"')
    server.put("w", b"data", etag='W/"1"')
    server.put("n", b"data", etag="")
    assert ask(server, "a", headers={"If-Match": '"0", "1"'})[0] == 200
    assert ask(server, "a", headers={"If-Match": '"2"'})[0] == 412
    assert ask(server, "w", headers={"If-Match": 'W/"1"'})[0] == 412
    assert ask(server, "a", headers={"If-None-Match": '"1"'})[0::2] == (304, b"")
    assert ask(server, "w", headers={"If-None-Match": '"1"'})[0] == 304
    assert ask(server, "a", headers={"If-None-Match": '"2"'})[0] == 200
    assert "etag" not in ask(server, "n")[1]
    assert ask(server, "a", headers={"Range": "bytes=0-1", "If-Range": '"2"'})[0] == 200
    assert ask(server, "a", headers={"Range": "bytes=0-1", "If-Range": '"1"'})[0] == 206


def test_head_has_the_length_and_no_body(server: FaultServer) -> None:
    server.put("a", b"data")
    status, headers, body = ask(server, "a", "HEAD")
    assert (status, headers["content-length"], body) == (200, "4", b"")


def test_faults_are_counted_and_skipped(server: FaultServer) -> None:
    server.put("a", b"data")
    server.script("a", Fault(status=503, headers={"Retry-After": "1"}), times=2, skip=1)
    seen = [ask(server, "a") for _ in range(4)]
    assert [status for status, _, _ in seen] == [200, 503, 503, 200]
    assert seen[1][1]["retry-after"] == "1"
    server.script(None, Fault(status=405), times=None, methods=["HEAD"])
    assert [ask(server, "a", method)[0] for method in ("HEAD", "GET", "HEAD")] == [405, 200, 405]
    server.unscript()
    assert ask(server, "a", "HEAD")[0] == 200


def test_range_faults(server: FaultServer) -> None:
    server.put("a", b"0123456789")
    wanted = {"Range": "bytes=2-4"}
    server.script("a", Fault(ignore_range=True))
    server.script("a", Fault(shift_range=1))
    server.script("a", Fault(content_range="bytes 0-2/10"))
    assert ask(server, "a", headers=wanted)[0::2] == (200, b"0123456789")
    status, headers, body = ask(server, "a", headers=wanted)
    assert (status, headers["content-range"], body) == (206, "bytes 3-5/10", b"345")
    status, headers, body = ask(server, "a", headers=wanted)
    assert (headers["content-range"], body) == ("bytes 0-2/10", b"234")


def test_bodies_of_other_shapes(server: FaultServer) -> None:
    data = bytes(range(256)) * 2000
    server.put("a", data)
    server.script("a", Fault(gzip=True))
    server.script("a", Fault(framing="chunked"))
    server.script("a", Fault(framing="close"))
    server.script("a", Fault(corrupt_at=5))
    _, headers, body = ask(server, "a")
    assert headers["content-encoding"] == "gzip"
    assert int(headers["content-length"]) == len(body)
    assert gzip.decompress(body) == data
    _, headers, body = ask(server, "a")
    assert (headers["transfer-encoding"], "content-length" in headers, body == data) == ("chunked", False, True)
    _, headers, body = ask(server, "a")
    assert ("transfer-encoding" in headers, "content-length" in headers, body == data) == (False, False, True)
    body = ask(server, "a")[2]
    assert [place for place in range(len(data)) if body[place] != data[place]] == [5]


def raw(server: FaultServer, key: str) -> tuple[bytes, type[Exception] | None]:
    """Everything that comes back on a bare socket, and the error that ended it."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(f"GET /{key} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        try:
            while piece := client.recv(65536):
                received += piece
        except ConnectionError as error:
            return received, type(error)
    return received, None


def test_broken_bodies(server: FaultServer) -> None:
    server.put("a", b"x" * 300_000)
    server.script("a", Fault(cut=True, after=200_001))
    server.script("a", Fault(reset=True, after=100))
    server.script("a", Fault(reset=True))
    server.script("a", Fault(cut=True))
    server.script("a", Fault(extra=7))
    head, _, body = raw(server, "a")[0].partition(b"\r\n\r\n")
    assert b"Content-Length: 300000" in head
    assert body == b"x" * 200_001
    received, error = raw(server, "a")
    assert (received.partition(b"\r\n\r\n")[2], error) == (b"x" * 100, ConnectionResetError)
    assert raw(server, "a") == (b"", ConnectionResetError)
    assert raw(server, "a") == (b"", None)
    assert len(raw(server, "a")[0].partition(b"\r\n\r\n")[2]) == 300_007


def test_pace_of_delay_drip_and_latency(server: FaultServer) -> None:
    server.put("a", b"x" * 40)
    for fault in (Fault(delay=0.2), Fault(drip=(10, 0.07))):
        server.script("a", fault)
        begun = monotonic()
        assert ask(server, "a")[2] == b"x" * 40
        assert 0.19 < monotonic() - begun < 30
    server.latency = 0.2
    begun = monotonic()
    ask(server, "a")
    assert monotonic() - begun > 0.19


def test_gate_holds_a_response_until_it_opens(server: FaultServer) -> None:
    server.put("a", b"0123456789")
    gate = Gate()
    server.script("a", Fault(gate=gate, after=4), times=2)
    answers: list[bytes] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(server, "a")[2])) for _ in range(2)]
    for thread in threads:
        thread.start()
    server.wait_for_requests(2, key="a")
    assert answers == []
    gate.open()
    for thread in threads:
        thread.join(60)
    assert answers == [b"0123456789"] * 2
    assert server.peak == 2


def test_hanging_response_ends_with_the_server() -> None:
    with FaultServer() as server:
        server.put("a", b"0123456789")
        server.script("a", Fault(hang=True, after=4))
        got: list[bytes] = []
        thread = threading.Thread(target=lambda: got.append(raw(server, "a")[0]))
        thread.start()
        server.wait_for_requests(1)
    thread.join(60)
    assert not thread.is_alive()
    assert got[0].endswith(b"0123") or got[0] == b""


def test_object_swapped_after_n_requests(server: FaultServer) -> None:
    server.put("a", b"old", etag='"old"')
    server.swap("a", b"new", after=2, etag='"new"')
    seen = [ask(server, "a")[1:] for _ in range(3)]
    assert [(headers["etag"], body) for headers, body in seen] == [
        ('"old"', b"old"),
        ('"old"', b"old"),
        ('"new"', b"new"),
    ]


def test_redirect_to_another_origin() -> None:
    with FaultServer() as there, FaultServer() as here:
        there.put("b", b"data")
        here.script("a", Fault(status=302, headers={"Location": there.url("b")}))
        status, headers, _ = ask(here, "a")
        assert (status, headers["location"]) == (302, f"http://127.0.0.1:{there.port}/b")


def test_authorization_and_signed_query() -> None:
    with FaultServer(username="me", password="secret") as server:
        server.put("a", b"data")
        status, headers, _ = ask(server, "a")
        assert (status, headers["www-authenticate"]) == (401, 'Basic realm="test"')
        assert ask(server, "a", headers={"Authorization": "Basic bWU6c2VjcmV0"})[0] == 200
    with FaultServer(bearer_token="t") as server:
        server.put("a", b"data")
        assert ask(server, "a", headers={"Authorization": "Bearer t"})[0] == 200
        assert ask(server, "a", headers={"Authorization": "Bearer u"})[0] == 401
    with FaultServer(require_query="sig=1") as server:
        server.put("a", b"data")
        assert ask(server, "a")[0] == 403


def test_writes_only_where_allowed(server: FaultServer) -> None:
    assert ask(server, "a", "PUT", body=b"data")[0] == 405
    with FaultServer(writable=True) as writable:
        assert ask(writable, "a", "PUT", body=b"data")[0] == 201
        assert ask(writable, "a", "PUT", {"If-None-Match": "*"}, b"other")[0] == 412
        assert ask(writable, "a")[2] == b"data"
        assert ask(writable, "a", "DELETE")[0] == 204
        assert ask(writable, "a")[0] == 404


def test_tls() -> None:
    authority = trustme.CA()
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    ours = ssl.create_default_context()
    authority.configure_trust(ours)
    with FaultServer(tls=theirs) as server:
        server.put("a", b"data")
        assert server.url("a").startswith("https://")
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=60, context=ours)
        connection.request("GET", "/a")
        assert connection.getresponse().read() == b"data"
        connection.close()


def test_malformed_request_is_400(server: FaultServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(b"nonsense\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")


def test_thread_ends_with_the_context() -> None:
    with FaultServer() as server:
        server.put("a", b"data")
        ask(server, "a")
    assert not [one for one in threading.enumerate() if one.name == "forebay-fault-server"]
