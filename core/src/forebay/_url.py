"""URLs: one way to read, join, split, compare and redact them.

Nothing here decodes or normalises a key. What stands behind the bucket of an object store is the key, byte for byte
(``#``, ``?``, ``%20`` and ``//`` included); only http(s) URLs have a query, and only
``file:`` URLs are percent-decoded.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

from forebay.exceptions import InvalidURLError

__all__ = ["URL", "identity", "is_scheme", "join_url", "local_path", "parse_url", "redact", "split_object", "trim_root"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+")
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):/(?!/)")
_HTTP = frozenset({"http", "https"})
_OBJECT_STORES = frozenset({"s3", "gs", "gcs", "az", "azure", "abfs", "abfss"})
#: Schemes whose "?" and "#" belong to the key, so that hiding them would hide which object failed.
_LITERAL = _OBJECT_STORES | {"memory", "file"}
_CONTROL = re.compile(r"[\x00-\x20\x7f]")


@dataclass(frozen=True, slots=True, repr=False)
class URL:
    """A URL in two pieces. ``str(url)`` is the whole text and may hold secrets; ``repr`` and ``redacted`` never do.

    ``scheme`` is lower case, and ``file`` for bare paths. ``rest`` is what follows ``://``, byte for byte; of a bare
    path (``bare=True``) it is the path itself, which is never percent-decoded.
    """

    scheme: str
    rest: str
    bare: bool = False

    def __str__(self) -> str:
        return self.rest if self.bare else f"{self.scheme}://{self.rest}"

    def __repr__(self) -> str:
        return f"URL({self.redacted!r})"

    @property
    def redacted(self) -> str:
        """The text without passwords, queries and tokens, for people."""
        return self.rest if self.bare else f"{self.scheme}://{_redact_rest(self.scheme, self.rest)}"


def is_scheme(text: str) -> bool:
    """Whether ``text`` can be a scheme. One letter cannot: it would be a Windows drive."""
    return _SCHEME.fullmatch(text) is not None


def parse_url(url: str | os.PathLike[str] | URL) -> URL:
    """Read ``url``; text without a scheme, and every path object, is a local path.

    Raises:
        InvalidURLError: The text is neither a path nor a URL with a valid scheme and the parts that its scheme needs.
    """
    if isinstance(url, URL):
        return url
    text = os.fspath(url)
    if not isinstance(text, str):
        raise InvalidURLError("a URL or path is text, not bytes; os.fsdecode() makes one from the other")
    if not text or "\0" in text:
        raise InvalidURLError("a URL or path is empty" if not text else "a URL or path holds a NUL character")
    head, separator, rest = text.partition("://")
    if separator and not set(head) & set("/\\") and isinstance(url, str):
        if len(head) == 1 and head.isascii() and head.isalpha():
            return URL("file", text, bare=True)
        if not is_scheme(head):
            raise InvalidURLError(
                f"{head!r} is no URL scheme: one starts with a letter and goes on with letters, digits, '+', '-' or '.'"
            )
        return _checked(URL(head.lower(), rest))
    slash = _ONE_SLASH.match(text)
    if slash is None:
        return URL("file", text, bare=True)
    if slash[1].lower() == "file" and isinstance(url, str):
        return URL("file", text[len("file:") :])
    # A Path made from a URL loses a slash; taking it for a local path would be a silent fallback.
    scheme = slash[1]
    raise InvalidURLError(
        f"{scheme}:/ has one slash: write {scheme}://… as text (pathlib drops a slash), or ./{scheme}:/… for a path"
    )


def _checked(url: URL) -> URL:
    authority = re.split(r"[/?#]" if url.scheme in _HTTP else "/", url.rest, maxsplit=1)[0]
    if url.scheme in _HTTP:
        if not authority.rpartition("@")[2].partition(":")[0]:
            raise InvalidURLError(f"{url.redacted} names no host")
        if _CONTROL.search(url.rest):
            raise InvalidURLError(f"{url.redacted} holds a space or control character; percent-encode it")
        if "#" in url.rest:
            # A fragment is never sent, so a#1.bin and a#2.bin would be one object.
            raise InvalidURLError(f"{url.redacted} has a fragment, which no server sees; write %23 for a '#' in a path")
    elif url.scheme in _OBJECT_STORES and not authority:
        raise InvalidURLError(f"{url.redacted} names no bucket: {url.scheme}://BUCKET/KEY")
    return url


def local_path(url: URL) -> Path:
    """The path of a ``file`` URL: percent-decoded when written as a URL, as it is when written as a path.

    Raises:
        InvalidURLError: The URL is of another scheme or names another host.
    """
    if url.scheme != "file":
        raise InvalidURLError(f"{url.redacted} is not a local path")
    if url.bare:
        return Path(url.rest)
    host, slash, path = url.rest.partition("/")
    if os.name == "nt" and re.fullmatch(r"[A-Za-z]:", host):
        host, path = "", url.rest
    if host.lower() not in ("", "localhost") or not slash:
        raise InvalidURLError(
            f"{url.redacted} names a host: a local file is file:///absolute/path or a path without file://"
        )
    decoded = os.fsdecode(unquote_to_bytes(os.fsencode(path)))
    if "\0" in decoded:
        raise InvalidURLError(f"{url.redacted} holds a NUL character")
    drive = os.name == "nt" and re.match(r"[A-Za-z]:", decoded)
    return Path(decoded if drive else "/" + decoded)


def trim_root(root: str) -> str:
    """``root`` without trailing slashes; a query, and the slashes that make it a root at all, stay."""
    scheme, separator, rest = root.partition("://")
    if not separator or "/" in scheme:
        return root.rstrip("/") or root[:1]
    if scheme.lower() in _HTTP and "?" in rest:
        return root
    trimmed = rest.rstrip("/")
    if not trimmed and scheme.lower() == "file":
        trimmed = rest[:1]
    return scheme + separator + trimmed


def join_url(root: str, key: str) -> str:
    """The URL of the object ``key`` under ``root``: another text for each other (root, key).

    In http(s) and ``file:`` URLs the key is percent-encoded, and a query stays last; elsewhere it is literal. An empty
    key is the root itself.
    """
    if not key:
        return root
    url = parse_url(root)
    path, mark, query = url.rest.partition("?") if url.scheme in _HTTP else (url.rest, "", "")
    if url.scheme in _HTTP or (url.scheme == "file" and not url.bare):
        key = quote(key, safe="/", errors="surrogateescape")
    joined = f"{path.removesuffix('/')}/{key}{mark}{query}"
    return str(URL(url.scheme, joined, url.bare))


def split_object(url: URL, *, store: bool = False) -> tuple[str, str]:
    """Split the URL of one object into (root, key), so that a downloader of the root can be asked for the key.

    Args:
        url: Of the object.
        store: An object store reads it: of a http(s) URL the last part of the path is the key, decoded, and a query
            stays with the root. A web server's object is the whole URL with an empty key.

    Raises:
        InvalidURLError: The URL names a bucket or folder and no object in it.
    """
    if url.scheme in _HTTP and store:
        place, mark, query = url.rest.partition("?")
        folder, slash, last = place.rpartition("/")
        if not slash or not last:
            raise InvalidURLError(f"{url.redacted} names no object, only a root")
        return str(URL(url.scheme, folder + mark + query)), os.fsdecode(unquote_to_bytes(last))
    if url.scheme in _HTTP:
        return str(url), ""
    if url.scheme == "file":
        path = local_path(url)
        if url.rest.endswith("/") or path.name in ("", ".."):
            raise InvalidURLError(f"{url.redacted} names a folder, not an object")
        return str(path.parent), path.name
    authority, _, key = url.rest.partition("/")
    if not key:
        raise InvalidURLError(f"{url.redacted} names no object, only a root")
    return f"{url.scheme}://{authority}", key


_SIGNATURES: tuple[tuple[frozenset[str], re.Pattern[str]], ...] = tuple(
    (frozenset(needs), re.compile(drops))
    for needs, drops in (
        # Each known way to presign: the parameters that give it away, and those that it adds (all lower case).
        ({"x-amz-signature"}, r"x-amz-.*"),
        ({"x-goog-signature"}, r"x-goog-.*"),
        ({"x-oss-signature"}, r"x-oss-.*"),
        ({"signature", "awsaccesskeyid"}, r"signature|awsaccesskeyid|expires|x-amz-security-token"),
        ({"signature", "googleaccessid"}, r"signature|googleaccessid|expires"),
        ({"signature", "ossaccesskeyid"}, r"signature|ossaccesskeyid|expires|security-token"),
        ({"signature", "key-pair-id"}, r"signature|key-pair-id|expires|policy|hash-algorithm"),
        ({"sig", "sv"}, r"sig|s[vepristk]|ss|srt|spr|sip|sk(?:oid|tid|t|e|s|v)|saoid|suoid|scid|sdd|ses"),
    )
)


def identity(url: str) -> str:
    """What the object behind ``url`` is remembered by: the whole URL less what presigning added. Never shown.

    A parameter is dropped only together with the others of its scheme: ``?Expires=1`` alone is kept. A local path is
    made absolute, because the working directory is part of what it means.
    """
    parsed = parse_url(url)
    if parsed.scheme == "file":
        return "file://" + quote(os.fsencode(os.path.abspath(local_path(parsed))))
    path, mark, query = parsed.rest.partition("?")
    if parsed.scheme not in _HTTP or not mark:
        return str(parsed)
    pairs = query.split("&")
    names = [pair.partition("=")[0].lower() for pair in pairs]
    drops = [pattern for needs, pattern in _SIGNATURES if needs <= set(names)]
    kept = [pair for pair, name in zip(pairs, names, strict=True) if not any(drop.fullmatch(name) for drop in drops)]
    return str(URL(parsed.scheme, path + mark * bool(kept) + "&".join(kept)))


# Parameters whose value is a secret wherever it stands. Request ids (x-amz-request-id) are for people: not here.
_SECRET_NAME = (
    r"x-(?:amz|goog|oss)-(?:signature|credential|security-token)|sig|signature|(?:aws|oss)?_?access_?key(?:_?id)?"
    r"|googleaccessid|key-pair-id|account_?key|sharedaccess(?:signature|key)|api[_-]?key|pass(?:word|wd)|client_secret"
    r"|(?:aws_)?secret(?:_?access)?(?:_?key)?|(?:[a-z]+[_-])?token"
)
_SECRET_PARAM = re.compile(rf"(?i)(?<![\w-])({_SECRET_NAME})=[^&\s'\";,]+")
_AUTHORIZATION = re.compile(r"(?i)(authorization['\"]?\s*[:=]\s*['\"]?(?:\w+\s+)?)[^\s'\",]+")
# The last group keeps the quotes, brackets and stops with which a sentence closes after a URL.
_URL_IN_TEXT = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)://(\S*?)((?:['\"`)>\],.;:]|\\n)*(?=\s|$))")


def redact(text: str) -> str:
    """``text`` without the secrets of any URL in it: passwords, query strings, tokens and signatures."""
    text = _URL_IN_TEXT.sub(lambda m: f"{m[1]}://{_redact_rest(m[1].lower(), m[2])}{m[3]}", text)
    text = _AUTHORIZATION.sub(r"\1***", text)
    return _SECRET_PARAM.sub(r"\1=***", text)


def _redact_rest(scheme: str, rest: str) -> str:
    authority, tail = _split_authority(rest)
    user, at, host = authority.rpartition("@")
    if at and scheme in _HTTP:
        authority = f"***@{host}"  # a user name alone is often a token
    elif at and ":" in user:
        authority = f"{user.partition(':')[0]}:***@{host}"
    if scheme in _LITERAL:
        return authority + _SECRET_PARAM.sub(r"\1=***", tail)
    path, mark, _ = tail.partition("?")
    return authority + _SECRET_PARAM.sub(r"\1=***", path) + ("?***" if mark else "")


def _split_authority(rest: str) -> tuple[str, str]:
    """Where the authority ends; a password with a raw ``/``, ``?`` or ``#`` belongs to it whatever the RFC says."""
    delimiter = re.search(r"[/?#]", rest)
    end = delimiter.start() if delimiter else len(rest)
    if "@" not in rest[:end] and not re.fullmatch(r"(?:\[[^\]]*\]|[^:]*)(?::\d*)?", rest[:end]):
        at = rest.find("@", end)
        if at >= 0:
            delimiter = re.compile(r"[/?#]").search(rest, at)
            end = delimiter.start() if delimiter else len(rest)
    return rest[:end], rest[end:]
