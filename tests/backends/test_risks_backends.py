"""Risks of the clouds, seen through the engine: three backends, two drivers each, one meaning."""

from __future__ import annotations

import gzip
import re
import tomllib
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic

import pytest
from servers.azurite import Azurite
from servers.weed import Weed

import forebay
from forebay import _config
from forebay.exceptions import (
    AccessDeniedError,
    AuthenticationError,
    ConfigError,
    StorageError,
    ThrottledError,
    UnsupportedOperationError,
)
from forebay.testing import Fault, FaultServer
from forebay_fsspec import ForebayFileSystem

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DATA = bytes(range(250))
TOKEN = "ya29.example-token-0123456789"
KEY = "c2VjcmV0LWtleS1vZi1hLXRlc3Q="
WRONG_KEY = "d3Jvbmcta2V5LXdyb25nLWtleS13cm9uZy1rZXktd3Jvbmcta2V5LXdyb25nLWtleQ=="
SECRETS = ("wJalrXUtnFEMI-example-secret", TOKEN, KEY, WRONG_KEY)


def xml(status: int, code: str, **headers: str) -> Fault:
    """A refusal as S3, Google's XML API and Azure word it."""
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>said</Message></Error>'
    return Fault(status=status, body=text.encode(), headers={"Content-Type": "application/xml", **headers})


def json(status: int, reason: str, **headers: str) -> Fault:
    """A refusal as Google's JSON API words it."""
    text = f'{{"error": {{"code": {status}, "message": "said", "errors": [{{"reason": "{reason}"}}]}}}}'
    return Fault(status=status, body=text.encode(), headers={"Content-Type": "application/json", **headers})


URLS = {"s3": "s3://bench/key.bin", "gcs": "gs://bench/key.bin", "azure": "az://bench/key.bin"}
PLACES = {
    "s3": ("bench/key.bin",),
    "gcs": ("bench/key.bin", "download/storage/v1/b/bench/o/key.bin"),
    "azure": ("lake1/bench/key.bin",),
}
REFUSALS = {"denied": (403, "AccessDenied", "forbidden", "AuthorizationFailure"),
            "busy": (503, "SlowDown", "rateLimitExceeded", "ServerBusy"),
            "broken": (500, "InternalError", "internalError", "InternalError")}  # fmt: skip


@dataclass(frozen=True)
class Cloud:
    """One backend with one driver, at a server that misbehaves as told."""

    name: str
    driver: str
    faults: FaultServer = field(repr=False)

    @property
    def url(self) -> str:
        return URLS[self.name]

    def options(self, **more: object) -> dict[str, object]:
        who: Mapping[str, Mapping[str, object]] = {
            "s3": {"access_key_id": "AKIAEXAMPLEKEY", "secret_access_key": SECRETS[0]},
            "gcs": {"token": TOKEN},
            "azure": {"account_name": "lake1", "account_key": KEY},
        }
        endpoint = self.faults.url() + ("/lake1" if self.name == "azure" else "")
        return {"driver": self.driver, "endpoint_url": endpoint, **who[self.name], **more}

    def put(self, data: bytes = DATA, headers: Mapping[str, str] | None = None) -> None:
        for place in PLACES[self.name]:
            self.faults.put(place, data, headers=headers)

    def refusal(self, kind: str, **headers: str) -> Fault:
        status, s3, gcs, azure = REFUSALS[kind]
        if self.name == "gcs" and self.driver == "fsspec":
            return json(status if kind != "busy" else 429, gcs, **headers)
        if self.name == "azure":
            return xml(status, azure, **{"x-ms-error-code": azure, **headers})
        return xml(status, s3, **headers)

    def read(self, tmp_path: Path, **more: object) -> bytes:
        path = forebay.fetch(self.url, cache_dir=tmp_path / "cache", options=self.options(**more))
        data = path.read_bytes()
        forebay.release(path)
        return data


@pytest.fixture(params=[f"{name}-{driver}" for name in ("s3", "gcs", "azure") for driver in ("obstore", "fsspec")])
def cloud(request: pytest.FixtureRequest, faults: FaultServer) -> Cloud:
    name, driver = str(request.param).split("-")
    one = Cloud(name, driver, faults)
    one.put()
    return one


class Recorded(Random):
    """Notes the longest wait that was thought of, and waits a thousandth of it."""

    def __init__(self) -> None:
        super().__init__(1)
        self.ceilings: list[float] = []

    def uniform(self, a: float, b: float) -> float:
        self.ceilings.append(b)
        return super().uniform(a, b) / 1000


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    recorded = Recorded()
    monkeypatch.setattr(_config, "random", lambda: recorded)
    return recorded.ceilings


def refused(cloud: Cloud, tmp_path: Path, **more: object) -> StorageError:
    """The error of a fetch, which shows no secret and leaves nothing in the cache."""
    with pytest.raises(StorageError) as caught:
        cloud.read(tmp_path, **more)
    text = "".join(traceback.format_exception(caught.value))
    assert not [secret for secret in SECRETS if secret in text]
    assert [file for file in (tmp_path / "cache" / "chunks").rglob("*") if file.is_file()] == []
    return caught.value


def test_a_store_that_asks_for_fewer_requests_gets_longer_and_longer_pauses(
    cloud: Cloud, tmp_path: Path, waits: list[float]
) -> None:
    """Risk N1, N10: five refusals in a row, then the object; each pause may be twice the last, drawn from all of it."""
    cloud.faults.script(None, cloud.refusal("busy"), times=5)
    assert cloud.read(tmp_path, max_attempts=8) == DATA
    assert len(cloud.faults.requests) == 6
    assert waits == [waits[0] * 2**i for i in range(5)]


@pytest.mark.parametrize("kind", ["busy", "broken", "cut"])
def test_a_store_that_stays_ill_is_asked_as_often_as_was_said(
    cloud: Cloud, tmp_path: Path, waits: list[float], kind: str
) -> None:
    """Risk N7: `max_attempts` is the number of requests, no driver adds tries of its own, and the error counts them."""
    fault = Fault(cut=True, after=100) if kind == "cut" else cloud.refusal(kind)
    cloud.faults.script(None, fault, times=None)
    error = refused(cloud, tmp_path, max_attempts=3)
    assert len(cloud.faults.requests) == 3
    assert error.attempts == 3
    assert len(waits) == 2
    assert isinstance(error, ThrottledError) == (kind == "busy")


def test_what_is_refused_for_good_is_asked_for_once(cloud: Cloud, tmp_path: Path) -> None:
    """Risk N9, L11, U3: one request; the error names call, object and status, and what else a refusal may mean."""
    cloud.faults.script(None, cloud.refusal("denied"), times=None)
    error = refused(cloud, tmp_path)
    assert isinstance(error, AccessDeniedError)
    assert len(cloud.faults.requests) == 1
    assert (error.status, error.key, error.backend, error.attempts) == (403, "key.bin", cloud.name, 1)
    assert cloud.url in str(error)


@pytest.mark.parametrize("driver", ["obstore", "fsspec"])
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("s3", xml(403, "InvalidObjectState")),
        ("azure", xml(409, "BlobArchived", **{"x-ms-error-code": "BlobArchived"})),
    ],
    ids=["s3", "azure"],
)
def test_an_archived_object_says_so_and_is_asked_for_once(
    faults: FaultServer, tmp_path: Path, name: str, driver: str, fault: Fault
) -> None:
    """Risk N8: it is neither a missing right nor trouble that passes."""
    faults.script(None, fault, times=None)
    error = refused(Cloud(name, driver, faults), tmp_path)
    assert isinstance(error, UnsupportedOperationError)
    assert "archive" in str(error)
    assert len(faults.requests) == 1


@pytest.mark.parametrize("driver", ["obstore", "fsspec"])
def test_a_wrong_clock_is_told_as_such(faults: FaultServer, tmp_path: Path, driver: str) -> None:
    """Risk L9: the store's code is not lost in a vague 403, and no try is spent on it."""
    faults.script(None, xml(403, "RequestTimeTooSkewed"), times=None)
    error = refused(Cloud("s3", driver, faults), tmp_path)
    assert isinstance(error, AuthenticationError)
    assert "clock" in str(error)
    assert len(faults.requests) == 1


def test_a_slow_body_that_moves_is_no_timeout(cloud: Cloud, tmp_path: Path) -> None:
    """Risk N3: the timeout is for a body that stands still, and one that moves takes longer than it."""
    cloud.faults.script(None, Fault(drip=(25, 0.2)), times=None)
    assert cloud.read(tmp_path, timeout=0.8) == DATA
    assert len(cloud.faults.requests) == 1


@pytest.mark.parametrize("after", [None, 100], ids=["no answer", "half a body"])
def test_a_store_that_falls_silent_is_left(cloud: Cloud, tmp_path: Path, waits: list[float], after: int | None) -> None:
    """Risk N6, J15: each try ends by itself, and the next one may succeed."""
    cloud.faults.script(None, Fault(hang=True, after=after), times=1)
    assert cloud.read(tmp_path, timeout=0.5) == DATA
    assert len(cloud.faults.requests) == 2
    cloud.faults.script(None, Fault(hang=True, after=after), times=None)
    error = refused(cloud, tmp_path / "other", timeout=0.3, max_attempts=2)
    assert isinstance(error, TimeoutError)
    assert error.attempts == 2


def test_the_pause_that_a_store_asks_for_is_kept(cloud: Cloud, tmp_path: Path, waits: list[float]) -> None:
    """Risk N2: where the driver shows headers; obstore shows none, and there our own pause is the rule."""
    cloud.faults.script(None, cloud.refusal("busy", **{"Retry-After": "1"}), times=1)
    start = monotonic()
    assert cloud.read(tmp_path) == DATA
    assert (monotonic() - start >= 1.0) == (cloud.driver == "fsspec")


def test_a_cut_body_is_read_again_and_only_the_whole_one_is_kept(cloud: Cloud, tmp_path: Path) -> None:
    """Risk N4, P8: what was cut off is not in the cache, what came after it is."""
    cloud.faults.script(None, Fault(cut=True, after=100), times=1)
    assert cloud.read(tmp_path) == DATA
    assert len(cloud.faults.requests) == 2
    assert cloud.read(tmp_path) == DATA


def test_a_range_from_another_place_is_refused(cloud: Cloud) -> None:
    """Risk P2: bytes from another place than was asked for are never used."""
    cloud.put(DATA * 100)
    cloud.faults.script(None, Fault(shift_range=3), times=None)
    downloader = forebay.open_downloader(cloud.url.rpartition("/")[0], options=cloud.options())
    try:
        with pytest.raises(StorageError) as caught:
            downloader.download_bytes("key.bin", 10, 20)
        assert (caught.value.key, caught.value.backend) == ("key.bin", cloud.name)
    finally:
        downloader.close()


def test_a_store_that_ignores_ranges_gives_the_right_bytes(cloud: Cloud, tmp_path: Path) -> None:
    """Risk P1: the whole body in the place of a part is no part. Azure's own SDK refuses it, and we say why."""
    data = b"".join(number.to_bytes(4, "big") for number in range(50_000))
    cloud.put(data)
    cloud.faults.script(None, Fault(ignore_range=True), times=None)
    if (cloud.name, cloud.driver) == ("azure", "fsspec"):
        assert "ranges" in str(refused(cloud, tmp_path, part_size=64 * 1024))
    else:
        assert cloud.read(tmp_path, part_size=64 * 1024) == data


def test_what_is_stored_compressed_comes_as_it_is_stored(cloud: Cloud, tmp_path: Path) -> None:
    """Risk P5: a Content-Encoding of the object is the owner's; sizes and digests are of the stored bytes."""
    data = gzip.compress(DATA * 1000)
    cloud.put(data, {"Content-Encoding": "gzip", "x-goog-stored-content-encoding": "gzip"})
    assert cloud.read(tmp_path) == data


def test_an_object_is_read_where_head_is_refused(cloud: Cloud, tmp_path: Path) -> None:
    """Risk L8, P7: rights to read are enough; no HEAD, no listing and no metadata decide whether there is an object."""
    cloud.faults.script(None, Fault(status=403), times=None, methods=("HEAD",))
    assert cloud.read(tmp_path) == DATA
    assert [one.method for one in cloud.faults.requests] == ["GET"]


def test_nobody_signs_where_nobody_should(cloud: Cloud, tmp_path: Path) -> None:
    """Risk L8, L4: `anonymous` is enough by itself, on any store, and nothing is sent that would be refused."""
    where = {name: value for name, value in cloud.options().items() if name in ("driver", "endpoint_url")}
    if cloud.name == "azure":
        where["account_name"] = "lake1"
    path = forebay.fetch(cloud.url, cache_dir=tmp_path / "cache", options={**where, "anonymous": True})
    assert path.read_bytes() == DATA
    forebay.release(path)
    for request in cloud.faults.requests:
        assert "authorization" not in request.headers
        assert "sig=" not in request.query


def test_options_of_one_store_never_reach_another(tmp_path: Path, cloud: Cloud) -> None:
    """Risk M10: one URL at two endpoints is two objects, in one process and one cache."""
    with FaultServer() as second:
        other = Cloud(cloud.name, cloud.driver, second)
        other.put(DATA[::-1])
        for _ in range(2):
            assert cloud.read(tmp_path) == DATA
            assert other.read(tmp_path) == DATA[::-1]
        mine, theirs = cloud.faults.requests, second.requests
        assert mine
        assert len(mine) == len(theirs)


def test_a_mistyped_option_is_refused_before_any_request(cloud: Cloud, tmp_path: Path) -> None:
    """Risk M12: the near name is told."""
    options = {name: value for name, value in cloud.options().items() if name != "endpoint_url"}
    with pytest.raises(ConfigError, match="endpoint_url"):
        forebay.fetch(cloud.url, cache_dir=tmp_path / "cache", options={**options, "endpoint_ulr": cloud.faults.url()})
    assert cloud.faults.requests == []


@pytest.mark.parametrize("driver", ["obstore", "fsspec"])
def test_corrected_credentials_of_azure_work_in_the_same_process(azurite: Azurite, tmp_path: Path, driver: str) -> None:
    """Risk L5: no client with the wrong ones is kept."""
    azurite.put("risks/key.bin", DATA)
    url, given = f"{azurite.url}/risks/key.bin", {**azurite.options, "driver": driver}
    with pytest.raises((AuthenticationError, AccessDeniedError), match="account_key"):
        forebay.fetch(url, cache_dir=tmp_path, options={**given, "account_key": WRONG_KEY})
    path = forebay.fetch(url, cache_dir=tmp_path, options=given)
    assert path.read_bytes() == DATA
    forebay.release(path)


@pytest.mark.parametrize("driver", ["obstore", "fsspec"])
def test_corrected_credentials_of_s3_work_in_the_same_process(weed: Weed, tmp_path: Path, driver: str) -> None:
    """Risk L5: no client with the wrong ones is kept."""
    weed.put("risks/key.bin", DATA)
    url, given = f"{weed.url}/risks/key.bin", {**weed.options, "driver": driver}
    with pytest.raises(AuthenticationError):
        forebay.fetch(url, cache_dir=tmp_path, options={**given, "secret_access_key": "wrong"})
    path = forebay.fetch(url, cache_dir=tmp_path, options=given)
    assert path.read_bytes() == DATA
    forebay.release(path)


@pytest.mark.parametrize(
    "folder", ["backends/s3", "backends/gcs", "backends/azure", "backends/drivers", "plugins/fsspec"]
)
def test_no_package_pins_an_sdk(folder: str) -> None:
    """Risk M9: boto3 and aiobotocore may stand beside us: no upper bound, and one cloud's SDK only as its extra."""
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    extras = [name for names in project.get("optional-dependencies", {}).values() for name in names]
    assert not [one for one in (*project["dependencies"], *extras) if re.search(r"==|<|~=", one)]
    assert not [one for one in project["dependencies"] if re.match(r"(boto|aioboto|s3fs|gcsfs|adlfs)", one)]
    assert not [one for one in extras if re.match(r"(boto|aioboto)", one)]


def test_a_listing_is_never_an_old_one(weed: Weed) -> None:
    """Risk R3: what was written or removed a moment ago shows, also through fsspec's own view of our stores."""
    fs = ForebayFileSystem(options=weed.options, skip_instance_cache=True)
    downloader = forebay.open_downloader(f"{weed.url}/listing", options=weed.options)

    def seen() -> list[str]:
        listed = sorted(info.key for info in downloader.list())
        names = fs.ls(f"forebay://{weed.url}/listing", detail=False)
        assert sorted(name.rpartition("/")[2] for name in names) == listed
        return listed

    try:
        weed.put("listing/a.bin", b"1")
        assert seen() == ["a.bin"]
        weed.put("listing/b.bin", b"1")
        assert seen() == ["a.bin", "b.bin"]
        weed.delete("listing/a.bin")
        assert seen() == ["b.bin"]
    finally:
        downloader.close()


@pytest.mark.parametrize("status", [302, 307])
def test_no_signature_follows_a_redirect_to_another_host(cloud: Cloud, tmp_path: Path, status: int) -> None:
    """Risk P9: nor a token, nor the URL that held one.

    Design 0004 says which two do with obstore, whose redirects cannot be switched off: S3's session token, Azure's SAS.
    """
    signed = (cloud.name, cloud.driver) == ("azure", "fsspec")
    given = {"account_key": None, "sas_token": f"sv=2023-11-03&sig={TOKEN}"} if signed else {}
    with FaultServer() as elsewhere:
        for place in PLACES[cloud.name]:
            elsewhere.put(place, DATA)
        target = {"Location": elsewhere.url(PLACES[cloud.name][0])}
        cloud.faults.script(None, Fault(status=status, headers=target), times=None)
        with suppress(StorageError):  # whether somebody else's bytes are wanted is not the question
            cloud.read(tmp_path, max_attempts=2, **given)
        assert cloud.faults.requests, "the store itself was asked"
        for one in elsewhere.requests:
            assert "authorization" not in one.headers
            assert not [secret for secret in SECRETS if secret in one.target + str(one.headers)]
