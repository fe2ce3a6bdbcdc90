"""The options of the http backend, read once and checked before any I/O."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from forebay._options import strongest
from forebay.exceptions import ConfigError
from forebay_drivers.options import NETWORK_OPTIONS, Network, network, wanted_driver

__all__ = ["OPTION_TYPES", "HttpOptions", "join", "parse_options"]

OPTION_TYPES: Mapping[str, type] = {
    "driver": str,
    "headers": dict,
    "username": str,
    "password": str,
    "bearer_token": str,
    **NETWORK_OPTIONS,
}

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# What the backend itself sets: a second value would change what a response means.
_OURS = frozenset(
    {"range", "if-match", "if-range", "accept-encoding", "content-length", "transfer-encoding", "connection"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """What the user asked for. ``headers`` holds credentials, so no representation shows it."""

    driver: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    network: Network = field(default_factory=Network)


def join(layers: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Join layers of options, the strongest first: its kind of credentials is the only one.

    User and password may stand in two places.
    """
    kept: list[Mapping[str, object]] = []
    kind: str | None = None
    for layer in layers:
        here = _kind(layer)
        kept.append(layer if kind is None or here in (None, kind) else _without_credentials(layer))
        kind = kind or here
    return strongest(kept)


def _kind(layer: Mapping[str, object]) -> str | None:
    if layer.get("bearer_token") is not None:
        return "token"
    if layer.get("username") is not None or layer.get("password") is not None:
        return "user"
    headers = layer.get("headers")
    named = isinstance(headers, Mapping) and any(str(name).lower() == "authorization" for name in headers)
    return "header" if named else None


def _without_credentials(layer: Mapping[str, object]) -> dict[str, object]:
    kept = {name: value for name, value in layer.items() if name not in ("bearer_token", "username", "password")}
    headers = kept.get("headers")
    if isinstance(headers, Mapping):
        kept["headers"] = {name: value for name, value in headers.items() if str(name).lower() != "authorization"}
    return kept


def parse_options(options: Mapping[str, object], userinfo: tuple[str, str] | None = None) -> HttpOptions:
    """Check ``options`` and fold every kind of credentials into one set of headers.

    Args:
        options: As the user gave them.
        userinfo: User and password that stood in the URL; weaker than ``username`` and ``password``.

    Raises:
        ConfigError: An option has a value that cannot be used, or two options contradict each other.
    """
    return HttpOptions(
        driver=wanted_driver(options, "http"),
        headers=_headers(options, userinfo),
        network=network(options),
    )


def _headers(options: Mapping[str, object], userinfo: tuple[str, str] | None) -> dict[str, str]:
    given = options.get("headers") or {}
    if not isinstance(given, Mapping):
        raise ConfigError("option 'headers' is not a mapping of names to values", option="headers")
    headers: dict[str, str] = {}
    for name, value in given.items():
        _check_header(str(name), str(value))
        headers[str(name)] = str(value)
    authorization = _authorization(options, userinfo)
    if authorization is not None:
        origin, text = authorization
        if any(name.lower() == "authorization" for name in headers):
            raise ConfigError(f"both {origin} and an Authorization header are given; keep one", option="headers")
        headers["Authorization"] = text
    return headers


def _check_header(name: str, value: str, *, option: str = "headers") -> None:
    # The value may be a secret: it is never shown.
    if not _TOKEN.fullmatch(name):
        raise ConfigError(f"option 'headers' has the name {name!r}, which is no header name", option="headers")
    if any(char in value for char in "\r\n\0") or not _is_latin1(value):
        raise ConfigError(f"option {option!r} has a value for {name!r} that cannot stand in a header", option=option)
    if name.lower() in _OURS:
        raise ConfigError(f"option 'headers' sets {name!r}, which Forebay sets itself", option="headers")


def _is_latin1(value: str) -> bool:
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


def _authorization(options: Mapping[str, object], userinfo: tuple[str, str] | None) -> tuple[str, str] | None:
    username, password, token = (options.get(name) for name in ("username", "password", "bearer_token"))
    if token is not None:
        if username is not None or password is not None:
            raise ConfigError(
                "options 'bearer_token' and 'username'/'password' exclude each other", option="bearer_token"
            )
        _check_header("Authorization", str(token), option="bearer_token")
        return "option 'bearer_token'", f"Bearer {token}"
    if password is not None and username is None:
        raise ConfigError("option 'password' is given without 'username'", option="password")
    origin = "option 'username'"
    if username is None and userinfo is not None:
        origin, (username, password) = "a user in the URL", userinfo
    if username is None:
        return None
    plain = f"{username}:{'' if password is None else password}"
    return origin, "Basic " + b64encode(plain.encode()).decode()
