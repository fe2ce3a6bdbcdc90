"""A user's credentials callable: refreshed before it expires, once for all callers, never in the way (L1 to L6)."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from forebay.exceptions import AuthenticationError, ConfigError, ConnectionFailedError, StorageTimeoutError
from forebay.testing import Fault, FaultServer, run_async
from forebay_drivers.credentials import CredentialSource, expiry
from forebay_s3 import S3Downloader

Open = Callable[..., S3Downloader]
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>token-number-1 has expired</Message></Error>"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Provider:
    """Counts its calls; each gives other keys, valid for ``life`` seconds."""

    def __init__(self, life: float | None = None, clock: Clock | None = None) -> None:
        self.life = life
        self.clock = clock
        self.calls = 0
        self.fails: Exception | None = None
        self.changed = threading.Condition()

    def __call__(self) -> dict[str, object]:
        with self.changed:
            self.calls += 1
            number = self.calls
            self.changed.notify_all()
        if self.fails is not None:
            raise self.fails
        keys: dict[str, object] = {
            "access_key_id": f"AKIANUMBER{number}",
            "secret_access_key": f"secret-number-{number}",
            "session_token": f"token-number-{number}",
        }
        if self.life is not None and self.clock is not None:
            keys["expires_at"] = self.clock() + self.life
        return keys

    def wait_for(self, calls: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.calls >= calls, 10)


def settled(source: CredentialSource) -> None:
    """Wait for a refresh in the background."""
    for thread in threading.enumerate():
        if thread.name == "forebay-credentials":
            thread.join(10)


def picklable_credentials() -> dict[str, object]:
    return {"access_key_id": "AKIAPICKLED", "secret_access_key": "secret-pickled"}


async def async_credentials() -> dict[str, object]:
    await asyncio.sleep(0)
    return {"access_key_id": "AKIAASYNC", "secret_access_key": "secret-async"}


def test_refresh_comes_before_the_expiry_and_nobody_waits_for_it() -> None:
    """L1, L2: a life of ten seconds has its refresh in the last four of them, by the real expiry."""
    clock = Clock()
    provider = Provider(10, clock)
    source = CredentialSource(provider, clock=clock)
    assert source.get().values["access_key_id"] == "AKIANUMBER1"
    clock.now += 5.9
    assert source.get().values["access_key_id"] == "AKIANUMBER1"
    assert provider.calls == 1
    clock.now += 3
    assert source.get().values["access_key_id"] == "AKIANUMBER1", "the old ones are still valid: nobody waits"
    provider.wait_for(2)
    settled(source)
    assert source.get().values["access_key_id"] == "AKIANUMBER2"


def test_a_thread_that_cannot_be_had_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """L3: every later caller waited in vain for what no thread was ever going to give."""
    source = CredentialSource(Provider(10, Clock()), deadline=1)

    def none_left(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        with pytest.raises(RuntimeError, match="new thread"):
            source.get()
    assert source.get().values["access_key_id"] == "AKIANUMBER1"


def test_failed_refresh_keeps_what_is_valid_and_is_tried_again_later(caplog: pytest.LogCaptureFixture) -> None:
    """L3; nobody waits for it, so the log tells."""
    clock = Clock()
    provider = Provider(1000, clock)
    source = CredentialSource(provider, clock=clock)
    source.get()
    provider.fails = RuntimeError("the vault is sealed")
    clock.now += 900
    for _ in range(20):
        assert source.get().values["access_key_id"] == "AKIANUMBER1"
        settled(source)
    assert provider.calls == 2, "a pause lies between two tries"
    assert "could not be refreshed (RuntimeError)" in caplog.text
    clock.now += 1.1
    source.get()
    settled(source)
    assert provider.calls == 3
    provider.fails = None
    clock.now += 40
    source.get()
    settled(source)
    assert source.get().values["access_key_id"] == "AKIANUMBER4"


def test_refreshes_of_many_processes_do_not_come_together() -> None:
    """L3, L7: jitter, as each process has a source of its own."""
    clock = Clock()
    moments = set()
    for _ in range(20):
        source = CredentialSource(Provider(1000, clock), clock=clock)
        source.get()
        moments.add(round(source._refresh_at, 1))
    assert len(moments) > 10
    assert all(clock.now + 600 <= moment <= clock.now + 800 for moment in moments)


def test_one_refresh_however_many_callers() -> None:
    gate = threading.Event()
    calls: list[int] = []

    def slow() -> dict[str, object]:
        calls.append(1)
        assert gate.wait(10)
        return picklable_credentials()

    source = CredentialSource(slow)
    with ThreadPoolExecutor(16) as pool:
        futures = [pool.submit(source.get) for _ in range(16)]
        gate.set()
        assert {future.result(10).serial for future in futures} == {1}
    assert len(calls) == 1

    async def main() -> None:
        got = await asyncio.gather(*(source.aget() for _ in range(16)))
        assert {one.serial for one in got} == {1}

    run_async(main())
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (RuntimeError("secret-in-the-text"), AuthenticationError),
        (ConnectionResetError("vault"), ConnectionFailedError),
        (TimeoutError("vault"), ConnectionFailedError),
    ],
    ids=["refused", "reset", "timeout"],
)
def test_callable_that_fails(failure: Exception, error: type[Exception], faulty: Open) -> None:
    provider = Provider()
    provider.fails = failure
    downloader = faulty(credentials=provider, access_key_id=None, secret_access_key=None)
    with pytest.raises(error) as caught:
        downloader.download_bytes("key.bin")
    assert "credentials callable failed" in str(caught.value)
    assert "key.bin" in str(caught.value)
    assert "secret-in-the-text" not in str(caught.value)

    async def main() -> None:
        with pytest.raises(error):
            await downloader.aread_range("key.bin", 0, 4)
        await downloader.aclose()

    run_async(main())


def test_callable_that_hangs_has_a_deadline() -> None:
    gate = threading.Event()
    source = CredentialSource(lambda: gate.wait(10), deadline=0.2)
    with pytest.raises(StorageTimeoutError):
        source.get()
    gate.set()


def test_callable_that_gives_nonsense(faulty: Open) -> None:
    for given in ({"access_key_id": "A"}, "text", None):
        downloader = faulty(credentials=lambda given=given: given, access_key_id=None, secret_access_key=None)
        with pytest.raises(ConfigError, match="credentials callable"):
            downloader.download_bytes("key.bin")


def test_expiry_in_every_spelling() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    for value in (
        moment,
        moment.timestamp(),
        int(moment.timestamp()),
        "2026-01-01T00:00:00+00:00",
        "2026-01-01T00:00:00Z",
    ):
        assert expiry(value) == moment.timestamp()
    assert expiry(moment.astimezone(UTC) + timedelta(seconds=1)) == moment.timestamp() + 1
    nonsense: tuple[object, ...] = ("tomorrow", [], True)
    for wrong in nonsense:
        with pytest.raises(ConfigError):
            expiry(wrong)


@pytest.mark.parametrize("call", [picklable_credentials, async_credentials], ids=["sync", "async"])
def test_both_drivers_sign_with_it(faults: FaultServer, faulty: Open, call: Callable[[], object]) -> None:
    faults.put("bucket/key.bin", b"0123456789")
    downloader = faulty(credentials=call, access_key_id=None, secret_access_key=None)
    clone = pickle.loads(pickle.dumps(downloader))
    for one in (downloader, clone):
        assert one.download_bytes("key.bin", 2, 4) == b"2345"
    clone.close()

    async def main() -> None:
        assert bytes((await downloader.aread_range("key.bin", 2, 4)).data) == b"2345"
        await downloader.aclose()

    run_async(main())
    expected = "AKIAPICKLED" if call is picklable_credentials else "AKIAASYNC"
    assert all(f"Credential={expected}/" in one.headers["authorization"] for one in faults.requests)


def test_refused_credentials_are_asked_for_anew_once(faults: FaultServer, faulty: Open) -> None:
    """L5, L6: they end before their time too; and other ones that are refused as well are an error at once."""
    faults.put("bucket/key.bin", b"0123456789")
    faults.script(None, Fault(status=400, body=EXPIRED))
    provider = Provider()
    downloader = faulty(credentials=provider, access_key_id=None, secret_access_key=None)
    assert downloader.download_bytes("key.bin", 2, 4) == b"2345"  # the first set is fetched within this call
    assert provider.calls == 2
    signed = [one.headers["authorization"].partition("Credential=")[2].partition("/")[0] for one in faults.requests]
    assert signed == ["AKIANUMBER1", "AKIANUMBER2"]
    faults.script(None, Fault(status=400, body=EXPIRED), times=None)
    faults.forget_requests()
    with pytest.raises(AuthenticationError) as error:
        downloader.download_bytes("key.bin", 2, 4)
    assert len(faults.requests) == 2
    shown = "".join(traceback.format_exception(error.value))
    assert "token-number" not in shown
    assert "secret-number" not in shown


def test_refused_credentials_are_asked_for_anew_before_a_listing_too(faults: FaultServer, faulty: Open) -> None:
    """L5: a listing's first request comes when the listing is read, after the call that made it."""
    listing = (
        b"<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated><Contents><Key>key.bin</Key>"
        b'<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"1"</ETag><Size>10</Size></Contents>'
        b"</ListBucketResult>"
    )
    faults.script(None, Fault(status=400, body=EXPIRED))
    faults.script(None, Fault(status=200, body=listing), times=None)
    provider = Provider()
    downloader = faulty(credentials=provider, access_key_id=None, secret_access_key=None)
    assert [one.key for one in downloader.list()] == ["key.bin"]
    assert provider.calls == 2


def test_texts_of_the_credentials_before_are_hidden_however_often_they_changed() -> None:
    """U1: an error of a request that was signed before the last refresh shows none of its keys."""
    count, source = 30, CredentialSource(Provider())
    for _ in range(count):
        source.discard(source.get().serial)
    for number in (count - 1, count):
        assert {f"AKIANUMBER{number}", f"secret-number-{number}", f"token-number-{number}"} <= set(source.secrets)


def test_what_the_machine_offers_is_the_last_resort(
    faults: FaultServer, opened: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A container's credentials, by the chain that each SDK has itself."""
    faults.put("bucket/key.bin", b"0123456789")
    offer = {"AccessKeyId": "AKIACONTAINER", "SecretAccessKey": "from-the-container", "Token": "token-of-container"}
    faults.put("offer", json.dumps({**offer, "Expiration": "2099-01-01T00:00:00Z"}).encode())
    (tmp_path / "token").write_text("let me in")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", faults.url("offer"))
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    assert opened("s3://bucket", endpoint_url=faults.url()).download_bytes("key.bin", 2, 4) == b"2345"
    (request,) = faults.requests_for("bucket/key.bin")
    assert "Credential=AKIACONTAINER/" in request.headers["authorization"]
    assert request.headers["x-amz-security-token"] == "token-of-container"


def test_nothing_that_people_see_shows_a_key(
    faults: FaultServer, faulty: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """U1, U2: neither our log, nor a repr of the downloader or of what it holds."""
    caplog.set_level("DEBUG", "forebay")
    provider = Provider()
    for given in ({}, {"credentials": provider, "access_key_id": None, "secret_access_key": None}):
        downloader = faulty(**given)
        with pytest.raises(FileNotFoundError) as error:
            downloader.download_bytes("absent.bin")
        shown = repr(downloader) + repr(downloader._settings) + caplog.text + repr(error.value)
        source = downloader._here().credentials
        shown += repr(source) + (repr(source.get()) if source is not None else "")
        for secret in ("AKIAEXAMPLEKEY", "wJalrXUtnFEMI", "AKIANUMBER", "secret-number", "token-number"):
            assert secret not in shown, shown
