"""What lies at a URL: an object, a dataset's folder, another folder, a bucket; and whether its bytes can be had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from forebay.cli._doctor._step import Outcome, Step, attempt

if TYPE_CHECKING:
    from forebay._registry import Resolved
    from forebay.downloader import Downloader

__all__ = ["ask"]

_ENOUGH = 3  # objects of a listing that are looked at


def ask(resolved: Resolved) -> Iterator[Outcome]:
    """The object first where the URL may name one, then the folder: its index, its listing, its bytes.

    An answer that says that no object, or nothing for us, is there fails nothing yet: folders look so. What fails in
    another way (no connection, refused credentials) would fail again, and ends it.
    """
    from forebay.exceptions import InvalidURLError

    try:
        target = _split(resolved)
    except InvalidURLError:  # a bucket, or a folder by its last slash
        yield from _folder(resolved)
        return
    found = _object(resolved, *target)
    yield found
    if _hopeless(found):
        return
    if found.error is None and target[1]:
        yield _read(resolved, *target)
        yield _verdict(resolved, "object", "an object")
        return
    # A web address answers by itself where it is a folder too.
    yield from _folder(
        resolved, page=target if found.error is None else None, refused=target if _denied(found) else None
    )


def _split(resolved: Resolved) -> tuple[str, str]:
    from forebay._registry import make
    from forebay._url import split_object

    url = resolved.url
    if url.scheme in ("http", "https") and url.scheme in resolved.backend.schemes:
        return str(url), ""
    if url.rest.endswith("/"):
        from forebay.exceptions import InvalidURLError

        raise InvalidURLError(f"{url.redacted} names a folder")
    root, key = split_object(url, store=url.scheme not in resolved.backend.schemes)
    make(resolved, root).close()  # raises where the only part of a web address's path is the bucket
    return root, key


def _object(resolved: Resolved, root: str, key: str) -> Outcome:
    from forebay.exceptions import AccessDeniedError, UnsupportedOperationError

    def look() -> tuple[str, Mapping[str, object]]:
        with _opened(resolved, root) as downloader:
            info = downloader.stat(key)
        size = "unknown size" if info.size is None else f"{info.size} bytes"
        facts = {"key": info.key, "size": info.size, "etag": info.etag, "version": info.version}
        return f"there is one: {size}" + (f", etag {info.etag}" if info.etag else ""), facts

    harmless = (FileNotFoundError, IsADirectoryError, AccessDeniedError, UnsupportedOperationError)
    return attempt("object", look, harmless=harmless, then="; looking for a folder of that name")


def _hopeless(outcome: Outcome) -> bool:
    return outcome.step.outcome == "failed"


def _denied(outcome: Outcome) -> bool:
    return outcome.error is not None and not isinstance(outcome.error, FileNotFoundError)


def _folder(
    resolved: Resolved, *, page: tuple[str, str] | None = None, refused: tuple[str, str] | None = None
) -> Iterator[Outcome]:
    """What lies below the URL. ``page``: it is an object by itself; ``refused``: it may be one that we may not read."""
    index = _index(resolved)
    yield index
    if _hopeless(index):
        return
    name = str(index.step.facts["index"]) if index.error is None else None
    listing, listed = _list(resolved, needed=name is None and page is None)
    yield listing
    root = str(resolved.url)
    if name is not None:
        yield _read(resolved, root, next((key for key, size in listed if size), name))
        yield _verdict(resolved, "dataset", f"a dataset: {name}")
    elif listed:
        yield _read(resolved, root, next((key for key, size in listed if size), listed[0][0]))
        yield _verdict(resolved, "folder", f"a folder with objects, and no dataset: there is no {_names()}")
    elif page is not None:
        yield _read(resolved, *page)
        yield _verdict(resolved, "object", "an object")
    elif refused is not None:
        yield _read(resolved, *refused)
    elif not _hopeless(listing):
        beside = "nothing in its listing" if listing.error is None else "and it cannot be listed"
        text = f"nothing lies at {resolved.url.redacted}: no object, no {_names()} below it, {beside}"
        yield Outcome(step=Step(name="read", outcome="failed", detail=text, facts={"error": "ObjectNotFoundError"}))
    else:
        yield _read(resolved, root, _index_names()[0])


def _index(resolved: Resolved) -> Outcome:
    from forebay.exceptions import AccessDeniedError, ObjectNotFoundError

    def look() -> tuple[str, Mapping[str, object]]:
        missing: Exception | None = None
        with _opened(resolved, str(resolved.url)) as downloader:
            for name in _index_names():
                try:
                    downloader.download_bytes(name, 0, 1)
                except (FileNotFoundError, NotADirectoryError, AccessDeniedError) as exc:
                    missing = exc if missing is None else missing
                else:
                    return f"{name} is there", {"index": name}
        raise missing or ObjectNotFoundError("no format is installed")

    return attempt("index", look, harmless=(FileNotFoundError, NotADirectoryError, AccessDeniedError))


def _list(resolved: Resolved, *, needed: bool) -> tuple[Outcome, list[tuple[str, int | None]]]:
    from forebay.exceptions import AccessDeniedError, UnsupportedOperationError

    seen: list[tuple[str, int | None]] = []

    def look() -> tuple[str, Mapping[str, object]]:
        with _opened(resolved, str(resolved.url)) as downloader:
            for info in downloader.list(""):
                seen.append((info.key, info.size))
                if len(seen) >= _ENOUGH:
                    break
        return f"{len(seen) or 'no'} objects looked at", {"listed": [key for key, _ in seen]}

    harmless: tuple[type[Exception], ...] = (UnsupportedOperationError,)
    if not needed:
        harmless += (AccessDeniedError, FileNotFoundError)
    return attempt("list", look, harmless=harmless, then="; reading needs no listing"), seen


def _read(resolved: Resolved, root: str, key: str) -> Outcome:
    def look() -> tuple[str, Mapping[str, object]]:
        with _opened(resolved, root) as downloader:
            data = downloader.download_bytes(key, 0, 1)
        return f"{len(data)} byte of {key or 'it'!r}", {"key": key}

    return attempt("read", look)


def _verdict(resolved: Resolved, kind: str, words: str) -> Outcome:
    return Outcome(
        step=Step(name="verdict", outcome="ok", detail=f"{resolved.url.redacted} is {words}", facts={"kind": kind})
    )


def _opened(resolved: Resolved, root: str) -> closing[Downloader]:
    from forebay._registry import make

    return closing(make(resolved, root))


def _index_names() -> list[str]:
    from forebay._registry import formats

    return [name for spec in formats() for name in spec.index_names]


def _names() -> str:
    return " or ".join(_index_names())
