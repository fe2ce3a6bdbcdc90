"""The options of the s3 backend, read once and checked before any I/O; what both drivers do is decided here.

Environment and profile are read here and handed to the drivers as if they were options, so that no driver finds
another value by itself and an explicit option is the stronger one on every path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from forebay._config import environ
from forebay._url import redact
from forebay.exceptions import ConfigError
from forebay_drivers.options import NETWORK_OPTIONS, Network, flag, network, one_who, says_who, wanted_driver
from forebay_s3._profile import Profile, find_profile

__all__ = ["OPTION_TYPES", "Keys", "S3Options", "join", "meant_option", "parse_options"]

OPTION_TYPES: Mapping[str, type] = {
    "driver": str,
    "endpoint_url": str,
    "region": str,
    "profile": str,
    "access_key_id": str,
    "secret_access_key": str,
    "session_token": str,
    "anonymous": bool,
    "credentials": object,
    "requester_pays": bool,
    "addressing_style": str,
    **NETWORK_OPTIONS,
}

_STYLES = ("auto", "path", "virtual")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
# Options that say who asks. The mapping holds the strongest layer first, so the first of them in it is the one meant.
_WHO = ("anonymous", "credentials", "access_key_id", "secret_access_key", "profile")
_KEYS = ("access_key_id", "secret_access_key")


@dataclass(frozen=True, slots=True)
class Keys:
    """Static or temporary credentials."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """What was asked for. ``keys`` None, not anonymous and no callable: the SDK looks where the machine offers some."""

    driver: str | None = None
    endpoint_url: str | None = None
    region: str = "us-east-1"
    path_style: bool = False
    aws: bool = True
    anonymous: bool = False
    callable_credentials: bool = False
    keys: Keys | None = None
    asks_machine: bool = False
    profile: str | None = None
    fetched_by: str | None = None
    metadata_endpoint: str | None = None
    machine_has_none: bool = False
    asks_checksums: bool = True
    requester_pays: bool = False
    network: Network = field(default_factory=Network)


def join(layers: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Join layers of options, the strongest first: it alone says who asks.

    A key and its secret may stand in two places, as long as neither is given twice. A session token belongs to the
    place of the key; joined to another's it would only have the request refused.
    """
    joined = one_who(layers, (*_WHO, "session_token"))
    first = next((layer for layer in layers if says_who(layer, _WHO)), {})
    given = [name for name in _KEYS if first.get(name) is not None]
    if len(given) == 1 and not any(first.get(name) for name in ("credentials", "profile", "anonymous")):
        (have,) = given
        missing = _KEYS[1 - _KEYS.index(have)]
        other = next((layer for layer in layers if layer.get(missing) is not None), {})
        if other.get(have) is None and other.get(missing) is not None:
            token = (first if have == "access_key_id" else other).get("session_token")
            joined.pop("session_token", None)
            joined |= {missing: other[missing], **({} if token is None else {"session_token": token})}
    return joined


def parse_options(options: Mapping[str, object], bucket: str = "") -> S3Options:
    """Check ``options`` and join the environment and the profile to them.

    Raises:
        ConfigError: A value that cannot be used, half of a pair of keys, or a profile that is not there.
    """
    env = environ()
    who = meant_option(options)
    named = _text(options, "profile") if who == "profile" else None
    keys, profile = None, None
    if who == "keys":
        keys = _keys(options)
    elif who is None and env.get("AWS_ACCESS_KEY_ID") and env.get("AWS_SECRET_ACCESS_KEY"):
        keys = Keys(env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], env.get("AWS_SESSION_TOKEN") or None)
        profile = _settings_of(env)
    elif who in (None, "profile"):
        profile = find_profile(named, env)
        if profile is not None and profile.fetched is None and profile.access_key_id and profile.secret_access_key:
            keys = Keys(profile.access_key_id, profile.secret_access_key, profile.session_token)
    endpoint = _endpoint(options, env, profile)
    searched = keys is None and who in (None, "profile")
    fetched = profile is not None and profile.fetched is not None
    return S3Options(
        driver=wanted_driver(options, "s3"),
        endpoint_url=endpoint,
        region=_region(options, env, profile),
        path_style=_path_style(options, bucket, endpoint),
        aws=_is_aws(endpoint),
        anonymous=who == "anonymous",
        callable_credentials=who == "credentials",
        keys=keys,
        asks_machine=searched and not fetched and not _others_offer(env) and not _machine_has_none(env),
        profile=profile.name if profile is not None and profile.fetched else None,
        fetched_by=profile.fetched if profile is not None and keys is None else None,
        metadata_endpoint=env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or env.get("AWS_METADATA_ENDPOINT"),
        machine_has_none=searched and _machine_has_none(env),
        asks_checksums=_asks_checksums(env, profile, endpoint),
        requester_pays=flag(options, "requester_pays", default=False),
        network=network(options, "AWS_CA_BUNDLE"),
    )


def meant_option(options: Mapping[str, object]) -> str | None:
    """The strongest option that says who asks: anonymous, credentials, profile, or keys for a pair; None: no option."""
    for name in options:
        if (
            name not in _WHO
            or options[name] is None
            or (name == "anonymous" and not flag(options, name, default=False))
        ):
            continue
        if name == "credentials" and not callable(options[name]):
            raise ConfigError("option 'credentials' is not callable", option="credentials")
        return "keys" if name in ("access_key_id", "secret_access_key") else name
    if options.get("session_token") is not None:
        raise ConfigError(
            "option 'session_token' is given without 'access_key_id' and 'secret_access_key'", option="session_token"
        )
    return None


def _keys(options: Mapping[str, object]) -> Keys:
    key, secret, token = (_text(options, name) for name in ("access_key_id", "secret_access_key", "session_token"))
    if not key or not secret:
        missing = "access_key_id" if not key else "secret_access_key"
        given = "secret_access_key" if not key else "access_key_id"
        raise ConfigError(f"option {given!r} is given without {missing!r}", option=missing)
    return Keys(key, secret, token)


def _text(options: Mapping[str, object], name: str) -> str | None:
    value = options.get(name)
    if value is None:
        return None
    text = str(value)
    if not text or any(char in text for char in "\r\n\0"):
        # The value may be a secret: it is never shown.
        raise ConfigError(f"option {name!r} is empty or holds a line break", option=name)
    return text


def _settings_of(env: Mapping[str, str]) -> Profile | None:
    """Region and endpoint of the profile where the keys come from the environment."""
    try:
        found = find_profile(None, env)
    except ConfigError:
        return None  # AWS_PROFILE names none, and nobody needs it: the keys in the environment are the stronger ones
    if found is None:
        return None
    return Profile(name=found.name, region=found.region, endpoint_url=found.endpoint_url, checksums=found.checksums)


def _endpoint(options: Mapping[str, object], env: Mapping[str, str], profile: Profile | None) -> str | None:
    url = _text(options, "endpoint_url") or next((env[name] for name in _ENDPOINTS if env.get(name)), None)
    if url is None and profile is not None:
        url = profile.endpoint_url
    if url is None:
        return None
    parts = urlsplit(url)
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(
            f"option 'endpoint_url' is {redact(url)!r}, not http(s)://HOST[:PORT][/PATH]", option="endpoint_url"
        )
    if parts.username is not None:
        raise ConfigError("option 'endpoint_url' holds a user; keys have options of their own", option="endpoint_url")
    return url.rstrip("/")


def _region(options: Mapping[str, object], env: Mapping[str, str], profile: Profile | None) -> str:
    return (
        _text(options, "region")
        or env.get("AWS_REGION")
        or env.get("AWS_DEFAULT_REGION")
        or (profile.region if profile is not None else None)
        or "us-east-1"
    )


def _path_style(options: Mapping[str, object], bucket: str, endpoint: str | None) -> bool:
    """``auto`` is what works most often: AWS wants the bucket in the host name, servers of one's own in the path."""
    style = options.get("addressing_style") or "auto"
    if style not in _STYLES:
        raise ConfigError(
            f"option 'addressing_style' is {style!r}, not one of {', '.join(_STYLES)}", option="addressing_style"
        )
    if style != "auto":
        return style == "path"
    # No certificate of AWS's is for a host with a dot more, and no host has an underscore or capitals.
    return not _is_aws(endpoint) or "." in bucket or "_" in bucket or bucket != bucket.lower()


def _is_aws(endpoint: str | None) -> bool:
    """Whether it is S3 itself, or something that is only like it."""
    return endpoint is None or (urlsplit(endpoint).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))


def _others_offer(env: Mapping[str, str]) -> bool:
    """Whether a cluster or container offers an identity, which only the SDKs fetch."""
    others = ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    return any(env.get(name) for name in (*others, "AWS_CONTAINER_CREDENTIALS_FULL_URI"))


def _asks_checksums(env: Mapping[str, str], profile: Profile | None, endpoint: str | None) -> bool:
    """Whether checksums are asked for, by the AWS SDK's own setting: S3 has them, others may refuse the header."""
    said = env.get("AWS_RESPONSE_CHECKSUM_VALIDATION") or (profile.checksums if profile is not None else None)
    return _is_aws(endpoint) if said is None else said.lower() == "when_supported"


def _machine_has_none(env: Mapping[str, str]) -> bool:
    """Whether it is known without asking that the machine itself offers no credentials."""
    if _others_offer(env):
        return False
    return env.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
