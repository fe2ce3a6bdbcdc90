"""AWS profiles: the two files in which people keep their keys.

Keys that stand in them are read here, for both drivers alike. What has to be fetched (a role, single sign-on, what a
command prints) is left to the AWS SDK under the fsspec driver.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from forebay.exceptions import ConfigError

__all__ = ["Profile", "find_profile", "profile_files"]

_FETCHED = (
    "role_arn",
    "credential_process",
    "sso_session",
    "sso_start_url",
    "web_identity_token_file",
    "login_session",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What is said of one profile. ``fetched`` names the entry that needs the AWS SDK."""

    name: str
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    region: str | None = None
    endpoint_url: str | None = None
    fetched: str | None = None
    checksums: str | None = None


def find_profile(name: str | None, environ: Mapping[str, str]) -> Profile | None:
    """The profile ``name``, else the one of ``AWS_PROFILE``, else ``default``.

    Raises:
        ConfigError: The named one is in neither file, or a file cannot be read as one.
    """
    wanted = name or environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
    keys, config = profile_files(environ)
    section = "default" if wanted == "default" else f"profile {wanted}"
    entries = {**_section(config, section), **_section(keys, wanted)}
    if not entries:
        if wanted == "default" and name is None:
            return None
        raise ConfigError(
            f"there is no AWS profile {wanted!r} in {keys} and {config}",
            option="profile",
            origin="profile" if name else "AWS_PROFILE",
        )
    has_keys = "aws_access_key_id" in entries and "aws_secret_access_key" in entries
    return Profile(
        name=wanted,
        access_key_id=entries.get("aws_access_key_id") if has_keys else None,
        secret_access_key=entries.get("aws_secret_access_key") if has_keys else None,
        session_token=entries.get("aws_session_token") if has_keys else None,
        region=entries.get("region"),
        endpoint_url=entries.get("endpoint_url"),
        checksums=entries.get("response_checksum_validation"),
        # A role is assumed with the keys beside it: they are not the ones to sign with.
        fetched=next((entry for entry in _FETCHED if entry in entries and (entry == "role_arn" or not has_keys)), None),
    )


def profile_files(environ: Mapping[str, str]) -> tuple[Path, Path]:
    """The file of keys and the file of settings, which need not be there."""
    home = Path(environ.get("HOME") or "~").expanduser()
    keys = Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials").expanduser()
    return keys, Path(environ.get("AWS_CONFIG_FILE") or home / ".aws" / "config").expanduser()


def _section(path: Path, name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError) as exc:
        # The parser's text quotes lines of the file, which hold keys.
        raise ConfigError(f"{path} cannot be read as an AWS file ({type(exc).__name__})", option="profile") from None
    # Nested entries of the config file ("s3 =\n  key = value") come as one text and mean nothing here.
    return dict(parser[name]) if parser.has_section(name) else {}
