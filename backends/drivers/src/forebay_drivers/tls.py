"""Which authorities a server's certificate may come from: one rule for every driver.

The system's authorities, or those of ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` in their place; besides them the one of the
option ``ca_file``, else of the cloud's own variable (``AWS_CA_BUNDLE``). obstore goes by the two ``SSL_CERT_…``
variables in just this way, so the Python clients are given a context that does. ``REQUESTS_CA_BUNDLE`` and
``CURL_CA_BUNDLE`` are other libraries' variables.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from forebay._config import environ
from forebay.exceptions import ConfigError

if TYPE_CHECKING:
    from forebay_drivers.options import Network

__all__ = ["FILE", "FOLDER", "check_environment", "context", "trusted"]

FILE, FOLDER = "SSL_CERT_FILE", "SSL_CERT_DIR"


def check_environment(env: Mapping[str, str]) -> None:
    """Refuse a variable that names nothing: obstore fails on it without a word of why, OpenSSL trusts nobody then.

    Raises:
        ConfigError: ``SSL_CERT_FILE`` names no file, or ``SSL_CERT_DIR`` no folder at all.
    """
    named = env.get(FILE)
    if named and not Path(named).is_file():
        raise ConfigError(f"{FILE} names {named!r}, which is no file", option="ca_file", origin=FILE)
    folders = _folders(env)
    if folders and not any(folder.is_dir() for folder in folders):
        raise ConfigError(f"{FOLDER} names {env[FOLDER]!r}, which is no folder", option="ca_file", origin=FOLDER)


def context(network: Network) -> ssl.SSLContext:
    """What a Python client is to trust. Made anew where a file that counts has changed, so that a renewed one does."""
    if not network.verify_tls:
        return _nobody_checked()
    env = environ()
    named = [Path(env[FILE])] if env.get(FILE) else []
    folder_files = [file for folder in _folders(env) if folder.is_dir() for file in folder.iterdir() if file.is_file()]
    own = [] if network.ca_file is None else [Path(network.ca_file)]
    instead = bool(env.get(FILE) or env.get(FOLDER))
    return _trusting(_stamped(named), _stamped(sorted(folder_files)), _stamped(own), instead)


#: A file and what tells that it changed: time of change in nanoseconds, and size.
_Stamp = tuple[str, int, int]


def _stamped(files: list[Path]) -> tuple[_Stamp, ...]:
    found = ((str(file), file.stat()) for file in files)
    return tuple((name, status.st_mtime_ns, status.st_size) for name, status in found)


@functools.lru_cache(maxsize=8)
def _trusting(
    named: tuple[_Stamp, ...], folder_files: tuple[_Stamp, ...], own: tuple[_Stamp, ...], instead: bool
) -> ssl.SSLContext:
    """Make a context; a folder of the system has some hundred files, which take as many milliseconds to read."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for file, *_ in named:
        made.load_verify_locations(cafile=file)
    for file, *_ in folder_files:
        try:
            made.load_verify_locations(cafile=file)
        except ssl.SSLError:
            continue  # a folder of certificates holds other files too: a README, a list of revoked ones
    if not instead:
        _load_system(made)
    for file, *_ in own:
        made.load_verify_locations(cafile=file)
    return made


def trusted(network: Network) -> str:
    """The same in words, for `forebay doctor`."""
    if not network.verify_tls:
        return "certificates are not checked (verify_tls=false)"
    env = environ()
    named = [f"{env[name]} ({name})" for name in (FILE, FOLDER) if env.get(name)]
    besides = f" and {network.ca_file} ({network.ca_origin})" if network.ca_file is not None else ""
    others = [name for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE") if env.get(name) and not env.get(FILE)]
    unread = f" ({' and '.join(others)} is another library's: not read)" if others else ""
    return f"certificates of {' and '.join(named) or 'the system'}{besides} are trusted{unread}"


def _folders(env: Mapping[str, str]) -> list[Path]:
    return [Path(part) for part in (env.get(FOLDER) or "").split(":") if part]


@functools.cache
def _nobody_checked() -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made


def _load_system(made: ssl.SSLContext) -> None:
    known = ssl.get_default_verify_paths()
    made.load_default_certs()
    if known.cafile is None and known.capath is None and not made.cert_store_stats()["x509_ca"]:
        # Pythons that were built elsewhere know no store of this machine's; the SDKs bring one then.
        try:
            where = import_module("certifi").where()
        except ImportError:
            return
        made.load_verify_locations(cafile=where)
