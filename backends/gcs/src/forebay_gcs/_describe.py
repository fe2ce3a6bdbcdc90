"""Who asks Google, where, and how that was found out: for `forebay doctor`, without a secret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from forebay._config import environ
from forebay.types import Access
from forebay_drivers.access import Place, in_order, network_words
from forebay_gcs._options import ACCOUNT_KEY, ACCOUNT_PATHS, Auth, GcsOptions, chain_file, machine_has_none

__all__ = ["describe"]

_GOOGLE = "https://storage.googleapis.com"


def describe(options: Mapping[str, object], settings: GcsOptions) -> Access:
    """What `GcsDownloader.describe_access` says."""
    endpoint = settings.endpoint or _GOOGLE
    where = settings.endpoint or "Google's own address"
    return Access(
        who=settings.auth.describe(),
        where=where + (" (STORAGE_EMULATOR_HOST)" if settings.emulator else ""),
        endpoint=endpoint,
        network=network_words(settings.network, endpoint),
        tried=tuple(in_order(_places(options, settings))),
        hints=tuple(_hints(settings.auth)),
    )


def _places(options: Mapping[str, object], settings: GcsOptions) -> Iterator[Place]:
    env, auth = environ(), settings.auth
    yield Place("option anonymous", "no token is sent" if options.get("anonymous") else None, options=["anonymous"])
    given = options.get("token") is not None and auth.kind != "chain"  # "google_default" asks for the chain
    yield Place("option token", _token(auth) if given else None, options=["token"])
    yield Place("option credentials", "a callable" if auth.kind == "callable" else None, options=["credentials"])
    yield Place("STORAGE_EMULATOR_HOST", "an emulator, which asks nobody who he is" if settings.emulator else None)
    for name in (*ACCOUNT_PATHS, ACCOUNT_KEY):
        if env.get(name):
            yield Place(name, "set, for the obstore driver")
    path, kind = chain_file()
    found = f"{path}, of type {kind}" if kind else None
    bad = f"{path} is no credentials file that can be read" if kind is None else None
    if env.get("GOOGLE_APPLICATION_CREDENTIALS"):
        yield Place("GOOGLE_APPLICATION_CREDENTIALS", found, useless=bad)
    else:
        yield Place("GOOGLE_APPLICATION_CREDENTIALS")
        yield Place("gcloud's file", found, useless=bad if path.exists() else None)
    off = env.get("NO_GCE_CHECK", "").lower() == "true"
    yield Place("the machine's identity", useless="not asked: NO_GCE_CHECK" if off else None, unsure=not off)


def _token(auth: Auth) -> str:
    return {"bearer": "a bearer token", "key": f"a credentials file of type {auth.type}"}.get(auth.kind, "nobody")


def _hints(auth: Auth) -> Iterator[str]:
    if machine_has_none(auth):
        yield "there are no credentials: give a token, or anonymous=true for a public bucket"
