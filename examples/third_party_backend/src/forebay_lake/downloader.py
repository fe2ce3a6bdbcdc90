"""The whole backend: one method that moves bytes, and one table from the store's answers to Forebay's errors."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPResponse
from urllib.parse import quote

from forebay import Downloader
from forebay.downloader import SupportsWrite
from forebay.exceptions import (
    AccessDeniedError,
    IncompleteBodyError,
    ObjectNotFoundError,
    ServerError,
    StorageError,
    ThrottledError,
)

ERRORS: dict[int, type[StorageError]] = {403: AccessDeniedError, 404: ObjectNotFoundError, 429: ThrottledError}


class LakeDownloader(Downloader):
    """Objects of ``lake://HOST:PORT/LAKE``. A connection that breaks raises ConnectionError, which is tried again."""

    option_types = {"token": str}  # noqa: RUF012 - a constant

    def download_fileobj(self, key: str, fileobj: SupportsWrite) -> None:
        # A root may end after the host (`forebay.fetch` asks so): only root and key together say which lake it is.
        host, _, rest = f"{self.root}/{key}".removeprefix("lake://").partition("/")
        lake, _, name = rest.partition("/")
        connection = HTTPConnection(host, timeout=30)
        try:
            path = f"/v1/{quote(lake, safe='')}/{quote(name, safe='')}"
            connection.request("GET", path, headers={"X-Lake-Token": str(self.options.get("token", ""))})
            response = connection.getresponse()
            if response.status != 200:
                raise error_for(response, key)
            while piece := response.read(2**20):
                fileobj.write(piece)
            if response.length:  # what is left of the promised length
                raise IncompleteBodyError(f"the lake sent {key!r} without its last {response.length} bytes", key=key)
        finally:
            connection.close()


def error_for(response: HTTPResponse, key: str) -> StorageError:
    kind = ServerError if response.status >= 500 else ERRORS.get(response.status, StorageError)
    return kind(f"the lake answers {response.status} for {key!r}", key=key, status=response.status)
