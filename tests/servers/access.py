"""One place in four kinds of store, and who comes to it: with good, no, wrong and expired credentials.

The emulators look at some credentials and not at others. What they do not check is checked at a gate before them, which
answers in the store's own words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

from servers.azurite import Azurite
from servers.fakegcs import FakeGcs
from servers.nginx import Nginx
from servers.proxy import Seen
from servers.weed import Weed

from forebay.exceptions import AccessDeniedError, AuthenticationError, StorageError

__all__ = ["Access", "Credentials", "Visit", "access_to", "azure_gate", "gcs_gate", "s3_gate"]

WRONG = "d3Jvbmcta2V5LXdyb25nLWtleS13cm9uZy1rZXktd3Jvbmcta2V5LXdyb25nLWtleQ=="
EXPIRED = "expired-token-0123456789"
PUBLIC = "public"


class Credentials:
    """A user's callable whose first set has expired, though nobody said so, and whose later ones are good."""

    def __init__(self, *sets: Mapping[str, object]) -> None:
        self._sets = sets
        self.calls = 0

    def __call__(self) -> Mapping[str, object]:
        self.calls += 1
        return self._sets[min(self.calls, len(self._sets)) - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A URL and options. ``error`` None: the visitor is let in; else what he hears, which names the remedy ``says``."""

    url: str
    options: Mapping[str, object] = field(repr=False)
    error: tuple[type[StorageError], ...] = ()
    says: str = ""
    secrets: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A store, what answers in its place, and the visits to it by name, made for the port where the gate listens."""

    backend: str
    port: int
    host: str | None
    gate: Callable[[Seen], bytes | None] | None
    put: Callable[[str, bytes], None]
    visits: Callable[[int], Mapping[str, Visit]]


def access_to(store: Weed | FakeGcs | Azurite | Nginx) -> Access:
    """The visits to a store. ``put`` stores an object where everybody may read and where only some may."""
    if isinstance(store, Weed):
        return _s3(store)
    if isinstance(store, FakeGcs):
        return _gcs(store)
    return _azure(store) if isinstance(store, Azurite) else _http(store)


def _answer(status: str, body: str, kind: str = "application/xml", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


# -- S3 ---------------------------------------------------------------------------------------------------------------


def s3_gate(seen: Seen) -> bytes | None:
    """AWS's words for temporary credentials that have ended."""
    if not seen.headers.get("x-amz-security-token", "").startswith("expired"):
        return None
    body = "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
    return _answer("400 Bad Request", "" if seen.method == "HEAD" else body)


def _s3(weed: Weed) -> Access:
    if PUBLIC not in [one["Name"] for one in weed.client.list_buckets()["Buckets"]]:
        weed.make_bucket(PUBLIC)

    def put(key: str, data: bytes) -> None:
        for bucket in (weed.BUCKET, PUBLIC):
            weed.put(key, data, bucket)

    def visits(port: int) -> dict[str, Visit]:
        where = {name: weed.options[name] for name in ("region", "addressing_style")}
        where["endpoint_url"] = weed.endpoint.replace(str(weed.port), str(port))
        good = {"access_key_id": weed.KEY, "secret_access_key": weed.SECRET}
        old = {"access_key_id": "ASIAEXPIREDEXAMPLE", "secret_access_key": WRONG, "session_token": EXPIRED}
        private, refused = "s3://bench/access", (AuthenticationError,)
        return {
            "key": Visit(url=private, options={**where, **good}),
            "anonymous": Visit(url="s3://public/access", options={**where, "anonymous": True}),
            "renewed": Visit(url=private, options={**where, "credentials": Credentials(old, good)}),
            "nobody": Visit(
                url=private, options={**where, "anonymous": True}, error=(AccessDeniedError,), says="access_key_id"
            ),
            "wrong": Visit(
                url=private,
                options={**where, **good, "secret_access_key": WRONG},
                error=refused,
                says="secret_access_key",
                secrets=(WRONG,),
            ),
            "unknown": Visit(
                url=private,
                options={**where, "access_key_id": "AKIANOSUCHEXAMPLE", "secret_access_key": WRONG},
                error=refused,
                says="access_key_id",
                secrets=(WRONG, "AKIANOSUCHEXAMPLE"),
            ),
            "expired": Visit(
                url=private, options={**where, **old}, error=refused, says="expired", secrets=(WRONG, EXPIRED)
            ),
        }

    return Access(backend="s3", port=weed.port, host=None, gate=s3_gate, put=put, visits=visits)


# -- GCS --------------------------------------------------------------------------------------------------------------


def gcs_gate(seen: Seen) -> bytes | None:
    """Google's words, in the API that was asked, for all but the one token and for strangers outside of ``public``."""
    told = seen.headers.get("authorization", "")
    json_api = "/storage/v1/" in seen.target
    if told == f"Bearer {FakeGcs.TOKEN}":
        return None
    if told not in ("", "Bearer", "Bearer "):
        body, reason = "Authentication required.", "authError"
    elif f"/{PUBLIC}" in seen.target:
        return None
    else:
        body, reason = "Anonymous caller does not have storage.objects.get access.", "required"
    if json_api:
        text = f'{{"error": {{"code": 401, "message": "{body}", "errors": [{{"reason": "{reason}"}}]}}}}'
        return _answer("401 Unauthorized", text, "application/json")
    status, code = ("401 Unauthorized", "AuthenticationRequired") if told else ("403 Forbidden", "AccessDenied")
    return _answer(status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{body}</Message></Error>")


def _gcs(server: FakeGcs) -> Access:
    server.make_bucket(PUBLIC, exist_ok=True)

    def put(key: str, data: bytes) -> None:
        for bucket in (server.BUCKET, PUBLIC):
            server.put(key, data, bucket)

    def visits(port: int) -> dict[str, Visit]:
        where = {"endpoint_url": f"http://127.0.0.1:{port}"}
        private, refused = "gs://bench/access", (AuthenticationError,)
        old, good = {"token": EXPIRED}, {"token": server.TOKEN}
        return {
            "key": Visit(url=private, options={**where, **good}),
            "anonymous": Visit(url="gs://public/access", options={**where, "anonymous": True}),
            "renewed": Visit(url=private, options={**where, "credentials": Credentials(old, good)}),
            "nobody": Visit(
                url=private,
                options={**where, "anonymous": True},
                error=(AccessDeniedError, AuthenticationError),  # 403 in one API, 401 in the other
                says="token",
            ),
            "wrong": Visit(
                url=private, options={**where, "token": WRONG}, error=refused, says="token", secrets=(WRONG,)
            ),
            "expired": Visit(url=private, options={**where, **old}, error=refused, says="expired", secrets=(EXPIRED,)),
        }

    host = f"127.0.0.1:{server.port}"
    return Access(backend="gcs", port=server.port, host=host, gate=gcs_gate, put=put, visits=visits)


# -- Azure ------------------------------------------------------------------------------------------------------------


def azure_gate(seen: Seen) -> bytes | None:
    """Azure's words for a shared access signature that has ended: Azurite has others."""
    until = parse_qs(urlsplit(seen.target).query).get("se")
    if until is None or datetime.fromisoformat(until[0]) > datetime.now(UTC):
        return None
    body = "<Error><Code>AuthenticationFailed</Code><Message>Signature not valid in its time frame</Message></Error>"
    head = "403 Forbidden", "" if seen.method == "HEAD" else body, "application/xml"
    return _answer(*head, "x-ms-error-code: AuthenticationFailed")


def _azure(azurite: Azurite) -> Access:
    azurite.make_bucket(PUBLIC, public=True, exist_ok=True)

    def put(key: str, data: bytes) -> None:
        for bucket in (azurite.BUCKET, PUBLIC):
            azurite.put(key, data, bucket)

    def visits(port: int) -> dict[str, Visit]:
        where = {"endpoint_url": f"http://127.0.0.1:{port}/{azurite.ACCOUNT}", "account_name": azurite.ACCOUNT}
        private, refused = "az://bench/access", (AuthenticationError,)
        old = {"sas_token": azurite.sas(lasts=-timedelta(minutes=5))}
        good = {"sas_token": azurite.sas()}
        hidden = (old["sas_token"], parse_qs(old["sas_token"])["sig"][0])
        return {
            "key": Visit(url=private, options={**where, "account_key": azurite.KEY}),
            "signature": Visit(url=private, options={**where, **good}),
            "anonymous": Visit(url="az://public/access", options={**where, "anonymous": True}),
            "renewed": Visit(url=private, options={**where, "credentials": Credentials(old, good)}),
            "nobody": Visit(
                url=private,
                options={**where, "anonymous": True},
                error=(AccessDeniedError, AuthenticationError, FileNotFoundError),  # type: ignore[arg-type]
                says="",
            ),
            "wrong": Visit(
                url=private,
                options={**where, "account_key": WRONG},
                error=(AccessDeniedError,),  # Azurite says AuthorizationFailure
                says="account_key",
                secrets=(WRONG,),
            ),
            "expired": Visit(url=private, options={**where, **old}, error=refused, says="expired", secrets=hidden),
        }

    host = f"127.0.0.1:{azurite.port}"
    return Access(backend="azure", port=azurite.port, host=host, gate=azure_gate, put=put, visits=visits)


# -- HTTP -------------------------------------------------------------------------------------------------------------


def _http(nginx: Nginx) -> Access:
    def visits(port: int) -> dict[str, Visit]:
        base = f"http://127.0.0.1:{port}"
        user, password = nginx.USER
        old = nginx.SIGNATURE.replace("0123456789abcdef", "fedcba9876543210")
        refused = (AuthenticationError,)
        return {
            "key": Visit(url=f"{base}/basic/access", options={"username": user, "password": password}),
            "token": Visit(url=f"{base}/bearer/access", options={"bearer_token": "good-token"}),
            "signature": Visit(url=f"{base}/signed/access?{nginx.SIGNATURE}", options={}),
            "anonymous": Visit(url=f"{base}/access", options={}),
            "nobody": Visit(url=f"{base}/basic/access", options={}, error=refused, says="username"),
            "wrong": Visit(
                url=f"{base}/basic/access",
                options={"username": user, "password": WRONG},
                error=refused,
                says="password",
                secrets=(WRONG,),
            ),
            "expired": Visit(
                url=f"{base}/bearer/access",
                options={"bearer_token": EXPIRED},
                error=refused,
                says="bearer_token",
                secrets=(EXPIRED,),
            ),
            "expired-url": Visit(
                url=f"{base}/signed/access?{old}",
                options={},
                error=(AccessDeniedError,),
                says="expired",
                secrets=("fedcba9876543210",),
            ),
        }

    return Access(backend="http", port=nginx.port, host=None, gate=None, put=nginx.put, visits=visits)
