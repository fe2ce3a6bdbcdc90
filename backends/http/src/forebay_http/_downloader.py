"""`HttpDownloader`: which driver serves a request, and the handover from one to the other."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from forebay.downloader import Downloader, SupportsWrite, check_range
from forebay.exceptions import StorageError
from forebay.types import Access, Capabilities, ObjectInfo, RangeRead
from forebay_drivers import drain, fork
from forebay_drivers.access import Place, in_order, network_words
from forebay_drivers.errors import ErrorTable, Subject, hidden_texts
from forebay_drivers.loop import LoopThread
from forebay_http._choice import Choice, Handover, options_refusal
from forebay_http._options import OPTION_TYPES, HttpOptions, join, parse_options
from forebay_http._target import Target, check_key, parse_target

if TYPE_CHECKING:
    from forebay_http._aiohttp_driver import AiohttpDriver
    from forebay_http._obstore_driver import HttpObstoreDriver

__all__ = ["HttpDownloader"]

T = TypeVar("T")
logger = logging.getLogger("forebay.http")

# What servers and signed URLs say to HEAD where they allow GET.
_HEAD_REFUSED = frozenset({400, 403, 405, 501})
_TABLE = ErrorTable(
    remedy="see the options username, password, bearer_token and headers (a missing object may look so too, and a URL"
    " whose signature has expired)"
)


class HttpDownloader(Downloader):
    """Objects behind a web server, through obstore where it can and through aiohttp where it cannot.

    ``key=""`` is the root itself. A query in the root goes with every key; a user and password in it are sent as basic
    authentication. Both drivers give the same bytes and the same errors.
    """

    option_types: ClassVar[Mapping[str, type] | None] = OPTION_TYPES
    detects_stalls: ClassVar[bool] = True

    def __init__(self, root: str, options: Mapping[str, object] | None = None) -> None:
        super().__init__(root, options)
        # The URL as it was given: a trailing slash is part of it where the root itself is asked for.
        self._target = parse_target(root)
        self._settings = parse_options(self.options, self._target.userinfo)
        self._secrets = _secrets(self._target, self._settings)
        self._head_refused = False
        self._told: set[str] = set()
        # One set of clients a process: after a fork the child makes its own and leaves the parent's alone.
        self._clients: dict[int, _Clients] = {}
        fork.install()

    @classmethod
    def join_options(cls, root: str, layers: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
        """The strongest place's kind of credentials is the only one."""
        return join(layers)

    @classmethod
    def probe_driver(cls, options: Mapping[str, object]) -> Capabilities:
        """Which driver serves this process, and why. Single objects may still be handed over, see the log."""
        reason = options_refusal(parse_options(options)) or fork.unusable_reason()
        if reason is not None:
            return Capabilities(
                native_async=True, ranges=True, stat=True, driver="fsspec", version=version("aiohttp"), reason=reason
            )
        asked = options.get("driver") == "obstore"
        return Capabilities(
            native_async=True,
            ranges=True,
            stat=True,
            fork_safe=False,
            driver="obstore",
            version=version("obstore"),
            reason="asked for with driver='obstore'" if asked else "the default: the fastest, for bodies with a length",
        )

    @classmethod
    def index_options(cls, options: Mapping[str, object]) -> Mapping[str, object]:
        """aiohttp, which starts no threads, unless obstore's run here already, or a driver was asked for."""
        if "driver" in options or fork.is_started():
            return options
        return {**options, "driver": "fsspec"}

    def describe_access(self) -> Access:
        """Who asks, and where, in words without a secret: for `forebay doctor`."""
        origin = self._target.origin
        tried = tuple(in_order(_places(self.options, self._target)))
        used = next((step for step in tried if step.outcome == "used"), None)
        who = "nobody: no credentials are sent" if used is None else f"{used.detail} ({used.source})"
        return Access(
            who=who,
            where=origin,
            endpoint=origin,
            network=network_words(self._settings.network, origin),
            tried=tried,
        )

    # -- reading --------------------------------------------------------------------------------------------------

    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        """Write the whole object to ``fileobj``, decoded where the server encoded it."""
        self._sync(key, lambda one: one.stream(key, fileobj), lambda one: one.astream(key, fileobj))

    async def adownload_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        """Async twin of `download_fileobj`."""
        await self._async(key, lambda one: one.astream(key, fileobj))

    def download_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return ``length`` bytes from ``offset``, or all from there on."""
        check_range(key, offset, length)
        if length == 0:
            return b""
        read = self._sync(
            key,
            lambda one: one.read(key, offset, length, None),
            lambda one: one.aread(key, offset, length, None),
        )
        return bytes(read.data)

    async def adownload_bytes(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Async twin of `download_bytes`."""
        check_range(key, offset, length)
        if length == 0:
            return b""
        read = await self._async(key, lambda one: one.aread(key, offset, length, None))
        return bytes(read.data)

    async def aread_range(self, key: str, offset: int, length: int, *, if_match: str | None = None) -> RangeRead:
        """Read a piece in one request, with size and etag of the whole object from the same response.

        Where the server sends no ranges, the piece is cut out of a whole body and ``info.etag`` is None, so that
        nobody fetches such an object in parts.
        """
        check_range(key, offset, length)
        if length == 0:
            return RangeRead(data=b"", info=ObjectInfo(key))
        return await self._async(key, lambda one: one.aread(key, offset, length, if_match))

    def stat(self, key: str) -> ObjectInfo:
        """Size, etag and date of the object; by a small GET where the server refuses HEAD."""
        if not self._head_refused:
            try:
                return self._sync(key, lambda one: one.stat(key), lambda one: one.astat(key))
            except StorageError as exc:
                if exc.status not in _HEAD_REFUSED:
                    raise
        info = self._sync(key, lambda one: one.stat_by_get(key), lambda one: one.astat_by_get(key))
        self._head_refused = True
        return info

    async def astat(self, key: str) -> ObjectInfo:
        """Async twin of `stat`."""
        if not self._head_refused:
            try:
                return await self._async(key, lambda one: one.astat(key))
            except StorageError as exc:
                if exc.status not in _HEAD_REFUSED:
                    raise
        info: ObjectInfo = await self._async(key, lambda one: one.astat_by_get(key))
        self._head_refused = True
        return info

    # -- writing --------------------------------------------------------------------------------------------------

    def upload_file(self, key: str, path: Path) -> None:
        """PUT the file's bytes, where the server takes that (WebDAV, an upload URL)."""
        check_key(key)
        clients = self._here()
        clients.loop.run(clients.aiohttp.aupload(key, path))

    async def aupload_file(self, key: str, path: Path) -> None:
        """Async twin of `upload_file`."""
        check_key(key)
        await self._here().aiohttp.aupload(key, path)

    # -- drivers --------------------------------------------------------------------------------------------------

    def _sync(
        self,
        key: str,
        fast: Callable[[HttpObstoreDriver], T],
        other: Callable[[AiohttpDriver], Coroutine[Any, Any, T]],
    ) -> T:
        check_key(key)
        clients = self._here()
        if clients.choice.against(key) is None and fork.needs_check():
            fork.check_alive()
        reason = clients.choice.against(key)
        if reason is None:
            try:
                result = fast(clients.obstore)
            except Handover as exc:
                reason = clients.choice.handed_over(key, exc)
            else:
                clients.choice.served()
                return result
        self._tell(key, reason)
        return clients.loop.run(other(clients.aiohttp))

    async def _async(self, key: str, call: Callable[[Any], Awaitable[T]]) -> T:
        check_key(key)
        clients = self._here()
        if clients.choice.against(key) is None and fork.needs_check():
            await fork.check_alive_async()
        reason = clients.choice.against(key)
        if reason is None:
            try:
                result = await call(clients.obstore)
            except Handover as exc:
                reason = clients.choice.handed_over(key, exc)
            else:
                clients.choice.served()
                return result
        self._tell(key, reason)
        return await call(clients.aiohttp)

    def _tell(self, key: str, reason: str) -> None:
        if reason in self._told or self._settings.driver == "fsspec":
            return
        self._told.add(reason)
        level = logging.WARNING if reason == fork.unusable_reason() else logging.INFO
        logger.log(level, "%s: reading through aiohttp instead of obstore: %s", self._target.shown(key), reason)

    def _here(self) -> _Clients:
        # setdefault is atomic, so no lock can be inherited locked by a child.
        clients = self._clients.get(os.getpid())
        if clients is None:
            clients = self._clients.setdefault(os.getpid(), _Clients(self._target, self._settings, self._subject))
        return clients

    def _subject(self, key: str, driver: str) -> Subject:
        return Subject(key, driver, "http", self._target.shown, self._secrets, _TABLE)

    # -- life -----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close what belongs to the running loop, and let obstore's threads come to rest."""
        clients = self._clients.get(os.getpid())
        if clients is not None:
            await clients.aclose()
        await drain.adrain()

    def close(self) -> None:
        """Close every client of this process, and let obstore's threads come to rest."""
        clients = self._clients.pop(os.getpid(), None)
        if clients is not None:
            clients.close()
        drain.drain()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_clients": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        fork.install()  # a spawned worker makes none of its own, and may fork


class _Clients:
    """The clients of one process. Each driver is imported and made when the first request needs it."""

    def __init__(self, target: Target, options: HttpOptions, subject: Callable[[str, str], Subject]) -> None:
        self._args = target, options, subject
        self._lock = threading.Lock()
        self._obstore: HttpObstoreDriver | None = None
        self._aiohttp: AiohttpDriver | None = None
        self.choice = Choice(target, options)
        self.loop = LoopThread()

    @property
    def obstore(self) -> HttpObstoreDriver:
        from forebay_http._obstore_driver import HttpObstoreDriver

        with self._lock:
            if self._obstore is None:
                self._obstore = HttpObstoreDriver(*self._args)
            return self._obstore

    @property
    def aiohttp(self) -> AiohttpDriver:
        from forebay_http._aiohttp_driver import AiohttpDriver

        with self._lock:
            if self._aiohttp is None:
                self._aiohttp = AiohttpDriver(*self._args)
            return self._aiohttp

    async def aclose(self) -> None:
        if self._aiohttp is not None:
            await self._aiohttp.aclose()

    def close(self) -> None:
        if self._aiohttp is not None:
            self.loop.close(self._aiohttp.aclose())
            self._aiohttp.close()


def _places(options: Mapping[str, object], target: Target) -> Iterator[Place]:
    headers = options.get("headers")
    names = [str(name).lower() for name in headers] if isinstance(headers, Mapping) else []
    yield Place("option bearer_token", "a token" if options.get("bearer_token") else None, options=["bearer_token"])
    yield Place("option username", "basic authentication" if options.get("username") else None, options=["username"])
    yield Place("option headers", "an Authorization" if "authorization" in names else None, options=["headers"])
    yield Place("a user in the URL", "basic authentication" if target.userinfo else None)
    yield Place("the URL's query", "whatever it holds" if target.query else None)


def _secrets(target: Target, options: HttpOptions) -> tuple[str, ...]:
    """Every text that must not be shown."""
    texts = {target.query, *(target.userinfo or ())[1:]}
    for value in options.headers.values():
        texts |= {value, value.rpartition(" ")[2]}
    return hidden_texts(texts)
