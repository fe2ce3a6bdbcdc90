"""From what people configure to the options that a downloader gets: layers, types, and who said what."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from forebay._config import environ, near, parse_size
from forebay.exceptions import ConfigError

__all__ = [
    "ENGINE_OPTIONS",
    "OPTION_TYPES",
    "Layer",
    "merge_options",
    "option_from_text",
    "option_types_fault",
    "strongest",
]

#: What the engine itself uses, whatever the backend.
ENGINE_OPTIONS: Mapping[str, type] = {
    "timeout": float,
    "connect_timeout": float,
    "max_attempts": int,
    "max_concurrency": int,
    "part_size": int,
}

#: What an entry of ``option_types`` may be.
OPTION_TYPES = (str, int, float, bool, dict, object)

_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
# Variables of our own that could look like an option of a backend called "cache", "prefetch", …
_OWN_VARIABLES = frozenset(
    {"FOREBAY_CACHE_DIR", "FOREBAY_CONFIG", "FOREBAY_PREFETCH", "FOREBAY_PREFETCH_MIN", "FOREBAY_WAIT_TIMEOUT"}
)


@dataclass(frozen=True, slots=True)
class Layer:
    """Options from one place. ``origin`` is that place in words; None values count as not given."""

    origin: str
    options: Mapping[str, object] = field(repr=False)


Join = Callable[[Sequence[Mapping[str, object]]], Mapping[str, object]]


def strongest(layers: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Of each option the value of the first layer that has it."""
    joined: dict[str, object] = {}
    for layer in layers:
        for name, value in layer.items():
            joined.setdefault(name, value)
    return joined


def merge_options(
    backend: str,
    types: Mapping[str, type] | None,
    layers: Iterable[Layer],
    others: Iterable[str] = (),
    join: Join = strongest,
) -> tuple[dict[str, object], dict[str, str]]:
    """Join the layers, the strongest first, over the environment; return the options and the origin of each.

    Args:
        backend: The backend's name, which is also part of its environment variables' names.
        types: The class's ``option_types``; None takes any option as it comes.
        layers: Where options come from, strongest first.
        others: Names of all backends, to tell ``FOREBAY_S3_X`` from an option of a backend ``s3_x``.
        join: The class's ``join_options``.

    Raises:
        ConfigError: An option that the backend does not take, or a value of another type; it names the origin.
    """
    known = None if types is None else {**ENGINE_OPTIONS, **types}
    origins: dict[str, str] = {}
    read: list[dict[str, object]] = []
    for layer in layers:
        read.append({})
        for name, value in layer.options.items():
            if not isinstance(name, str):
                raise ConfigError(f"an option's name is a text, not {type(name).__name__} (from {layer.origin})")
            wanted = _wanted(backend, name, known, layer.origin)
            if value is not None:
                with _if_it_counts(name not in origins):
                    read[-1][name] = _coerce(name, value, wanted, layer.origin)
                    origins.setdefault(name, layer.origin)
    read.append({})
    for variable, name, text in _variables(backend, others):
        wanted = _wanted(backend, name, known, variable)
        with _if_it_counts(name not in origins):
            read[-1][name] = _from_text(name, text, wanted, variable)
            origins.setdefault(name, variable)
    options = dict(join(read))
    return options, {name: origin for name, origin in origins.items() if name in options}


def _if_it_counts(counts: bool) -> AbstractContextManager[None]:
    """A value that a stronger one hides may be wrong."""
    return nullcontext() if counts else suppress(ConfigError)


def option_types_fault(types: object) -> str | None:
    """Why a class's ``option_types`` cannot be used; None where it can."""
    if types is None:
        return None
    allowed = ", ".join(kind.__name__ for kind in OPTION_TYPES)
    if not isinstance(types, Mapping):
        return f"option_types is a {type(types).__name__}, not a mapping of option names to types ({allowed})"
    for name, kind in types.items():
        if not isinstance(name, str) or not name:
            return f"option_types has the key {name!r}, which is no option name"
        if kind not in OPTION_TYPES:
            return f"option_types gives {name!r} the type {kind!r}, not one of {allowed}"
    return None


def option_from_text(backend: str, types: Mapping[str, type] | None, name: str, text: str, origin: str) -> object:
    """Read the value of an option that somebody typed.

    Raises:
        ConfigError: The backend has no such option, or the text is no value of it.
    """
    known = None if types is None else {**ENGINE_OPTIONS, **types}
    return _from_text(name, text, _wanted(backend, name, known, origin), origin)


def _prefix(backend: str) -> str:
    return "FOREBAY_" + re.sub(r"[^A-Z0-9]", "_", backend.upper()) + "_"


def _variables(backend: str, others: Iterable[str]) -> list[tuple[str, str, str]]:
    prefix = _prefix(backend)
    longer = tuple(p for p in map(_prefix, others) if p != prefix and p.startswith(prefix))
    return [
        (variable, variable[len(prefix) :].lower(), text)
        for variable, text in sorted(environ().items())
        if text and variable.startswith(prefix) and variable not in _OWN_VARIABLES and not variable.startswith(longer)
    ]


def _wanted(backend: str, name: str, known: Mapping[str, type] | None, origin: str) -> type:
    if known is None:
        return ENGINE_OPTIONS.get(name, object)
    if name not in known:
        raise ConfigError(
            f"unknown option {name!r} for backend {backend!r} (from {origin}){near(name, known) or '.'} "
            f"It takes: {', '.join(sorted(known))}",
            option=name,
            origin=origin,
        )
    return known[name]


def _is_size(name: str) -> bool:
    return name.endswith(("_size", "_bytes"))


def _coerce(name: str, value: Any, wanted: type, origin: str) -> object:
    """Check a value that already has a type; a copy of a mapping, so that two stores never share one."""
    if wanted is object:
        return dict(value) if isinstance(value, dict) else value
    if wanted is int and _is_size(name) and isinstance(value, (str, int)):
        return parse_size(value, option=name, origin=origin)
    if wanted is bool and isinstance(value, bool):
        return value
    if wanted is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if wanted is float and isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if wanted is dict and isinstance(value, Mapping):
        return dict(value)
    if wanted is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if wanted not in (bool, int, float, dict) and isinstance(value, wanted):
        return value
    raise _wrong(name, wanted, f"a {type(value).__name__}", origin)


def _from_text(name: str, text: str, wanted: type, variable: str) -> object:
    """Read a value that comes as text, from the environment. The text may be a secret: no error shows it."""
    if wanted in (str, object):
        return text
    if wanted is int and _is_size(name):
        wanted_size: Callable[[str], object] = parse_size
        return _parsed(name, text, wanted, variable, wanted_size)
    readers: Mapping[type, Callable[[str], object]] = {
        bool: lambda word: _BOOLEANS[word.strip().lower()],
        int: int,
        float: float,
        dict: json.loads,
    }
    if wanted not in readers:
        raise ConfigError(
            f"option {name!r} cannot come from the environment ({variable})", option=name, origin=variable
        )
    return _coerce(name, _parsed(name, text, wanted, variable, readers[wanted]), wanted, variable)


def _parsed(name: str, text: str, wanted: type, variable: str, read: Callable[[str], object]) -> object:
    try:
        return read(text)
    except (ValueError, KeyError):
        raise _wrong(name, wanted, "this text", variable) from None


def _wrong(name: str, wanted: type, found: str, origin: str) -> ConfigError:
    words = {
        str: "a text",
        int: "a size such as 8388608 or '8MiB'" if _is_size(name) else "a whole number",
        float: "a finite number",
        bool: "true or false",
        dict: "a table (a JSON object in the environment)",
    }
    return ConfigError(
        f"option {name!r} must be {words.get(wanted, wanted.__name__)}, not {found} (from {origin})",
        option=name,
        origin=origin,
    )
