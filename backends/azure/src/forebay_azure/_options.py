"""The options of the azure backend, joined with what the URL says and what the SDKs take from the environment."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit

from forebay._config import environ
from forebay.exceptions import ConfigError
from forebay_azure._target import AzureTarget, account_in_host, is_local, parse_target
from forebay_drivers.options import NETWORK_OPTIONS, Network, flag, network, one_who, says_who

__all__ = [
    "EMULATOR_ACCOUNT",
    "ENVIRONMENT",
    "MACHINE_VARIABLES",
    "OPTION_TYPES",
    "Auth",
    "AzureAccess",
    "access",
    "foreign_credentials",
    "join",
    "machine_has_none",
]

OPTION_TYPES: Mapping[str, type] = {
    "driver": str,
    "endpoint_url": str,
    "anonymous": bool,
    "credentials": object,
    "account_name": str,
    "account_key": str,
    "sas_token": str,
    "connection_string": str,
    **NETWORK_OPTIONS,
}

#: What every emulator knows; it stands in Microsoft's documentation.
EMULATOR_ACCOUNT = "devstoreaccount1"
_EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_EMULATOR = "http://127.0.0.1:10000/" + EMULATOR_ACCOUNT

_WAYS = ("anonymous", "credentials", "account_key", "sas_token", "connection_string")
#: What the SDKs read instead of options.
ENVIRONMENT: Mapping[str, tuple[str, ...]] = {
    "account_name": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"),
    "account_key": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY"),
    "sas_token": ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"),
    "connection_string": ("AZURE_STORAGE_CONNECTION_STRING",),
}
#: What begins the SDK's own chain: a service principal, or a workload's identity.
MACHINE_VARIABLES = ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_STORAGE_CLIENT_ID")
Kind = Literal["anonymous", "key", "sas", "callable", "chain"]


@dataclass(frozen=True, slots=True)
class Auth:
    """Who asks. ``key``: ``text`` is the account's key; ``sas``: a shared access signature without its ``?``."""

    kind: Kind
    text: str = field(default="", repr=False)

    def describe(self) -> str:
        """Who asks, without a secret; of a signature what it allows and until when."""
        if self.kind == "sas":
            said = self.fields()
            allowed, until = said.get("sp", "?"), said.get("se", "?")
            return f"a shared access signature (allows {allowed}, until {until})"
        return {
            "key": "the account's key",
            "anonymous": "nobody (anonymous)",
            "callable": "the credentials callable",
            "chain": "the SDK's own chain (service principal, workload identity, the machine's identity)",
        }[self.kind]

    def fields(self) -> dict[str, str]:
        """Of a signature, what it allows and when; not the proof. Empty for all else."""
        said = parse_qs(self.text) if self.kind == "sas" else {}
        return {name: said[name][0] for name in ("se", "sp", "spr", "st") if name in said}

    def secrets(self) -> tuple[str, ...]:
        """What must not be shown: of a signature the whole, and its proof as it is and decoded."""
        if self.kind != "sas":
            return (self.text,) if self.text else ()
        proof = next((part[4:] for part in self.text.split("&") if part.startswith("sig=")), "")
        return (self.text, proof, unquote(proof))


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureAccess:
    """All that a driver needs. ``endpoint`` is the account's, without a trailing slash."""

    network: Network
    auth: Auth
    account: str
    endpoint: str
    container: str
    prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What one source says."""

    auth: Auth | None = None
    account: str | None = None
    endpoint: str | None = None
    own_host: bool = False  # whether somebody wrote the endpoint, or it follows from the account's name


def access(target: AzureTarget, options: Mapping[str, object]) -> AzureAccess:
    """Join URL, options and environment. Once an option or the URL says who asks, the environment is not looked at.

    Raises:
        ConfigError: A value that cannot be used, two ways to authenticate, two different accounts, or none.
    """
    given = _from_options(target, options)
    if given.auth is None:
        around = _from_environment()
        auth = around.auth or Auth("chain")
        account = target.account or given.account or around.account
        if around.account not in (None, account) and around.auth is not None:
            auth = Auth("chain")  # the environment's key belongs to another account
        endpoint = given.endpoint or (around.endpoint if account == around.account else None)
    else:
        auth, account, endpoint = given.auth, given.account, given.endpoint
        account = account or (_variable("account_name") if endpoint is None else None)
    account = account or _account_of(endpoint)
    if account is None:
        raise ConfigError(
            "no storage account is named: give the option account_name, or write "
            "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/… (or set AZURE_STORAGE_ACCOUNT_NAME)",
            option="account_name",
        )
    return AzureAccess(
        network=network(options),
        auth=auth,
        account=account,
        endpoint=_endpoint(endpoint, account),
        container=target.container,
        prefix=target.prefix,
    )


def join(root: str, layers: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Join layers of options, the strongest first and as strong as the URL, whose signature is a way to say who asks.

    A weaker connection string still says where. What a weaker place says of another account than the one that is named
    by a stronger one is about somebody else's blobs.
    """
    target: AzureTarget | None = None
    with suppress(ConfigError):  # raised when the URL is opened
        target = parse_target(root)
    account = None if target is None else target.account
    said = target is not None and target.sas is not None
    kept: list[Mapping[str, object]] = []
    for place, layer in enumerate(layers):
        known = _where(layer)
        if place and account is not None and known.get("account_name") not in (None, account):
            layer = {name: value for name, value in layer.items() if name not in (*_WAYS, *known)}
        elif place and said:
            layer = {**known, **{name: value for name, value in layer.items() if name not in _WAYS}}
        kept.append(layer)
        said = said or says_who(layer, _WAYS)
        account = account or known.get("account_name")
    return one_who(kept, _WAYS)


def _where(layer: Mapping[str, object]) -> dict[str, str]:
    """Account and endpoint, as one place names them."""
    found = {name: layer.get(name) for name in ("account_name", "endpoint_url")}
    text = layer.get("connection_string")
    if isinstance(text, str):
        with suppress(ConfigError):  # raised where it is the one that says who asks
            known = _from_connection_string(text, "option 'connection_string'")
            found = {"account_name": known.account, "endpoint_url": known.endpoint, **_given(found)}
    return _given(found)


def _given(found: Mapping[str, object]) -> dict[str, str]:
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _from_options(target: AzureTarget, options: Mapping[str, object]) -> _Known:
    texts = {name: _text(options, name) for name in (*ENVIRONMENT, "endpoint_url")}
    anonymous, call = flag(options, "anonymous", default=False), options.get("credentials")
    used = [name for name in _WAYS if (options.get(name) if name != "anonymous" else anonymous)]
    if target.sas is not None:
        used.append("a signature in the URL")
    if len(used) > 1:
        raise ConfigError(
            f"{' and '.join(used)} exclude each other: there are two ways to say who asks", option=used[0]
        )
    auth = None
    known = _Known()
    if call is not None:
        if not callable(call):
            raise ConfigError("option 'credentials' is no callable", option="credentials")
        auth = Auth("callable")
    elif anonymous:
        auth = Auth("anonymous")
    elif texts["account_key"] is not None:
        auth = _key(texts["account_key"], "option 'account_key'")
    elif texts["sas_token"] is not None or target.sas is not None:
        auth = _sas(texts["sas_token"] or target.sas or "", "option 'sas_token'")
    elif texts["connection_string"] is not None:
        known = _from_connection_string(texts["connection_string"], "option 'connection_string'")
        auth = known.auth
    account = _agreed("account", target.account, texts["account_name"], known.account)
    # ``CONTAINER@ACCOUNT.dfs…`` says which account, a connection string with a BlobEndpoint where that one answers.
    written = known.endpoint if known.own_host else None
    endpoint = texts["endpoint_url"] or written or target.endpoint or known.endpoint
    return _Known(auth=auth, account=account, endpoint=endpoint)


def _agreed(what: str, *values: str | None) -> str | None:
    said = {value for value in values if value is not None}
    if len(said) > 1:
        # A key or a signature would go to somebody else's account.
        raise ConfigError(
            f"the URL and the options name different storage {what}s: {', '.join(sorted(said))}", option="account_name"
        )
    return next(iter(said), None)


def _from_environment() -> _Known:
    account = _variable("account_name")
    text = _variable("connection_string")
    if text is not None:
        return _from_connection_string(text, "AZURE_STORAGE_CONNECTION_STRING")
    for name, read in (("account_key", _key), ("sas_token", _sas)):
        text = _variable(name)
        if text is not None:
            return _Known(auth=read(text, ENVIRONMENT[name][0]), account=account)
    if environ().get("AZURE_STORAGE_USE_EMULATOR", "").lower() in ("1", "true"):
        return _Known(auth=Auth("key", _EMULATOR_KEY), account=EMULATOR_ACCOUNT, endpoint=_EMULATOR)
    return _Known(account=account)


def _variable(name: str) -> str | None:
    return next((text for variable in ENVIRONMENT[name] if (text := environ().get(variable))), None)


def _text(options: Mapping[str, object], name: str) -> str | None:
    value = options.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ConfigError(f"option {name!r} is no text that can be used", option=name)
    return value.strip()


def _key(text: str, origin: str) -> Auth:
    try:
        b64decode(text, validate=True)
    except binascii.Error:
        raise ConfigError(f"{origin} is no base64 text, as account keys are", option="account_key") from None
    return Auth("key", text)


def _sas(text: str, origin: str) -> Auth:
    text = text.strip().removeprefix("?")
    if not {"sig", "sv"} <= set(parse_qs(text)):
        raise ConfigError(f"{origin} is no shared access signature: it has no 'sig' or no 'sv'", option="sas_token")
    return Auth("sas", text)


def _from_connection_string(text: str, origin: str) -> _Known:
    pairs = [part.partition("=") for part in text.split(";") if part.strip()]
    fields = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if fields.get("usedevelopmentstorage", "").lower() == "true":
        return _Known(auth=Auth("key", _EMULATOR_KEY), account=EMULATOR_ACCOUNT, endpoint=_EMULATOR, own_host=True)
    account, endpoint = fields.get("accountname"), fields.get("blobendpoint")
    account, written = account or _account_of(endpoint), endpoint is not None
    if endpoint is None and account is not None:
        protocol = fields.get("defaultendpointsprotocol", "https")
        endpoint = f"{protocol}://{account}.blob.{fields.get('endpointsuffix', 'core.windows.net')}"
    if "accountkey" in fields:
        auth: Auth | None = _key(fields["accountkey"], f"AccountKey in {origin}")
    elif "sharedaccesssignature" in fields:
        auth = _sas(fields["sharedaccesssignature"], f"SharedAccessSignature in {origin}")
    else:
        auth = None
    if account is None or auth is None:
        raise ConfigError(
            f"{origin} names no account (AccountName or BlobEndpoint), or neither AccountKey nor SharedAccessSignature",
            option="connection_string",
        )
    return _Known(auth=auth, account=account, endpoint=endpoint, own_host=written)


def _account_of(endpoint: str | None) -> str | None:
    """The account that an endpoint names: in its host, or as an emulator's path."""
    if endpoint is None:
        return None
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    if is_local(host):
        return unquote(parts.path.strip("/")) or None
    return account_in_host(host)


def _endpoint(given: str | None, account: str) -> str:
    if given is None:
        return f"https://{account}.blob.core.windows.net"
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("option 'endpoint_url' is no URL such as https://HOST:PORT", option="endpoint_url")
    if parts.query or parts.fragment or parts.username is not None or not re.fullmatch(r"/?[^/]*/?", parts.path):
        raise ConfigError("option 'endpoint_url' is more than scheme, host, port and account", option="endpoint_url")
    if is_local(parts.hostname) and not parts.path.strip("/"):
        return f"{given.rstrip('/')}/{account}"  # an emulator has the account in the path
    return given.rstrip("/")


def machine_has_none(auth: Auth) -> bool:
    """Whether it is known without asking that there is nobody to ask: the SDK was told to leave the machine alone."""
    told = environ().get("AZURE_TOKEN_CREDENTIALS", "").lower() == "dev"
    return auth.kind == "chain" and told and not any(environ().get(name) for name in MACHINE_VARIABLES)


def foreign_credentials(found: AzureAccess) -> str | None:
    """Why what the environment holds is not used though nobody else says who asks: it is another account's."""
    if found.auth.kind != "chain":
        return None
    around = _from_environment()
    if around.auth is None or around.account in (None, found.account):
        return None
    return f"they belong to the account {around.account!r}, and the URL or the options name {found.account!r}"
