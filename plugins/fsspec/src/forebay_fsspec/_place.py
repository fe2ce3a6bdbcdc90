"""What a ``fsspec+PROTOCOL://`` root and its options mean to fsspec."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from forebay._options import ENGINE_OPTIONS
from forebay._url import URL, parse_url
from forebay.exceptions import ConfigError, InvalidURLError
from forebay_drivers.fsspec import (
    AzureDialect,
    Dialect,
    GcsDialect,
    HttpDialect,
    S3Dialect,
    SftpDialect,
    filesystem_class,
    tidy,
)
from forebay_drivers.options import seconds

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["SCHEME", "Place", "for_fsspec", "is_native", "is_secret", "protocol_of", "read_place"]

SCHEME = "fsspec+"
_HTTP = frozenset({"http", "https"})
#: File systems whose SDK shows more than fsspec's interface does.
_DIALECTS: Mapping[str, type[Dialect]] = {
    "s3fs.core.S3FileSystem": S3Dialect,
    "gcsfs.core.GCSFileSystem": GcsDialect,
    "adlfs.spec.AzureBlobFileSystem": AzureDialect,
    "fsspec.implementations.sftp.SFTPFileSystem": SftpDialect,
}
_SECRET_WORDS = ("password", "passphrase", "passwd", "secret", "token", "key", "credential", "sas", "pkey")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A root in fsspec's words."""

    make: Callable[[], AbstractFileSystem]
    prefix: str
    root: str
    dialect: Dialect
    secrets: tuple[str, ...] = field(default=(), repr=False)


def protocol_of(root: str) -> str:
    """The protocol that fsspec is asked for."""
    return parse_url(root).scheme.removeprefix(SCHEME)


def is_native(cls: type[AbstractFileSystem]) -> bool:
    """Whether it is async by itself: what wraps another file system is only so where that one is."""
    return bool(cls.async_impl) and not _takes(cls, "target_protocol")


def for_fsspec(options: Mapping[str, object]) -> dict[str, object]:
    """The options that are handed on: all but those of the engine; ``storage_options`` wins, and takes any name.

    Raises:
        ConfigError: ``storage_options`` is neither a mapping nor the JSON of one.
    """
    given = {name: value for name, value in options.items() if name not in ENGINE_OPTIONS and name != "storage_options"}
    nested = options.get("storage_options") or {}
    if isinstance(nested, str):
        try:
            nested = json.loads(nested)
        except ValueError:
            nested = None
    if not isinstance(nested, Mapping):
        raise ConfigError("option 'storage_options' is not a mapping, or the JSON of one", option="storage_options")
    return {**given, **nested}


def is_secret(name: str) -> bool:
    """Whether an option's value is one that nobody should see."""
    return any(word in name.lower() for word in _SECRET_WORDS)


def read_place(root: str, options: Mapping[str, object]) -> tuple[type[AbstractFileSystem], Place]:
    """The class of the file system, and the root in its words. Makes no file system, so no connection.

    Raises:
        MissingDependencyError: The protocol's package is not installed.
        ConfigError: fsspec does not know the protocol, or an option is wrong.
        InvalidURLError: The root holds what the file system would read as something else than a path.
    """
    url = parse_url(root)
    protocol = protocol_of(root)
    cls = filesystem_class(protocol)
    plain = f"{protocol}://{url.rest}"
    is_http = protocol in _HTTP
    prefix = _prefix(cls, plain, url)
    if is_http and ("?" in url.rest or "#" in url.rest):
        raise InvalidURLError(f"{url.redacted} has a query, which would not go with every key; use {protocol}://")
    given = for_fsspec(options)
    defaults: dict[str, Any] = _http_defaults(options) if is_http else {}
    arguments = {**cls._get_kwargs_from_urls(plain), **defaults, **given}
    if is_native(cls):
        arguments |= {"asynchronous": True}
    if "use_listings_cache" not in arguments and _takes(cls, "use_listings_cache"):
        arguments["use_listings_cache"] = False
    return cls, Place(
        make=_Maker(protocol, arguments),
        prefix=prefix,
        root=cls._strip_protocol(plain) if url.rest else prefix,
        dialect=_dialect(cls, is_http=is_http),
        secrets=_secrets(arguments),
    )


def _dialect(cls: type[AbstractFileSystem], *, is_http: bool) -> Dialect:
    if is_http:
        return HttpDialect(cls._strip_protocol)
    known = _known(cls)
    # A bucket's keys are taken as they are: their dialects refuse by themselves what would be changed.
    return (known or Dialect)(cls._strip_protocol) if known in (None, SftpDialect) else known()


def _known(cls: type[AbstractFileSystem]) -> type[Dialect] | None:
    names = (f"{base.__module__}.{base.__name__}" for base in cls.__mro__)
    return next((_DIALECTS[name] for name in names if name in _DIALECTS), None)


class _Maker:
    """Makes a file system. A class, so that it can be pickled."""

    def __init__(self, protocol: str, arguments: Mapping[str, Any]) -> None:
        self._protocol = protocol
        self._arguments = dict(arguments)

    def __call__(self) -> AbstractFileSystem:
        cls = filesystem_class(self._protocol)
        try:
            # Before one is made: half a file system is noise when it is collected.
            signature(cls.__init__).bind(None, **self._arguments)
        except TypeError as exc:
            raise ConfigError(f"fsspec's {cls.__name__} cannot be made with these options: {exc}") from exc
        try:
            # Mappings are copied: some file systems add to what they were given, and the next one would have it too.
            own = {name: dict(value) if isinstance(value, dict) else value for name, value in self._arguments.items()}
            made = tidy(cls) if _known(cls) is SftpDialect else cls
            return made(**own, skip_instance_cache=True)
        except ImportError as exc:
            raise ConfigError(f"fsspec's {cls.__name__} needs a package that is missing: {exc}") from exc


def _prefix(cls: type[AbstractFileSystem], plain: str, url: URL) -> str:
    """What stands before a key in paths: an empty root would be the working directory to some file systems."""
    mark = "x"
    path: str = cls._strip_protocol(f"{plain}/{mark}")
    inner = url.rest.partition("/")[2].strip("/")
    prefix = path.removesuffix(mark)
    if prefix == path or not prefix.strip("/").endswith(inner):
        raise InvalidURLError(f"{url.redacted}: fsspec's {cls.__name__} reads this root as the path {path!r}")
    return prefix


def _takes(cls: type[AbstractFileSystem], name: str) -> bool:
    """Whether it names the argument itself: what takes any may hand it on to a server."""
    parameters = signature(cls.__init__).parameters
    return name in parameters and parameters[name].kind is not Parameter.VAR_KEYWORD


def _http_defaults(options: Mapping[str, object]) -> dict[str, Any]:
    """Keys come encoded; a body that moves may take its time; proxies come from the environment."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(
        total=None,
        sock_read=seconds(options, "timeout", 30.0),
        sock_connect=seconds(options, "connect_timeout", 5.0),
    )
    return {"encoded": True, "client_kwargs": {"timeout": timeout, "trust_env": True}}


def _secrets(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    found: set[str] = set()
    stack: list[tuple[str, Any]] = list(arguments.items())
    while stack:
        name, value = stack.pop()
        if isinstance(value, Mapping):
            stack.extend((str(inner), item) for inner, item in value.items())
        elif isinstance(value, str) and is_secret(name) and len(value) >= 4:
            found.add(value)
    return tuple(sorted(found, key=len, reverse=True))
