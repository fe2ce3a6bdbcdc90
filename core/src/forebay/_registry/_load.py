"""Loading plugins: built-ins first, then entry points, sorted, each isolated from the others.

pluggy's own ``load_setuptools_entrypoints`` stops at the first broken plugin and takes them in file-system order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any, TypeVar

import pluggy

from forebay import hookspecs
from forebay._url import is_scheme
from forebay.exceptions import PluginLoadError
from forebay.types import BackendSpec, CodecSpec, FormatSpec

__all__ = ["GROUP", "Claim", "Loaded", "Plugin", "load_plugins", "normalized"]

GROUP = "forebay"
_S = TypeVar("_S", BackendSpec, CodecSpec, FormatSpec)


@dataclass(frozen=True, slots=True)
class Plugin:
    """Where something comes from: an entry point of a distribution; ``error`` says why it is not usable."""

    entry_point: str
    distribution: str
    version: str | None
    error: PluginLoadError | None = None

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}" if self.version else self.distribution


@dataclass(frozen=True, slots=True)
class Claim:
    """One plugin's backend."""

    plugin: Plugin
    spec: BackendSpec


@dataclass(slots=True)
class Loaded:
    """All that plugins brought, in a fixed order."""

    claims: list[Claim] = field(default_factory=list)
    codecs: list[tuple[Plugin, CodecSpec]] = field(default_factory=list)
    formats: list[tuple[Plugin, FormatSpec]] = field(default_factory=list)
    broken: list[Plugin] = field(default_factory=list)

    def claims_of(self, scheme: str) -> list[Claim]:
        """The backends that serve exactly ``scheme``; ``fsspec+*`` serves each scheme that starts with ``fsspec+``."""
        exact = [claim for claim in self.claims if scheme in claim.spec.schemes]
        family = scheme.partition("+")[0] + "+*" if "+" in scheme else None
        return exact or [claim for claim in self.claims if family in claim.spec.schemes]

    def claims_named(self, backend: str) -> list[Claim]:
        """The backends of that name."""
        return [claim for claim in self.claims if claim.spec.name == backend]


def normalized(distribution: str) -> str:
    """A distribution's name as installers compare it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def load_plugins(into: Loaded) -> None:
    """Load the built-ins and every installed plugin into ``into``; broken ones end in ``into.broken``."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    modules: dict[int, str] = {}
    for plugin, load in _sources():
        try:
            module = load()
            # One object under two names (a copied or doubly found distribution) is one plugin, not a conflict.
            if modules.setdefault(id(module), plugin.entry_point) != plugin.entry_point:
                continue
            _take(manager, module, plugin, into)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's import may raise anything; kept and shown
            into.broken.append(replace(plugin, error=_load_error(plugin, error)))


def _sources() -> list[tuple[Plugin, Callable[[], object]]]:
    """What to load, in order. Names and values are compared, so a distribution that is found twice loads once."""
    found: dict[tuple[str, str, str], tuple[Plugin, Callable[[], object]]] = {}
    for entry in metadata.entry_points(group=GROUP):
        name = entry.dist.name if entry.dist else "?"
        version = entry.dist.version if entry.dist else None
        key = (normalized(name), entry.name, entry.value)
        found.setdefault(key, (Plugin(entry.name, name, version), entry.load))
    return [(Plugin("builtins", "forebay", _own_version()), _builtins), *(found[key] for key in sorted(found))]


def _builtins() -> object:
    from forebay import _builtins

    return _builtins


def _own_version() -> str | None:
    try:
        return metadata.version("forebay")
    except metadata.PackageNotFoundError:  # run from a source tree
        return None


def _take(manager: pluggy.PluginManager, module: object, plugin: Plugin, into: Loaded) -> None:
    """Register one plugin and collect what it brings: all of it, or nothing when something of it is wrong."""
    try:
        manager.register(module, name=f"{normalized(plugin.distribution)}:{plugin.entry_point}")
        manager.check_pending()
        backends = [_checked(spec, plugin) for spec in _ask(manager, module, "forebay_register_backends", BackendSpec)]
        codecs = _ask(manager, module, "forebay_register_codecs", CodecSpec)
        formats = _ask(manager, module, "forebay_register_formats", FormatSpec)
    except BaseException:  # whatever came, nothing of the plugin stays; it is raised again
        if manager.is_registered(module):
            manager.unregister(module)
        raise
    into.claims.extend(Claim(plugin, spec) for spec in backends)
    into.codecs.extend((plugin, spec) for spec in codecs)
    into.formats.extend((plugin, spec) for spec in formats)


def _ask(manager: pluggy.PluginManager, module: object, hook: str, kind: type[_S]) -> list[_S]:
    """Call one hook of one plugin."""
    others = [other for other in manager.get_plugins() if other is not module]
    answers: list[Iterable[Any]] = manager.subset_hook_caller(hook, remove_plugins=others)()
    specs = [spec for answer in answers for spec in answer]
    for spec in specs:
        if not isinstance(spec, kind):
            raise TypeError(f"{hook} returned a {type(spec).__name__}, not a {kind.__name__}")
    return specs


def _checked(spec: BackendSpec, plugin: Plugin) -> BackendSpec:
    if isinstance(spec.schemes, str) or not spec.schemes:
        raise TypeError(f"backend {spec.name!r}: schemes must be a tuple of texts with at least one scheme")
    for scheme in spec.schemes:
        if not is_scheme(scheme.removesuffix("*") if scheme.endswith("+*") else scheme):
            raise ValueError(f"backend {spec.name!r}: {scheme!r} is no URL scheme")
    if not spec.name or not callable(spec.load):
        raise TypeError(f"backend {spec.name!r} needs a name and a load function")
    schemes = tuple(scheme.lower() for scheme in spec.schemes)
    return replace(spec, name=spec.name.lower(), schemes=schemes, distribution=spec.distribution or plugin.distribution)


def _load_error(plugin: Plugin, error: BaseException) -> PluginLoadError:
    failed = PluginLoadError(
        f"plugin {plugin.entry_point!r} of {plugin} could not be loaded: {type(error).__name__}: {error}",
        entry_point=plugin.entry_point,
        distribution=plugin.distribution,
        version=plugin.version,
    )
    failed.__cause__ = error
    return failed
