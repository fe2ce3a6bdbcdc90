"""`TwoDriverDownloader`: hands every hook to the driver that serves this process."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from forebay._checksums import available
from forebay._url import join_url, redact
from forebay.downloader import Downloader, SupportsWrite, check_range
from forebay.exceptions import AuthenticationError, InvalidURLError, StorageError
from forebay.types import Capabilities, ObjectInfo, RangeRead
from forebay_drivers import fork
from forebay_drivers.credentials import CredentialSource
from forebay_drivers.driver import Driver
from forebay_drivers.errors import ErrorTable, Subject, failure, hidden_texts
from forebay_drivers.facade._choice import Choice, choose
from forebay_drivers.facade._keys import check_key
from forebay_drivers.options import wanted_driver

__all__ = ["TwoDriverDownloader"]

T = TypeVar("T")
logger = logging.getLogger("forebay.drivers")

_told: set[tuple[str, str]] = set()  # roots and reasons: once a process, however many downloaders it makes


class TwoDriverDownloader(Downloader):
    """One root of a store that obstore and an fsspec file system both know.

    The driver is chosen once in each process: ``driver=`` in the options, else obstore where nothing speaks against it
    (an option that only the other one has, a runtime that was inherited through ``fork()``), else the file system where
    it is installed, else an error that names the remedy. A subclass names itself and makes the two drivers; it checks
    its options in ``__init__`` after calling this one.
    """

    #: The backend's name in errors and logs.
    name: ClassVar[str]
    #: Module, and distribution, of the fsspec file system.
    sdk: ClassVar[str]
    #: The command that installs it.
    sdk_hint: ClassVar[str]
    #: What the store's codes and statuses mean.
    table: ClassVar[ErrorTable] = ErrorTable()
    detects_stalls: ClassVar[bool] = True

    def __init__(self, root: str, options: Mapping[str, object] | None = None) -> None:
        super().__init__(root, options)
        wanted_driver(self.options, self.name)
        self._secrets: tuple[str, ...] | None = None
        # One set of clients a process: after a fork the child makes its own and leaves the parent's alone.
        self._clients: dict[int, _Clients] = {}
        fork.install()

    # -- what a backend says --------------------------------------------------------------------------------------

    @abstractmethod
    def make_obstore(self, subject: Callable[[str], Subject], credentials: CredentialSource | None) -> Driver:
        """Make the obstore driver; imports obstore. Called once a process, before its first request."""

    @abstractmethod
    def make_fsspec(self, subject: Callable[[str], Subject], credentials: CredentialSource | None) -> Driver:
        """Make the fsspec driver; imports the SDK. Called once a process, before its first request."""

    @classmethod
    def obstore_refusal(cls, options: Mapping[str, object]) -> str | None:
        """Why these options need the fsspec driver; None where they do not."""
        return None

    @classmethod
    def fsspec_refusal(cls, options: Mapping[str, object]) -> str | None:
        """Why these options need obstore; None where they do not."""
        return None

    @classmethod
    def store_checksums(cls, options: Mapping[str, object], driver: str) -> tuple[str, ...]:
        """The store's own checksums that ``driver`` shows with these options."""
        return ()

    def secrets(self) -> tuple[str, ...]:
        """Texts that no error may show: the values of the credentials in use."""
        return ()

    def asks_callable(self) -> bool:
        """Whether the option ``credentials`` is the one that says who asks, and no stronger one."""
        return True

    @staticmethod
    def check_credentials(values: Mapping[str, object]) -> None:
        """Raise `ConfigError` where what the credentials callable gave cannot be used."""

    # -- the choice -----------------------------------------------------------------------------------------------

    @classmethod
    def _choose(cls, options: Mapping[str, object]) -> Choice:
        return choose(
            options,
            backend=cls.name,
            sdk=cls.sdk,
            hint=cls.sdk_hint,
            obstore_no=cls.obstore_refusal(options),
            fsspec_no=cls.fsspec_refusal(options),
        )

    @classmethod
    def probe_driver(cls, options: Mapping[str, object]) -> Capabilities:
        """Which driver serves this process, and why."""
        wanted_driver(options, cls.name)
        choice = cls._choose(options)
        works = choice.error is None
        shown = cls.store_checksums(options, choice.driver)
        return Capabilities(
            native_async=works,
            ranges=works,
            stat=works,
            list=works,
            fork_safe=choice.driver != "obstore",
            checksums=tuple(one for one in shown if one in available()) if shown else (),
            driver=choice.driver,
            version=choice.version,
            reason=choice.reason,
        )

    def _here(self) -> _Clients:
        # setdefault is atomic, so no lock can be inherited locked by a child.
        clients = self._clients.get(os.getpid())
        if clients is None:
            clients = self._clients.setdefault(os.getpid(), _Clients(self._source()))
        return clients

    def _source(self) -> CredentialSource | None:
        call = self.options.get("credentials")
        return CredentialSource(call, self.check_credentials) if callable(call) and self.asks_callable() else None

    def _driver(self) -> Driver | None:
        """The driver of this process; None where obstore has to give a sign of life before it may be taken."""
        clients = self._here()
        with clients.lock:
            if clients.driver is None:
                choice = self._choose(self.options)
                if choice.error is not None:
                    raise choice.error
                if choice.driver == "obstore" and fork.needs_check():
                    return None
                self._tell(choice)
                make = self.make_obstore if choice.driver == "obstore" else self.make_fsspec
                clients.driver = make(partial(self.subject, driver=choice.driver), clients.credentials)
            return clients.driver

    def _checked(self, driver: Driver, key: str, *, prefix: bool = False) -> None:
        # A prefix goes on as a key: with any character that is no slash.
        name, what = (f"{key}x", "prefix") if prefix else (key, "key")
        check_key(name, self.root)
        no = driver.refusal(name)
        if no is None:
            return
        if driver.name == "obstore" and "\0" not in name and self.fsspec_refusal(self.options) is None:
            no += "; driver='fsspec' takes it" + ("" if find_spec(self.sdk) else f" ({self.sdk_hint})")
        raise InvalidURLError(f"{what} {key!r} under {redact(self.root)} ({self.name} backend) is refused: {no}")

    def _tell(self, choice: Choice) -> None:
        told = (redact(self.root), choice.reason)
        if choice.fallback and told not in _told:
            _told.add(told)
            logger.warning("%s: driver fsspec instead of obstore: %s", *told)

    def _sync(self, key: str, call: Callable[[Driver], T], *, prefix: bool = False) -> T:
        driver = self._driver()
        if driver is None:
            fork.check_alive()
            driver = self._driver()
            assert driver is not None
        self._checked(driver, key, prefix=prefix)
        source = self._here().credentials
        if source is None:
            return call(driver)
        serial = self._ready(source, key, driver)
        try:
            return call(driver)
        except AuthenticationError:
            # Credentials end before their time too: others are asked for, once.
            source.discard(serial)
        self._ready(source, key, driver)
        return call(driver)

    async def _async(self, key: str, call: Callable[[Driver], Awaitable[T]]) -> T:
        driver = self._here().driver or await asyncio.to_thread(self._driver)  # the SDK's import takes its time
        if driver is None:
            await fork.check_alive_async()
            driver = await asyncio.to_thread(self._driver)
            assert driver is not None
        self._checked(driver, key)
        source = self._here().credentials
        if source is None:
            return await call(driver)
        serial = await self._aready(source, key, driver)
        try:
            return await call(driver)
        except AuthenticationError:
            source.discard(serial)
        await self._aready(source, key, driver)
        return await call(driver)

    def _ready(self, source: CredentialSource, key: str, driver: Driver) -> int:
        """Have valid credentials before a request, so that nothing waits for them in a driver's own threads."""
        try:
            return source.get().serial
        except StorageError as exc:
            problem = self._about(exc, key, driver)
        raise problem from problem.__cause__

    async def _aready(self, source: CredentialSource, key: str, driver: Driver) -> int:
        try:
            return (await source.aget()).serial
        except StorageError as exc:
            problem = self._about(exc, key, driver)
        raise problem from problem.__cause__

    def _about(self, exc: StorageError, key: str, driver: Driver) -> StorageError:
        return failure(type(exc), exc.message, self.subject(key, driver.name), cause=exc.__cause__)

    def subject(self, key: str, driver: str) -> Subject:
        """What an error says of ``key``."""
        if self._secrets is None:
            self._secrets = hidden_texts(self.secrets())
        source = self._here().credentials
        secrets = self._secrets if source is None else (*source.secrets, *self._secrets)
        return Subject(key, driver, self.name, self._show, secrets, self.table)

    def _show(self, key: str) -> str:
        return redact(join_url(self.root, key))

    # -- reading --------------------------------------------------------------------------------------------------

    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        """Write the whole object to ``fileobj``."""
        self._sync(key, lambda one: one.stream(key, fileobj))

    async def adownload_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        """Async twin of `download_fileobj`."""
        await self._async(key, lambda one: one.astream(key, fileobj))

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return ``length`` bytes from ``offset``, or all from there on."""
        check_range(key, offset, length)
        if length == 0:
            return b""
        return bytes(self._sync(key, lambda one: one.read(key, offset, length, None)).data)

    async def adownload_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Async twin of `download_bytes`."""
        check_range(key, offset, length)
        if length == 0:
            return b""
        return bytes((await self._async(key, lambda one: one.aread(key, offset, length, None))).data)

    async def aread_range(self, key: str, offset: int, length: int, *, if_match: str | None = None) -> RangeRead:
        """Read a piece in one request, with size and etag of the whole object from the same response."""
        check_range(key, offset, length)
        if length == 0:
            return RangeRead(data=b"", info=ObjectInfo(key))
        return await self._async(key, lambda one: one.aread(key, offset, length, if_match))

    def stat(self, key: str) -> ObjectInfo:
        """Size, etag, version and date of the object."""
        return self._sync(key, lambda one: one.stat(key))

    async def astat(self, key: str) -> ObjectInfo:
        """Async twin of `stat`."""
        return await self._async(key, lambda one: one.astat(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object whose key starts with ``prefix``, recursively."""
        first, rest = self._sync(prefix, lambda one: _begun(one.list(prefix)), prefix=True)
        yield from first
        yield from rest

    # -- writing --------------------------------------------------------------------------------------------------

    def upload_file(self, key: str, path: Path) -> None:
        """Store the file's bytes under ``key``, whole or not at all."""
        self._sync(key, lambda one: one.upload(key, path))

    async def aupload_file(self, key: str, path: Path) -> None:
        """Async twin of `upload_file`."""
        await self._async(key, lambda one: one.aupload(key, path))

    # -- life -----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close what belongs to the running loop."""
        clients = self._clients.get(os.getpid())
        if clients is not None and clients.driver is not None:
            await clients.driver.aclose()

    def close(self) -> None:
        """Close every client of this process."""
        clients = self._clients.pop(os.getpid(), None)
        if clients is not None and clients.driver is not None:
            clients.driver.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_clients": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        fork.install()


def _begun(found: Iterator[ObjectInfo]) -> tuple[list[ObjectInfo], Iterator[ObjectInfo]]:
    """A listing whose first request has been answered: credentials that it refuses can still be asked for anew."""
    return list(islice(found, 1)), found


class _Clients:
    """What one process has made."""

    def __init__(self, credentials: CredentialSource | None) -> None:
        self.lock = threading.Lock()
        self.driver: Driver | None = None
        self.credentials = credentials
