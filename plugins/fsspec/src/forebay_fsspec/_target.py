"""From fsspec's words for a file system under ours to a URL and options of Forebay's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
    # Of ``client_kwargs`` and ``config_kwargs["s3"]`` alone:
    "region_name": "region",
    "addressing_style": "addressing_style",
    "verify_tls": "verify_tls",
    "ca_file": "ca_file",
}
#: What people give to the client under s3fs, in s3fs's words.
_S3_CLIENT = {
    "endpoint_url": "endpoint_url",
    "region_name": "region_name",
    "aws_access_key_id": "key",
    "aws_secret_access_key": "secret",
    "aws_session_token": "token",
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
    for name, path, value in _named(given, nested=names is _S3):
        if name not in names:
            raise ConfigError(
                f"option {path} of fsspec's {protocol}:// has no counterpart in Forebay's own backend; give Forebay's"
                f" options instead: forebay={{'options': {{…}}}}, or read through fsspec+{protocol}://",
                option=path.strip("'"),
            )
        if options.setdefault(names[name], value) != value:
            raise ConfigError(f"option {path} says something else than another option of its meaning", option=path)
    return options


def _named(given: Mapping[str, object], *, nested: bool) -> Iterator[tuple[str, str, object]]:
    """Each option: its name as s3fs itself has it, how it was written, and its value."""
    for name, value in given.items():
        if not nested or name not in ("client_kwargs", "config_kwargs") or not isinstance(value, Mapping):
            yield name, repr(name), value
            continue
        for inner, one in value.items():
            path = f"{name}[{inner!r}]"
            if name == "client_kwargs" and inner == "verify":
                yield ("verify_tls" if isinstance(one, bool) else "ca_file"), path, one
            elif name == "client_kwargs":
                yield _S3_CLIENT.get(inner, path), path, one
            elif inner == "s3" and isinstance(one, Mapping):
                yield from ((deep, f"{path}[{deep!r}]", last) for deep, last in one.items())
            else:
                yield path, path, one
