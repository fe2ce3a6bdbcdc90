"""The options of the gcs backend: read once, and what the SDKs would take from the environment beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from forebay._config import environ
from forebay.exceptions import ConfigError
from forebay_drivers.options import NETWORK_OPTIONS, Network, flag, network, one_who

__all__ = [
    "ACCOUNT_KEY",
    "ACCOUNT_PATHS",
    "OPTION_TYPES",
    "Auth",
    "GcsOptions",
    "chain_file",
    "chain_problem",
    "join",
    "machine_has_none",
    "parse_options",
]

OPTION_TYPES: Mapping[str, type] = {
    "driver": str,
    "endpoint_url": str,
    "anonymous": bool,
    "credentials": object,
    "project": str,
    "token": object,
    "user_project": str,
    **NETWORK_OPTIONS,
}

#: Kinds of credentials files that obstore reads itself.
_OBSTORE_READS = frozenset({"service_account", "authorized_user"})
_SECRET_FIELDS = ("private_key", "private_key_id", "client_secret", "refresh_token")
#: Variables of obstore's own.
ACCOUNT_PATHS = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")
ACCOUNT_KEY = "GOOGLE_SERVICE_ACCOUNT_KEY"
_WHO = ("anonymous", "token", "credentials")
Kind = Literal["anonymous", "bearer", "key", "callable", "chain"]


@dataclass(frozen=True, slots=True)
class Auth:
    """Who asks. ``bearer``: ``text`` is a token; ``key``: it is the JSON of a credentials file, of that ``type``."""

    kind: Kind
    text: str = field(default="", repr=False)
    type: str = ""
    path: str | None = None

    def describe(self) -> str:
        """Who asks, without a secret."""
        if self.kind == "chain":
            kind = _chain_type()
            return f"the SDK's own chain: {f'a file of type {kind}' if kind else 'no file was found'}"
        words = {"anonymous": "nobody (anonymous)", "bearer": "a bearer token", "callable": "the credentials callable"}
        return words.get(self.kind) or f"a credentials file of type {self.type}"

    def secrets(self) -> tuple[str, ...]:
        """What must not be shown."""
        if self.kind == "bearer":
            return (self.text,)
        if self.kind != "key":
            return ()
        content = json.loads(self.text)
        return tuple(str(content[name]) for name in _SECRET_FIELDS if content.get(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class GcsOptions:
    """What the user asked for. ``endpoint`` has no trailing slash; None is Google's own."""

    network: Network
    auth: Auth
    endpoint: str | None = None
    emulator: bool = False
    project: str | None = None
    user_project: str | None = None


def join(layers: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Join layers of options, the strongest first: it alone says who asks."""
    return one_who(layers, _WHO)


def parse_options(options: Mapping[str, object]) -> GcsOptions:
    """Check ``options``; the emulator's variable and the project come from the environment where no option says.

    Raises:
        ConfigError: A value that cannot be used, or two ways to authenticate in one place.
    """
    endpoint, emulator = _endpoint(options)
    return GcsOptions(
        network=network(options),
        auth=_auth(options, emulator=emulator),
        endpoint=endpoint,
        emulator=emulator,
        project=_text(options, "project") or environ().get("GOOGLE_CLOUD_PROJECT") or None,
        user_project=_text(options, "user_project"),
    )


def _text(options: Mapping[str, object], name: str) -> str | None:
    value = options.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ConfigError(f"option {name!r} is no text that can be sent", option=name)
    return value


def _endpoint(options: Mapping[str, object]) -> tuple[str | None, bool]:
    given = _text(options, "endpoint_url")
    if given is not None:
        return _checked_endpoint(given, "option 'endpoint_url'"), False
    emulator = environ().get("STORAGE_EMULATOR_HOST", "").strip()
    if emulator in ("", "default"):  # google's own libraries take "default" for their real address
        return None, False
    text = emulator if "://" in emulator else f"http://{emulator}"
    return _checked_endpoint(text, "STORAGE_EMULATOR_HOST"), True


def _checked_endpoint(text: str, origin: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{origin} is no URL such as http://127.0.0.1:4443", option="endpoint_url", origin=origin)
    if parts.query or parts.fragment or parts.username is not None:
        raise ConfigError(f"{origin} is more than scheme, host and port", option="endpoint_url", origin=origin)
    return text.rstrip("/")


def _auth(options: Mapping[str, object], *, emulator: bool) -> Auth:
    anonymous = flag(options, "anonymous", default=False)
    token, call = options.get("token"), options.get("credentials")
    given = [name for name, on in (("anonymous", anonymous), ("token", token), ("credentials", call)) if on]
    if len(given) > 1:
        raise ConfigError(f"options {' and '.join(map(repr, given))} exclude each other", option=given[0])
    if anonymous:
        return Auth("anonymous")
    if call is not None:
        if not callable(call):
            raise ConfigError("option 'credentials' is no callable", option="credentials")
        return Auth("callable")
    if token is not None:
        return _token(token)
    # An emulator asks nobody who he is, and the chain would ask the network for an identity.
    return Auth("anonymous") if emulator else Auth("chain")


def _token(token: object) -> Auth:
    """A bearer token, the path or the content of a credentials file, or gcsfs's words ``anon``, ``google_default``."""
    if isinstance(token, Mapping):
        return _key(json.dumps(dict(token)))
    if isinstance(token, os.PathLike):
        token = os.fspath(token)
    if not isinstance(token, str) or not token.strip():
        raise ConfigError("option 'token' is no text, path or table", option="token")
    if token in ("anon", "google_default"):
        return Auth("anonymous" if token == "anon" else "chain")
    if token.lstrip().startswith("{"):
        return _key(token)
    if "/" in token and token.endswith(".json"):
        try:
            path = Path(token).expanduser()
            return replace(_key(path.read_text(encoding="utf-8")), path=str(path))
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"option 'token' names a file that cannot be read: {exc}", option="token") from exc
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            "option 'token' is no bearer token: it holds a space or a character that is not ASCII", option="token"
        )
    return Auth("bearer", token)


def _key(text: str) -> Auth:
    kind = _type_of(text)
    if kind is None:
        raise ConfigError("option 'token' is no credentials file of Google's: it has no 'type'", option="token")
    return Auth("key", text, kind)


def _type_of(text: str) -> str | None:
    try:
        content = json.loads(text)
    except ValueError:
        return None
    kind = content.get("type") if isinstance(content, dict) else None
    return kind if isinstance(kind, str) else None


def chain_problem(auth: Auth) -> str | None:
    """Why obstore cannot use these credentials; None where it can."""
    found = [name for name in (*ACCOUNT_PATHS, ACCOUNT_KEY) if environ().get(name)]
    hidden = ACCOUNT_KEY if auth.type == "service_account" else ""
    if auth.kind == "key" and any(name != hidden for name in found):
        return f"obstore takes the account of {found[0]} before the one that was given"
    if auth.kind != "chain" and ACCOUNT_KEY in found and len(found) > 1:
        return f"obstore takes no {found[0]} beside {ACCOUNT_KEY}"
    if auth.kind == "key":
        kind: str | None = auth.type
    elif auth.kind == "chain":
        kind = _chain_type()
    else:
        return None
    if auth.kind == "key" and auth.type == "authorized_user" and auth.path is None:
        return "obstore reads credentials of a person from a file only"
    if kind is None or kind in _OBSTORE_READS:
        return None
    return f"obstore reads no credentials of type {kind!r}"


def machine_has_none(auth: Auth) -> bool:
    """Whether it is known without asking that the chain ends in nothing: no file, and a machine not to be asked."""
    if auth.kind != "chain" or environ().get("NO_GCE_CHECK", "").lower() != "true":
        return False
    return _chain_type() is None and not any(environ().get(name) for name in (*ACCOUNT_PATHS, ACCOUNT_KEY))


def _chain_type() -> str | None:
    """The type of the file that the SDK's own chain begins with; None where there is none."""
    return chain_file()[1]


def chain_file() -> tuple[Path, str | None]:
    """The file that the SDK's own chain begins with, and its type; None where it is none, or not there."""
    named = environ().get("GOOGLE_APPLICATION_CREDENTIALS")
    home = Path(environ().get("CLOUDSDK_CONFIG") or Path("~/.config/gcloud").expanduser())
    path = Path(named) if named else home / "application_default_credentials.json"
    try:
        return path, _type_of(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return path, None
