"""What goes where: headers, credentials, queries and redirects (P9, U1, O9, L8)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest
from servers.nginx import Nginx

from forebay.downloader import probe
from forebay.exceptions import AuthenticationError, ConfigError
from forebay.testing import Fault, FaultServer, run_async
from forebay_http import HttpDownloader

Open = Callable[..., HttpDownloader]
DATA = os.urandom(100_000)

CREDENTIALS: dict[str, dict[str, object]] = {
    "basic": {"username": "reader", "password": "open sesame"},
    "bearer": {"bearer_token": "good-token"},
    "cookie": {"headers": {"Cookie": "session=good-token"}},
    "custom": {"headers": {"X-Custom": "good-token"}},
    "authorization": {"headers": {"authorization": "Bearer good-token"}},
    "user agent": {"headers": {"User-Agent": "good-token"}},
}


@pytest.mark.parametrize("kind", CREDENTIALS)
@pytest.mark.parametrize("back", [False, True], ids=["away", "away and back"])
def test_no_header_of_the_users_follows_to_another_origin(opened: Open, kind: str, back: bool) -> None:
    """P9: another port is another origin too, and what was taken off stays off."""
    with FaultServer() as first, FaultServer() as second:
        first.put("there.bin", DATA)
        second.put("key.bin", DATA)
        first.script("key.bin", Fault(status=302, headers={"Location": second.url("key.bin")}), times=None)
        if back:
            second.script("key.bin", Fault(status=307, headers={"Location": first.url("there.bin")}), times=None)
        downloader = opened(first.url(), **CREDENTIALS[kind])
        assert downloader.download_bytes("key.bin") == DATA
        assert downloader.download_bytes("key.bin", 10, 20) == DATA[10:30]
        assert "good-token" in str(first.requests[0].headers) or "Basic" in str(first.requests[0].headers)
        for request in [*second.requests, *first.requests_for("there.bin")]:
            shown = str(request.headers)
            assert "good-token" not in shown
            assert "Basic" not in shown
        assert second.requests[-1].range == "bytes=10-29"


@pytest.mark.parametrize("kind", CREDENTIALS)
def test_headers_stay_with_their_origin(faults: FaultServer, opened: Open, kind: str) -> None:
    faults.put("real.bin", DATA)
    faults.script("key.bin", Fault(status=301, headers={"Location": "/real.bin?x=1#part"}), times=None)
    assert opened(faults.url(), **CREDENTIALS[kind]).download_bytes("key.bin") == DATA
    sent = faults.requests_for("real.bin")[0]
    assert sent.target == "/real.bin?x=1"
    assert "good-token" in str(sent.headers) or "Basic" in str(sent.headers)


def test_signed_query_does_not_follow_as_referer(opened: Open) -> None:
    """U1: obstore's client sends the URL it comes from, query included, wherever a redirect leads."""
    with FaultServer() as first, FaultServer() as second:
        second.put("key.bin", DATA)
        first.script("key.bin", Fault(status=302, headers={"Location": second.url("key.bin")}), times=None)
        assert opened(first.url() + "?sig=0123456789").download_bytes("key.bin") == DATA
        assert "0123456789" not in str(second.requests)


def test_query_goes_with_every_key_and_every_kind_of_request(faults: FaultServer, opened: Open) -> None:
    faults.put("dir/a b.bin", DATA)
    downloader = opened(faults.url("dir") + "?sig=a%2Fb%3D&x=1+2")
    downloader.download_bytes("a b.bin")
    downloader.stat("a b.bin")
    assert {one.target for one in faults.requests} == {"/dir/a%20b.bin?sig=a%2Fb%3D&x=1+2"}


@pytest.mark.parametrize("root", ["/a%2Fb/x%5B1%5D", "/a+b/%7e", "/with space", "/\u00e4", "/dir/", "/", "", "/d//e"])
def test_empty_key_is_the_root_itself(faults: FaultServer, opened: Open, root: str) -> None:
    """O11, O3: the path of an http URL is encoded already, and is sent as it stands."""
    sent = {"/with space": "/with%20space", "/\u00e4": "/%C3%A4", "": "/"}.get(root, root)
    faults.script(None, Fault(status=200, body=DATA), times=None)
    downloader = opened(faults.url() + root)
    assert downloader.download_bytes("") == DATA
    assert downloader.stat("").size == len(DATA)
    assert {one.target for one in faults.requests} == {sent}


def test_user_in_the_url_is_basic_authentication(opened: Open) -> None:
    with FaultServer(username="re@der", password="o:p/n") as server:
        server.put("key.bin", DATA)
        host = server.url().removeprefix("http://")
        assert opened(f"http://re%40der:o%3Ap%2Fn@{host}").download_bytes("key.bin") == DATA
        with pytest.raises(AuthenticationError, match="username"):
            opened(server.url()).download_bytes("key.bin")


def test_options_beat_the_user_in_the_url(opened: Open) -> None:
    with FaultServer(username="right", password="secret") as server:
        server.put("key.bin", DATA)
        host = server.url().removeprefix("http://")
        downloader = opened(f"http://wrong:user@{host}", username="right", password="secret")
        assert downloader.download_bytes("key.bin") == DATA


@pytest.mark.parametrize(
    "options",
    [
        {"bearer_token": "x", "username": "u"},
        {"password": "p"},
        {"bearer_token": "x", "headers": {"Authorization": "Basic x"}},
        {"headers": {"Range": "bytes=0-1"}},
        {"headers": {"X-Bad": "split\r\nInjected: yes"}},
        {"headers": {"bad name": "x"}},
        {"bearer_token": "split\nInjected"},
        {"timeout": 0},
        {"timeout": "soon"},
        {"connect_timeout": -1},
        {"driver": "curl"},
        {"ca_file": "/no/such/file"},
        {"verify_tls": "yes"},
    ],
    ids=str,
)
def test_option_that_cannot_be_used_is_refused_before_any_request(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as error:
        HttpDownloader("http://127.0.0.1:1", options)
    assert error.value.option in options
    assert "Injected" not in str(error.value)


@pytest.mark.parametrize("section", ["basic", "bearer", "norange", "noetag", "gzip", "redirect", "elsewhere", "dav"])
def test_every_section_of_nginx_gives_the_same_bytes(nginx: Nginx, opened: Open, section: str) -> None:
    nginx.put("same/key.bin", DATA)
    options = {"basic": CREDENTIALS["basic"], "bearer": CREDENTIALS["bearer"]}.get(section, {})
    downloader = opened(nginx.url("same", section), **options)
    assert downloader.download_bytes("key.bin") == DATA
    assert downloader.download_bytes("key.bin", 99_990, 20) == DATA[99_990:]
    assert downloader.stat("key.bin").size in (len(DATA), None)


def test_nginx_sees_the_user_s_credentials_at_home_only(nginx: Nginx, opened: Open) -> None:
    nginx.put("key.bin", DATA)
    nginx.forget()
    downloader = opened(
        nginx.url(section="elsewhere"), bearer_token="good-token", headers={"X-Custom": "c", "Cookie": "a=b"}
    )
    assert downloader.download_bytes("key.bin") == DATA
    home, away = nginx.requests(at_least=2)
    assert (home.authorization, home.custom, home.cookie) == ("Bearer good-token", "c", "a=b")
    assert (away.port, away.authorization, away.custom, away.cookie) == (nginx.other_port, "", "", "")


def test_signed_url_works_without_head_and_in_one_request_a_part(nginx: Nginx, opened: Open) -> None:
    nginx.put("key.bin", DATA)
    nginx.forget()
    downloader = opened(f"{nginx.url('key.bin', 'signed')}?{nginx.SIGNATURE}")

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            parts = [
                group.create_task(downloader.aread_range("", offset, 25_000)) for offset in range(0, 100_000, 25_000)
            ]
        assert b"".join(bytes(part.result().data) for part in parts) == DATA
        await downloader.aclose()

    run_async(main())
    assert [(one.method, one.status, one.sent) for one in nginx.requests(at_least=4)] == [("GET", 206, 25_000)] * 4
    assert downloader.stat("").size == len(DATA)


def test_probe_says_which_driver_and_why() -> None:
    for options, driver, why in (
        ({}, "obstore", "default"),
        ({"driver": "obstore"}, "obstore", "asked for"),
        ({"driver": "fsspec"}, "fsspec", "asked for"),
        ({"headers": {"X-Custom": "1"}}, "fsspec", "X-Custom"),
        ({"headers": {"Cookie": "1"}}, "obstore", "default"),
    ):
        said = probe(HttpDownloader("http://127.0.0.1:1", options))
        assert (said.driver, said.native_async, said.ranges, said.stat, said.list) == (driver, True, True, True, False)
        assert why in said.reason
        assert said.version
        assert said.checksums == ()
