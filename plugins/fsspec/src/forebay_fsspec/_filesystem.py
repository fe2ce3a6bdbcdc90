"""`ForebayFileSystem`: what fsspec's users read with Forebay's drivers and through its cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from fsspec.implementations.chained import ChainedFileSystem

import forebay
from forebay._downloaders import REFUSALS, retire_downloader, shared_downloader
from forebay._registry import resolve
from forebay._url import redact, split_object, trim_root
from forebay.downloader import Downloader
from forebay.exceptions import (
    AccessDeniedError,
    ConfigError,
    InvalidURLError,
    ObjectNotFoundError,
    UnsupportedOperationError,
)
from forebay.types import ObjectInfo
from forebay_fsspec._file import CachedFile
from forebay_fsspec._patience import patiently
from forebay_fsspec._target import target_options, target_prefix

__all__ = ["ForebayFileSystem"]

T = TypeVar("T")
#: What fsspec itself gives to any file system.
_FSSPEC_OWN = frozenset(
    {"asynchronous", "batch_size", "listings_expiry_time", "loop", "max_paths", "skip_instance_cache",
     "use_listings_cache"}
)  # fmt: skip


class ForebayFileSystem(ChainedFileSystem):  # type: ignore[misc] # fsspec ships no types
    """Objects of any store that Forebay reads, each fetched once and read from its cache. Read only.

    ``forebay://s3://bucket/key`` needs no other file system of fsspec's. ``forebay::s3://bucket/key`` means the same
    where fsspec has one for the inner protocol, whose options are taken where Forebay has a word for them.

    Args:
        options: Options of the backend, as `forebay.fetch` takes them.
        cache_dir: The cache directory; None takes the configured one.
        max_cache_bytes: The cache's budget; None keeps the recorded one.
        revalidate: Whether a cached copy is compared with the store, once a process.
        timeout: Seconds for each object; None sets no limit while bytes move.
        target_protocol: Of the file system under this one, in a chained URL.
        target_options: Its options.
        fo: Its path; given by fsspec, and not needed here.
    """

    protocol: ClassVar[str] = "forebay"
    root_marker: ClassVar[str] = ""

    def __init__(
        self,
        *,
        options: Mapping[str, object] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        max_cache_bytes: int | str | None = None,
        revalidate: bool = True,
        timeout: float | None = None,
        target_protocol: str | None = None,
        target_options: Mapping[str, object] | None = None,
        fo: str | None = None,
        **kwargs: Any,
    ) -> None:
        _refuse_strangers(kwargs)
        super().__init__(**kwargs)
        self._options = _joined(options, target_protocol, target_options)
        self._cache: dict[str, Any] = {
            "cache_dir": cache_dir, "max_cache_bytes": max_cache_bytes, "revalidate": revalidate, "timeout": timeout
        }  # fmt: skip
        self._prefix = "" if target_protocol is None else target_prefix(target_protocol)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        """The URL behind ``forebay://``, without trailing slashes but those of a web address."""
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        text = os.fspath(path)
        for mark in ("forebay://", "forebay::"):
            text = text.removeprefix(mark)
        if not text or text.startswith(("http://", "https://")):
            return text
        return trim_root(text)

    # -- reading --------------------------------------------------------------------------------------------------

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Mapping[str, object] | None = None,
        **kwargs: Any,
    ) -> CachedFile:
        """Fetch the object, where it is not cached, and open it; the file keeps its lease until it is closed."""
        if mode != "rb":
            text = f"mode {mode!r}: forebay:// only reads; write through the store's own protocol"
            raise UnsupportedOperationError(text, url=redact(self._url(path)))
        return CachedFile(forebay.fetch(self._url(path), options=self._options, **self._cache), self, path)

    # -- what is known of objects ---------------------------------------------------------------------------------

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Name, size, type, etag and date, as the store says now."""
        path = self._strip_protocol(path)
        try:
            downloader, key = self._find_object(path)
        except InvalidURLError:
            downloader, _ = self._find_folder(path)  # a bucket or the like
            self._ask(downloader, lambda: next(iter(downloader.list("")), None))
            return _folder(path)
        try:
            return self._entry(path, self._ask(downloader, lambda: downloader.stat(key)))
        except (FileNotFoundError, UnsupportedOperationError):
            if self._is_folder(path):
                return _folder(path)
            raise

    def _is_folder(self, path: str) -> bool:
        try:
            downloader, start = self._find_folder(path)
            return self._ask(downloader, lambda: next(iter(downloader.list(start)), None)) is not None
        except (UnsupportedOperationError, AccessDeniedError, ObjectNotFoundError):
            return False  # nothing that could be shown as a folder

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """What lies in a folder, one level deep."""
        path = self._strip_protocol(path)
        downloader, start = self._find_folder(path)
        entries: dict[str, dict[str, Any]] = {}
        for found in self._ask(downloader, lambda: list(downloader.list(start))):
            inner, slash, _ = found.key[len(start) :].partition("/")
            name = f"{self._base(path)}{inner}"
            if slash and inner:
                entries.setdefault(name, _folder(name))
            elif inner:
                entries[name] = self._entry(name, found)
        if not entries:
            # An object by that name, or the error that says that there is none.
            alone = self.info(path)
            entries = {} if alone["type"] == "directory" else {path: alone}
        return [entries[name] for name in sorted(entries)] if detail else sorted(entries)

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **kwargs: Any
    ) -> Any:
        """Every object below ``path``: one listing, unless levels or folders are asked for."""
        if maxdepth is not None or withdirs:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **kwargs)
        path = self._strip_protocol(path)
        downloader, start = self._find_folder(path)
        base = self._base(path)
        listed = self._ask(downloader, lambda: list(_named(downloader, start, base)))
        found = {name: self._entry(name, one) for name, one in listed}
        if not found and self.isfile(path):
            found = {path: self.info(path)}
        return dict(sorted(found.items())) if detail else sorted(found)

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether there is an object or a folder; a store that cannot say raises."""
        return self._type(path) is not None

    def isfile(self, path: str) -> bool:
        """Whether there is an object."""
        return self._type(path) == "file"

    def isdir(self, path: str) -> bool:
        """Whether there is a folder."""
        return self._type(path) == "directory"

    def _type(self, path: str) -> str | None:
        try:
            return str(self.info(path)["type"])
        except FileNotFoundError:
            return None

    def modified(self, path: str) -> Any:
        """When the object was written last.

        Raises:
            UnsupportedOperationError: The store does not say.
        """
        moment = self.info(path).get("LastModified")
        if moment is None:
            raise UnsupportedOperationError("the store shows no date", url=redact(self._url(path)))
        return moment

    def _ask(self, downloader: Downloader, question: Callable[[], T]) -> T:
        try:
            return patiently(self._options, question)
        except REFUSALS:
            retire_downloader(downloader)
            raise

    # -- URLs -----------------------------------------------------------------------------------------------------

    def _url(self, path: str) -> str:
        path = self._strip_protocol(path)
        return path if not self._prefix or "://" in path else self._prefix + path

    def _base(self, path: str) -> str:
        return path if not path or path.endswith("/") else path + "/"

    def _entry(self, name: str, info: ObjectInfo) -> dict[str, Any]:
        facts = {"ETag": info.etag, "version": info.version, "LastModified": info.last_modified}
        known = {key: value for key, value in facts.items() if value is not None}
        return {"name": name, "size": info.size, "type": "file", **known}

    def _find_object(self, path: str) -> tuple[Downloader, str]:
        resolved = resolve(self._url(path), self._options)
        root, key = split_object(resolved.url)
        return shared_downloader(resolved, root), key

    def _find_folder(self, path: str) -> tuple[Downloader, str]:
        """A downloader, and what the keys of everything in the folder begin with."""
        resolved = resolve(self._url(path), self._options)
        try:
            root, key = split_object(resolved.url)
        except InvalidURLError:
            return shared_downloader(resolved, str(resolved.url)), ""
        return shared_downloader(resolved, root), f"{key}/" if key else ""


def _refuse_strangers(kwargs: Mapping[str, object]) -> None:
    """Nothing is dropped in silence: fsspec's base class takes any word and uses none of these."""
    for name in kwargs:
        if name not in _FSSPEC_OWN:
            raise ConfigError(
                f"forebay:// takes no argument {name!r}; Forebay's options go into options={{…}}, those that fsspec's"
                f" file system of the inner URL would take into target_options={{…}} with target_protocol='s3' and the"
                f" like, or into a chain: forebay::s3://…, s3={{…}}",
                option=name,
            )


def _joined(
    options: Mapping[str, object] | None, protocol: str | None, given: Mapping[str, object] | None
) -> dict[str, object] | None:
    below = {} if protocol is None else target_options(protocol, given or {})
    return {**below, **(options or {})} or None


def _folder(name: str) -> dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory"}


def _named(downloader: Downloader, start: str, base: str) -> Iterator[tuple[str, ObjectInfo]]:
    for found in downloader.list(start):
        inner = found.key[len(start) :]
        if inner:
            yield base + inner, found
