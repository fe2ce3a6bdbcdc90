"""From fsspec's words for a file system under ours to a URL and options of Forebay's."""

from __future__ import annotations

from collections.abc import Mapping

from forebay.exceptions import ConfigError

__all__ = ["target_options", "target_prefix"]

#: fsspec's protocols that Forebay has drivers of its own for, and what stands before their paths in a URL.
_NATIVE = {
    "s3": "s3://",
    "s3a": "s3://",
    "gs": "gs://",
    "gcs": "gs://",
    "az": "az://",
    "abfs": "az://",
    "abfss": "az://",
    "http": "",  # fsspec's paths of these are whole URLs
    "https": "",
    "file": "",
    "local": "",
}
_S3 = {
    "anon": "anonymous",
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "endpoint_url": "endpoint_url",
    "profile": "profile",
    "requester_pays": "requester_pays",
}
_GCS = {"anon": "anonymous", "token": "token", "project": "project", "endpoint_url": "endpoint_url"}
_AZURE = {
    "anon": "anonymous",
    "account_name": "account_name",
    "account_key": "account_key",
    "sas_token": "sas_token",
    "connection_string": "connection_string",
}
_OURS: Mapping[str, Mapping[str, str]] = {"s3://": _S3, "gs://": _GCS, "az://": _AZURE}


def target_prefix(protocol: str) -> str:
    """What stands before a path of ``protocol`` in a URL of ours."""
    return _NATIVE.get(protocol, f"fsspec+{protocol}://")


def target_options(protocol: str, given: Mapping[str, object]) -> dict[str, object]:
    """Options for the file system under ours, as our backend takes them.

    Raises:
        ConfigError: An option that our backend has no word for.
    """
    if protocol not in _NATIVE:
        return dict(given)
    names = _OURS.get(_NATIVE[protocol], {})
    options: dict[str, object] = {}
    for name, value in given.items():
        if name == "client_kwargs" and names is _S3 and isinstance(value, Mapping) and set(value) == {"region_name"}:
            options["region"] = value["region_name"]
        elif name in names:
            options[names[name]] = value
        else:
            raise ConfigError(
                f"option {name!r} of fsspec's {protocol}:// has no counterpart in Forebay's own backend; give Forebay's"
                f" options instead: forebay={{'options': {{…}}}}, or read through fsspec+{protocol}://",
                option=name,
            )
    return options
