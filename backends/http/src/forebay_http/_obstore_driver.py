"""The obstore driver under http: identity bodies with a length; what it cannot do it hands over."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from obstore.store import HTTPStore

from forebay.types import ObjectInfo
from forebay_drivers.errors import Subject
from forebay_drivers.obstore import SDK_ERRORS, ObstoreDriver, client_config, retry_config
from forebay_http._choice import Handover
from forebay_http._obstore_errors import translate_or_hand_over
from forebay_http._options import HttpOptions
from forebay_http._target import Target

if TYPE_CHECKING:
    from obstore import GetResult

__all__ = ["HttpObstoreDriver"]


class HttpObstoreDriver(ObstoreDriver):
    """Talks to one root through obstore. Clients are made at the first request, once, under a lock."""

    def __init__(self, target: Target, options: HttpOptions, subject: Callable[[str, str], Subject]) -> None:
        super().__init__(self._make_store, lambda key: subject(key, self.name))
        self._target = target
        self._options = options

    def _make_store(self) -> HTTPStore:
        options = self._options
        client = client_config(options.network, {"Accept-Encoding": "identity", **options.headers})
        url = self._target.origin + self._target.root
        try:
            store = HTTPStore(url, client_options=client, retry_config=retry_config())
        except SDK_ERRORS as exc:
            problem = translate_or_hand_over(exc, self._subject(""))
        else:
            if store.url.rstrip("/") == url:
                return store
            problem = Handover("obstore would rewrite the root's URL")
        raise problem

    def stat(self, key: str) -> ObjectInfo:
        """What a HEAD request says; the downloader remembers where it is refused."""
        return self.head(key)

    async def astat(self, key: str) -> ObjectInfo:
        """Async twin of `stat`."""
        return await self.ahead(key)

    def stat_by_get(self, key: str) -> ObjectInfo:
        """What the response to a GET of one byte says, for servers that refuse HEAD."""
        return self.read(key, 0, 1, None).info

    async def astat_by_get(self, key: str) -> ObjectInfo:
        """Async twin of `stat_by_get`."""
        return (await self.aread(key, 0, 1, None)).info

    def _translate(self, exc: Exception, subject: Subject) -> Exception:
        return translate_or_hand_over(exc, subject)

    def _info(self, result: GetResult, key: str, subject: Subject, if_match: str | None) -> ObjectInfo:
        if "Content-Encoding" in result.attributes:
            raise Handover("the server encodes the body though it was asked not to")
        return super()._info(result, key, subject, if_match)
