"""Who asks Azure, where, and how that was found out: for `forebay doctor`, without a secret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from forebay._config import environ, wall_clock
from forebay.exceptions import ConfigError
from forebay.types import Access
from forebay_azure._options import (
    ENVIRONMENT,
    MACHINE_VARIABLES,
    AzureAccess,
    foreign_credentials,
    machine_has_none,
)
from forebay_azure._target import AzureTarget
from forebay_drivers.access import Place, in_order, network_words
from forebay_drivers.credentials import expiry

__all__ = ["describe", "ended"]

_WAYS = {
    "anonymous": "no signature",
    "credentials": "a callable",
    "account_key": "the account's key",
    "sas_token": "a shared access signature",
    "connection_string": "given",
}
_TOLERANCE = 15 * 60.0


def describe(options: Mapping[str, object], target: AzureTarget, access: AzureAccess) -> Access:
    """What `AzureDownloader.describe_access` says."""
    return Access(
        who=access.auth.describe(),
        where=f"account {access.account} at {access.endpoint}",
        endpoint=access.endpoint,
        network=network_words(access.network, access.endpoint),
        tried=tuple(in_order(_places(options, target, access))),
        hints=tuple(_hints(access)),
    )


def ended(access: AzureAccess) -> str | None:
    """Why the signature is known to be refused; None where only the store can tell.

    A quarter of an hour is left to clocks that differ.
    """
    said = access.auth.fields()
    end = _moment(said.get("se"))
    if end is None or wall_clock() < end + _TOLERANCE:
        return None
    return f"the shared access signature has ended ({said['se']}); get a new one, or set this machine's clock"


def _places(options: Mapping[str, object], target: AzureTarget, access: AzureAccess) -> Iterator[Place]:
    for name, words in _WAYS.items():
        yield Place(f"option {name}", words if options.get(name) else None, options=[name])
    yield Place("the URL", "a shared access signature" if target.sas is not None else None)
    foreign = foreign_credentials(access)
    for way in ("connection_string", "account_key", "sas_token"):
        variables = ENVIRONMENT[way]
        found = next((variable for variable in variables if environ().get(variable)), None)
        useless = foreign if found is not None else None
        yield Place(found or " or ".join(variables), None if found is None else "set", useless=useless)
    emulator = environ().get("AZURE_STORAGE_USE_EMULATOR", "").lower() in ("1", "true")
    yield Place("AZURE_STORAGE_USE_EMULATOR", "the emulator's own key" if emulator else None)
    present = [name for name in MACHINE_VARIABLES if environ().get(name)]
    yield Place("service principal, workload identity", f"{', '.join(present)} set" if present else None)
    off = machine_has_none(access.auth) or environ().get("AZURE_TOKEN_CREDENTIALS", "").lower() == "dev"
    yield Place(
        "the machine's identity", useless="not asked: AZURE_TOKEN_CREDENTIALS=dev" if off else None, unsure=not off
    )


def _hints(access: AzureAccess) -> Iterator[str]:
    foreign = foreign_credentials(access)
    if foreign is not None:
        yield f"the environment's credentials are passed over: {foreign}"
    if machine_has_none(access.auth):
        yield "there are no credentials: give some, or anonymous=true for a public container"
    said, now = access.auth.fields(), wall_clock()
    end, begin = _moment(said.get("se")), _moment(said.get("st"))
    if end is not None and end <= now:
        yield f"the shared access signature has ended: {said['se']}, and it is {_text(now)} here"
    if begin is not None and begin > now:
        yield f"the shared access signature begins at {said['st']}, and it is {_text(now)} here: is the clock right?"
    if said and "r" not in said.get("sp", "r"):
        yield f"the shared access signature allows no reading (sp={said['sp']})"
    if said.get("spr") == "https" and access.endpoint.startswith("http:"):
        yield "the shared access signature is for https only, and the endpoint is http"


def _moment(text: str | None) -> float | None:
    try:
        return expiry(text)
    except ConfigError:
        return None  # what the store makes of it, it says itself


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
