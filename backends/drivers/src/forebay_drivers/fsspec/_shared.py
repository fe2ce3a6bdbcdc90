"""What the two shapes of the driver have in common: paths, checks of what came, and the translation of errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

from forebay.downloader import SupportsWrite
from forebay.exceptions import IncompleteBodyError, InvalidRangeError, ObjectChangedError, UnsupportedOperationError
from forebay.types import ObjectInfo, RangeRead
from forebay_drivers.checksums import BodyCheck
from forebay_drivers.errors import Subject, failure
from forebay_drivers.fsspec._dialect import Dialect
from forebay_drivers.fsspec._errors import translate
from forebay_drivers.fsspec._info import is_folder, object_info

__all__ = [
    "PIECE",
    "Paths",
    "Target",
    "acall",
    "call",
    "checked_range",
    "compare",
    "past_the_end",
    "refuse_listing",
]

T = TypeVar("T")

#: Bytes that a body which cannot be streamed is read in.
PIECE = 4 << 20


class Paths:
    """Keys and paths under one root.

    Args:
        prefix: What stands before a key in a path: ``""``, or text that ends in ``/``.
        root: The path of the root itself; None cuts it from ``prefix``.
    """

    def __init__(self, prefix: str, dialect: Dialect, root: str | None = None) -> None:
        self._prefix = prefix
        self._root = prefix.removesuffix("/") if root is None else root
        self._dialect = dialect

    def path(self, key: str) -> str:
        """The path of ``key``; an empty key is the root itself."""
        return self._prefix + self._dialect.encode(key) if key else self._root

    def refusal(self, key: str) -> str | None:
        """See `Driver.refusal`."""
        return self._dialect.refusal(self.path(key), key)

    def start(self, prefix: str) -> str:
        """What the path of every key begins with that starts with ``prefix``."""
        return self._prefix + self._dialect.encode(prefix)

    def listed(self, found: Mapping[str, Mapping[str, Any]], prefix: str) -> Iterator[ObjectInfo]:
        """The objects of a listing whose key starts with ``prefix``, sorted."""
        for path, info in sorted(found.items()):
            # Some file systems show paths with a leading slash that they do not ask for, and the other way round.
            inside = path.startswith(self._prefix)
            bare = path[len(self._prefix) :] if inside else _cut(path, self._prefix)
            if not bare or is_folder(info) or (bare.endswith("/") and not info.get("size")):
                continue  # a folder, or an empty object that stands for one
            key = self._dialect.decode(bare)
            if key.startswith(prefix):
                yield object_info(key, info)


def _cut(path: str, prefix: str) -> str | None:
    path, prefix = path.lstrip("/"), prefix.lstrip("/")
    return path[len(prefix) :] if path.startswith(prefix) else None


def call(subject: Subject, function: Callable[[], T]) -> T:
    """Run ``function`` with errors of file systems in our terms; those that nobody knows come as they are."""
    try:
        return function()
    except Exception as exc:  # a file system may raise anything; what is not in the table is raised again
        problem = translate(exc, subject)
        if problem is None:
            raise
    # Outside of the handler: the SDK's own error, which may hold the request, is no context of ours.
    raise problem


async def acall(subject: Subject, function: Callable[[], Awaitable[T]], target: Target | None = None) -> T:
    """Async twin of `call`; an error that ``target`` raised is the caller's own."""
    try:
        return await function()
    except Exception as exc:  # as in `call`
        problem = None if target is not None and target.failure is exc else translate(exc, subject)
        if problem is None:
            raise
    raise problem


class Target:
    """What fsspec takes for an open file, over what a hook is given; remembers an error of the caller's own."""

    def __init__(self, fileobj: SupportsWrite) -> None:
        self._fileobj = fileobj
        self._check = BodyCheck()
        self.failure: BaseException | None = None

    def expect(self, checksums: tuple[str, ...] | None) -> None:
        """Have what follows compared with one of the store's checksums of the whole; before the first byte."""
        self._check = BodyCheck(checksums)

    def check(self, subject: Subject) -> None:
        """There is no more: compare."""
        self._check.finish(subject)

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        """Hand ``data`` on."""
        self._check.update(data)
        try:
            return self._fileobj.write(data)
        except BaseException as exc:
            self.failure = exc
            raise

    def read(self, _: int = -1) -> bytes:
        """Nothing is read from it."""
        return b""

    def tell(self) -> int:
        """Nobody needs the place."""
        return 0

    def close(self) -> None:
        """The caller's business."""


def compare(before: ObjectInfo, after: ObjectInfo, subject: Subject) -> None:
    """Raise `ObjectChangedError` where the object is another one than before."""
    for then, now in ((before.etag, after.etag), (before.version, after.version), (before.size, after.size)):
        if then is not None and now is not None and then != now:
            raise failure(ObjectChangedError, f"the object changed while it was read: {then} became {now}", subject)


def checked_range(data: bytes, info: ObjectInfo, offset: int, length: int | None, subject: Subject) -> RangeRead:
    """What came, against what was asked for.

    Args:
        data: The bytes that came. More than were asked for are a whole body: the store ignored the range.
        info: What is known of the whole object.
        offset: Where the range starts.
        length: Its length; None to the end.
        subject: What was asked for.
    """
    size = info.size
    if offset > 0 and (offset >= size if size is not None else not data):
        past_the_end(offset, size, subject)
    expected = None if size is None else size - offset if length is None else min(length, size - offset)
    asked = length if expected is None else expected
    if asked is not None and len(data) > asked:
        if size is not None and len(data) != size:
            what = f"{len(data)} bytes arrived where {asked} were asked for"
            raise failure(IncompleteBodyError, what, subject)
        # Cut out of a whole body, which each part would cost again: without an etag nobody asks for parts.
        stop = None if length is None else offset + length
        bare = ObjectInfo(info.key, len(data), None, None, info.last_modified)
        return RangeRead(data=memoryview(data)[offset:stop], info=bare)
    if expected is not None and len(data) < expected:
        raise failure(IncompleteBodyError, f"{len(data)} of {expected} bytes arrived", subject)
    return RangeRead(data=data, info=info)


def past_the_end(offset: int, size: int | None, subject: Subject) -> NoReturn:
    """Raise `InvalidRangeError`."""
    told = "" if size is None else f", which has {size}"
    raise failure(InvalidRangeError, f"byte {offset} is not in the object{told}", subject)


def refuse_listing(subject: Subject) -> NoReturn:
    """Raise: the file system shows no listing that could be relied on."""
    raise failure(UnsupportedOperationError, "a web server has no listing", subject)
