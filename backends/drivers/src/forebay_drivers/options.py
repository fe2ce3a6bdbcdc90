"""Options that several backends read in one way; every mistake is a `ConfigError` before any I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forebay._config import environ
from forebay._options import strongest
from forebay.exceptions import ConfigError
from forebay_drivers import tls

__all__ = [
    "DRIVERS",
    "NETWORK_OPTIONS",
    "Network",
    "certificate_file",
    "flag",
    "network",
    "one_who",
    "says_who",
    "seconds",
    "wanted_driver",
]

DRIVERS = ("obstore", "fsspec")
#: What `network` reads beside the engine's options, for the ``option_types`` of a backend.
NETWORK_OPTIONS: Mapping[str, type] = {"verify_tls": bool, "ca_file": str}


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How connections are made. ``timeout`` is for each read: a body that moves may take its time.

    ``ca_file`` holds authorities that are trusted beside the system's, and ``ca_origin`` says who named it; `tls` has
    the whole rule.
    """

    timeout: float = 30.0
    connect_timeout: float = 5.0
    verify_tls: bool = True
    ca_file: Path | None = None
    ca_origin: str = "ca_file"


def says_who(layer: Mapping[str, object], who: Collection[str]) -> bool:
    """Whether one of the options ``who`` is given; ``anonymous = false`` says nothing."""
    return any(layer.get(name) is not None and layer.get(name) is not False for name in who)


def one_who(layers: Sequence[Mapping[str, object]], who: Collection[str]) -> dict[str, object]:
    """Join layers of options, where the strongest that says who asks is the only one to do so.

    Credentials of two places are never joined: an explicit one needs no change of what ``forebay.toml`` says.
    """
    kept: list[Mapping[str, object]] = []
    said = False
    for layer in layers:
        kept.append({name: value for name, value in layer.items() if name not in who} if said else layer)
        said = said or says_who(layer, who)
    return strongest(kept)


def network(options: Mapping[str, object], bundle: str | None = None) -> Network:
    """Read ``timeout``, ``connect_timeout``, ``verify_tls`` and ``ca_file``.

    Args:
        options: Of the downloader.
        bundle: The cloud's own variable that names a file of authorities; weaker than ``ca_file``.
    """
    verify = flag(options, "verify_tls", default=True)
    ca_file, origin = options.get("ca_file"), "option 'ca_file'"
    if verify:
        tls.check_environment(environ())
        if ca_file is None and bundle is not None and environ().get(bundle):
            ca_file, origin = environ()[bundle], bundle
    return Network(
        timeout=seconds(options, "timeout", 30.0),
        connect_timeout=seconds(options, "connect_timeout", 5.0),
        verify_tls=verify,
        ca_file=None if ca_file is None else certificate_file(ca_file, origin),
        ca_origin=origin,
    )


def wanted_driver(options: Mapping[str, object], backend: str) -> str | None:
    """The driver that the user asks for, if any."""
    driver = options.get("driver")
    if driver is not None and driver not in DRIVERS:
        raise ConfigError(
            f"option 'driver' is {driver!r}; the {backend} backend has {', '.join(DRIVERS)}", option="driver"
        )
    return None if driver is None else str(driver)


def flag(options: Mapping[str, object], name: str, *, default: bool) -> bool:
    """A yes or no."""
    value = options.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ConfigError(f"option {name!r} is {value!r}, not true or false", option=name)
    return value


def certificate_file(value: object, origin: str = "option 'ca_file'") -> Path:
    """The path of a file with certificates, which has to be there."""
    path = Path(str(value)).expanduser()
    if not path.is_file():
        raise ConfigError(f"{origin} names {str(path)!r}, which is no file", option="ca_file", origin=origin)
    return path


def seconds(options: Mapping[str, object], name: str, default: float) -> float:
    """A number of seconds above zero."""
    value = options.get(name)
    if value is None:
        return default
    try:
        number = float(str(value))
    except ValueError:
        number = -1.0
    if not 0 < number < 1e6:
        raise ConfigError(f"option {name!r} is {value!r}, not a number of seconds above zero", option=name)
    return number
