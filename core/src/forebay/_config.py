"""Where the outside enters: environment, clock, randomness, ``forebay.toml`` and the user's directories.

The only module that reads the environment. Nothing is read at import, and tests replace its functions.
"""

from __future__ import annotations

import logging
import operator
import os
import random as _random_module
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forebay._url import is_scheme
from forebay.exceptions import ConfigError

__all__ = [
    "Alias",
    "Settings",
    "cache_dir_setting",
    "default_cache_dir",
    "environ",
    "eviction",
    "expand_user",
    "format_size",
    "load_settings",
    "log_once",
    "monotonic",
    "near",
    "parse_size",
    "prefetch_floor",
    "prefetch_override",
    "random",
    "wait_timeout",
    "wall_clock",
]

_FILE = "forebay.toml"
#: How a full cache chooses what goes; the first is the default.
EVICTIONS = ("clairvoyant", "lru")
_UNITS: dict[str, int] = {"": 1, "b": 1} | {
    prefix + ending: base**power
    for power, prefix in enumerate("kmgtp", start=1)
    for ending, base in (("b", 1000), ("ib", 1024))
}
_SIZE = re.compile(r"(\d[\d_]*(?:\.\d+)?)\s*([A-Za-z]*)")


def environ() -> Mapping[str, str]:
    """The environment of the process as it is now."""
    return os.environ


def replace_environ(variables: Mapping[str, str]) -> None:
    """Make the environment of this process, a worker, that of its trainer."""
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def monotonic() -> float:
    """Seconds on a clock that never goes back; for waits and deadlines."""
    return time.monotonic()


def wall_clock() -> float:
    """Seconds since 1970; for what people or other machines read."""
    return time.time()


_generator: tuple[int, _random_module.Random] | None = None


def random() -> _random_module.Random:
    """The process's own source of randomness; a forked child gets another, or all would back off in step."""
    global _generator
    if _generator is None or _generator[0] != os.getpid():
        _generator = (os.getpid(), _random_module.Random())
    return _generator[1]


_logged: set[str] = set()


def log_once(text: str) -> None:
    """Warn in the log, once a process for each text, that something differs from what was asked."""
    if text not in _logged:
        _logged.add(text)
        logging.getLogger("forebay").warning(text)


def near(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` when something known is close to ``word``, else nothing."""
    import difflib

    close = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def parse_size(value: int | str, *, option: str | None = None, origin: str | None = None) -> int:
    """A number of bytes from an int or a text such as ``"200GiB"`` (1024-based), ``"64MB"`` (1000-based) or ``"4096"``.

    Raises:
        ConfigError: The value is negative, fractional bytes, of another type, or has a unit that could mean two things.
    """
    where = (f" for {option}" if option else "") + (f" ({origin})" if origin else "")
    hint = "a size is a number of bytes or a text such as '200GiB' or '64MB'"
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None or match[2].lower() not in _UNITS:
            raise ConfigError(f"{value!r} is no size{where}; {hint}", option=option, origin=origin)
        number, scale = match[1].replace("_", ""), _UNITS[match[2].lower()]
        size = int(number) * scale if "." not in number else round(float(number) * scale)
        if "." in number and scale == 1:
            raise ConfigError(f"{value!r} is no whole number of bytes{where}", option=option, origin=origin)
        return size
    try:
        if isinstance(value, bool):
            raise TypeError
        size = operator.index(value)
    except TypeError:
        text = f"{type(value).__name__} is no size{where}; {hint}"
        raise ConfigError(text, option=option, origin=origin) from None
    if size < 0:
        raise ConfigError(f"{size} bytes is a negative size{where}", option=option, origin=origin)
    return size


def format_size(n: int) -> str:
    """``n`` bytes for people: ``"64 MiB"``, ``"1.5 GiB"``, ``"17 B"``."""
    number, unit = float(n), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(number) < 1023.95 or unit == "PiB":
            break
        number /= 1024
    return f"{number:.1f}".removesuffix(".0") + f" {unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """A ``[scheme.NAME]`` table: URLs ``NAME://…`` go to ``backend`` (None: the scheme's own) with these options."""

    scheme: str
    backend: str | None
    options: Mapping[str, object] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What ``forebay.toml`` says; ``source`` is its path, or None where there is none."""

    aliases: Mapping[str, Alias] = field(default_factory=dict)
    cache_dir: Path | None = None
    max_cache_bytes: int | None = None
    eviction: str | None = None
    backends: Mapping[str, str] = field(default_factory=dict)
    source: Path | None = None


_parsed: tuple[tuple[str, int, int, int], Settings] | None = None


def load_settings() -> Settings:
    """Read the first ``forebay.toml`` there is.

    Looked for at ``FOREBAY_CONFIG``, in the working directory and upwards, in the user's config directory.

    Raises:
        ConfigError: The file cannot be read, is no TOML, or holds something that we do not know; it names file and key.
    """
    global _parsed
    path = _find_file()
    if path is None:
        return Settings()
    import tomllib

    try:
        facts = path.stat()
        fingerprint = (str(path), facts.st_ino, facts.st_mtime_ns, facts.st_size)
        if _parsed is not None and _parsed[0] == fingerprint:
            return _parsed[1]
        text = path.read_bytes().decode("utf-8")
        settings = _settings(path, tomllib.loads(text))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", origin=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no valid TOML: {error}", origin=str(path)) from error
    _parsed = (fingerprint, settings)
    return settings


def _find_file() -> Path | None:
    named = environ().get("FOREBAY_CONFIG")
    if named:
        path = Path(named).expanduser()
        if not path.exists():
            raise ConfigError(f"FOREBAY_CONFIG names {path}, which does not exist", origin="FOREBAY_CONFIG")
        return path.absolute()
    try:
        here = Path.cwd()
    except FileNotFoundError:  # the working directory was removed under us
        folders: list[Path] = []
    else:
        folders = [here, *here.parents]
    from platformdirs import user_config_path

    folders.append(user_config_path("forebay", appauthor=False))
    # os.path.isfile is False, not an error, where a parent may not be searched.
    return next((folder / _FILE for folder in folders if os.path.isfile(folder / _FILE)), None)


def _settings(path: Path, document: Mapping[str, Any]) -> Settings:
    _known(path, "", document, ("scheme", "cache", "backends"))
    tables = {name: _table(path, name, document.get(name, {})) for name in ("scheme", "cache", "backends")}
    cache = tables["cache"]
    _known(path, "cache", cache, ("dir", "max_bytes", "eviction"))
    directory = _typed(path, "cache.dir", cache.get("dir"))
    limit = cache.get("max_bytes")
    policy = _typed(path, "cache.eviction", cache.get("eviction"))
    return Settings(
        aliases=_aliases(path, tables["scheme"]),
        cache_dir=None if directory is None else path.parent / expand_user(directory, "cache.dir", str(path)),
        max_cache_bytes=None if limit is None else parse_size(limit, option="cache.max_bytes", origin=str(path)),
        eviction=policy and _policy(policy, "cache.eviction", str(path)),
        backends={
            scheme.lower(): _typed(path, f"backends.{scheme}", name) or ""
            for scheme, name in tables["backends"].items()
        },
        source=path,
    )


def _aliases(path: Path, tables: Mapping[str, Any]) -> dict[str, Alias]:
    aliases: dict[str, Alias] = {}
    for name, value in tables.items():
        key = f"scheme.{name}"
        table = dict(_table(path, key, value))
        scheme = name.lower()
        if not is_scheme(name) or scheme in aliases:
            problem = "is given twice" if scheme in aliases else "is no URL scheme (letters, digits, '+', '-', '.')"
            raise ConfigError(f"{path}: [{key}] {problem}", option=key, origin=str(path))
        backend = _typed(path, f"{key}.backend", table.pop("backend", None))
        aliases[scheme] = Alias(scheme=scheme, backend=backend and backend.lower(), options=table)
    return aliases


def _known(path: Path, table: str, found: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in found:
        if key not in known:
            what = f"key {key!r} in [{table}]" if table else f"table or key {key!r}"
            raise ConfigError(
                f"{path}: unknown {what}{near(key, known) or '.'} It takes: {', '.join(known)}",
                option=f"{table}.{key}".lstrip("."),
                origin=str(path),
            )


def _table(path: Path, key: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {key} must be a table, written [{key}]", option=key, origin=str(path))
    return value


def _typed(path: Path, key: str, value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        found = "an empty text" if value == "" else f"a {type(value).__name__}"
        raise ConfigError(f"{path}: {key} must be a text, not {found}", option=key, origin=str(path))
    return value


def expand_user(text: str, option: str, origin: str) -> Path:
    """A path that somebody wrote into a setting, where no shell has replaced a leading ``~``.

    Raises:
        ConfigError: It names the home of a user that there is not.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{option} is {text!r}: {error}", option=option, origin=origin) from error


def cache_dir_setting() -> Path | None:
    """The cache directory that ``FOREBAY_CACHE_DIR`` or ``[cache] dir`` asks for; None when nobody does."""
    named = environ().get("FOREBAY_CACHE_DIR")
    return expand_user(named, "FOREBAY_CACHE_DIR", "environment") if named else load_settings().cache_dir


def default_cache_dir() -> Path:
    """The cache directory of a caller that gives none: the configured one, else the user's cache directory."""
    configured = cache_dir_setting()
    if configured is not None:
        return configured
    from platformdirs import user_cache_path

    return user_cache_path("forebay", appauthor=False)


def eviction() -> str:
    """What a full cache lets go of first, from ``FOREBAY_EVICTION`` or ``[cache] eviction``.

    ``"clairvoyant"``, unless set: the chunk that all readers need last. ``"lru"``: the one that was used last.
    """
    text = environ().get("FOREBAY_EVICTION", "").strip()
    return _policy(text, "FOREBAY_EVICTION", "environment") if text else load_settings().eviction or EVICTIONS[0]


def _policy(text: str, option: str, origin: str) -> str:
    word = text.lower()
    if word not in EVICTIONS:
        raise ConfigError(
            f"{option} ({origin}) must be {' or '.join(EVICTIONS)}, not {text!r}{near(word, EVICTIONS)}",
            option=option,
            origin=origin,
        )
    return word


def prefetch_override() -> bool | int | None:
    """``FOREBAY_PREFETCH``: ``off``, ``false``, ``no`` or 0; ``on``, ``true``, ``yes``, ``auto``; or chunks ahead."""
    text = environ().get("FOREBAY_PREFETCH", "").strip().lower()
    if not text:
        return None
    if text in ("on", "true", "yes", "auto"):
        return True
    if text in ("0", "off", "false", "no"):
        return False
    return _count("FOREBAY_PREFETCH", text, "on, off or a number of chunks")


def prefetch_floor() -> int:
    """``FOREBAY_PREFETCH_MIN``: chunks that are always kept ahead, 4 unless set; 0 is no floor."""
    text = environ().get("FOREBAY_PREFETCH_MIN", "").strip()
    return _count("FOREBAY_PREFETCH_MIN", text, "a number of chunks") if text else 4


def wait_timeout() -> float:
    """``FOREBAY_WAIT_TIMEOUT``: seconds that a reader waits for room in the cache before it is an error; 300."""
    text = environ().get("FOREBAY_WAIT_TIMEOUT", "").strip()
    try:
        seconds = float(text) if text else 300.0
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(
            f"FOREBAY_WAIT_TIMEOUT must be a number of seconds above 0, not {text!r}",
            option="FOREBAY_WAIT_TIMEOUT",
            origin="environment",
        )
    return seconds


def _count(variable: str, text: str, wanted: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{variable} must be {wanted}, not {text!r}", option=variable, origin="environment")
    return int(text)
