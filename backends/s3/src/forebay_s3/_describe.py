"""Who asks S3, where, and how that was found out: for `forebay doctor`, without a secret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from forebay._config import environ
from forebay.exceptions import ConfigError
from forebay.types import Access
from forebay_drivers.access import Place, in_order, network_words
from forebay_s3._options import S3Options, meant_option
from forebay_s3._profile import find_profile, profile_files

__all__ = ["describe"]

_KEY, _SECRET, _TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
_WEB, _ROLE = "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"
_CONTAINER = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")


def describe(options: Mapping[str, object], settings: S3Options) -> Access:
    """What `S3Downloader.describe_access` says."""
    endpoint = settings.endpoint_url or f"https://s3.{settings.region}.amazonaws.com"
    where = settings.endpoint_url or f"AWS, region {settings.region}"
    return Access(
        who=_who(settings),
        where=f"{where} ({'path' if settings.path_style else 'virtual-host'} style)",
        endpoint=endpoint,
        network=network_words(settings.network, endpoint),
        tried=tuple(in_order(_places(options))),
        hints=tuple(_hints(settings)),
    )


def _who(settings: S3Options) -> str:
    if settings.anonymous:
        return "nobody (anonymous)"
    if settings.callable_credentials:
        return "the credentials callable"
    if settings.keys is not None:
        return "an access key" + (" with a session token" if settings.keys.session_token else "")
    if settings.fetched_by is not None:
        return f"the profile {settings.profile!r} through {settings.fetched_by}"
    if settings.machine_has_none:
        return "nobody: no key was found, and the machine is not asked for one"
    return "the SDK's own chain (web identity, container, the machine's identity): no key was found"


def _places(options: Mapping[str, object]) -> Iterator[Place]:
    env, meant = environ(), meant_option(options)
    yield _option("anonymous", meant, options, "no signature")
    yield _option("credentials", meant, options, "a callable")
    yield _option("keys", meant, options, "given", ("access_key_id", "secret_access_key", "session_token"))
    named = options.get("profile") if meant == "profile" else None
    told = _profile(str(named), env) if named is not None else "named"
    yield _option("profile", meant, options, told)
    key, secret = bool(env.get(_KEY)), bool(env.get(_SECRET))
    token = f", with {_TOKEN}" if env.get(_TOKEN) else ""
    half = f"only {_KEY if key else _SECRET} is set" if key != secret else None
    yield Place(f"{_KEY} and {_SECRET}", f"set{token}" if key and secret else None, useless=half)
    if named is None:
        wanted = env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE") or "default"
        keys, config = profile_files(env)
        yield Place(f"profile {wanted!r} in {keys} and {config}", _profile(None, env))
    yield Place(f"{_WEB} and {_ROLE}", "a token's file" if env.get(_WEB) else None)
    yield Place("the container's address", "an address" if any(env.get(name) for name in _CONTAINER) else None)
    off = env.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
    yield Place(
        "the machine's identity", useless="not asked: AWS_EC2_METADATA_DISABLED" if off else None, unsure=not off
    )


def _option(
    kind: str, meant: str | None, options: Mapping[str, object], found: str | None, names: tuple[str, ...] = ()
) -> Place:
    names = names or (kind,)
    given = [name for name in names if options.get(name) not in (None, False)]
    source = f"option {kind}" if kind != "keys" else "options access_key_id, secret_access_key"
    if meant != kind and given:
        return Place(source, useless=f"weaker than option {meant}", options=given)
    return Place(source, found if meant == kind else None, options=given)


def _profile(name: str | None, env: Mapping[str, str]) -> str | None:
    """What the profile has, in words."""
    try:
        profile = find_profile(name, env)
    except ConfigError:
        return None  # AWS_PROFILE names none: an error where it is needed, and nothing where it is not
    if profile is None:
        return None
    if profile.fetched is not None:
        return f"{profile.name!r}, through {profile.fetched}"
    return f"{profile.name!r}, with keys" if profile.access_key_id else None


def _hints(settings: S3Options) -> Iterator[str]:
    env = environ()
    if settings.machine_has_none:
        yield "there are no credentials: give some, or anonymous=true for a public bucket"
    if bool(env.get(_KEY)) != bool(env.get(_SECRET)):
        yield f"only one of {_KEY} and {_SECRET} is set, so it is passed over"
