"""Schemes that we know of whether or not they are installed, and the texts that tell people what to install."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from forebay._config import near
from forebay._registry._load import Loaded, Plugin, normalized
from forebay.exceptions import ConfigError, PluginLoadError, UnknownSchemeError

__all__ = ["EXTRAS", "broken_for", "install_hint", "unknown_backend", "unknown_scheme"]

#: Each extra of this distribution that brings a backend, and the schemes which that serves ("x+*": all that start so).
#: A test compares it with pyproject.toml, so that nobody is told to install what does not exist.
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "azure": ("abfs", "abfss", "az", "azure"),
    "fsspec": ("fsspec+*",),
    "gcs": ("gcs", "gs"),
    "http": ("http", "https"),
    "s3": ("s3",),
}


def _extra(scheme: str) -> str | None:
    family = scheme.partition("+")[0] + "+*" if "+" in scheme else scheme
    return next((extra for extra, schemes in EXTRAS.items() if scheme in schemes or family in schemes), None)


def install_hint(scheme: str) -> str | None:
    """The command that brings an in-tree backend for ``scheme``; None where none is known."""
    extra = _extra(scheme)
    return f'pip install "forebay[{extra}]"' if extra else None


def broken_for(scheme: str, loaded: Loaded) -> PluginLoadError | None:
    """A fresh error of the broken plugin that would have served ``scheme``: named like it, or its known home."""
    extra = _extra(scheme)
    for plugin in loaded.broken:
        known = extra is not None and normalized(plugin.distribution) == f"forebay-{extra}"
        if plugin.error is not None and (known or scheme == plugin.entry_point.lower()):
            return _again(plugin, plugin.error, scheme)
    return None


def _again(plugin: Plugin, error: PluginLoadError, scheme: str) -> PluginLoadError:
    # Not the remembered instance: raising it again and again would grow its traceback.
    fresh = PluginLoadError(
        f"no backend for {scheme}://: {error.message}",
        entry_point=plugin.entry_point,
        distribution=plugin.distribution,
        version=plugin.version,
    )
    fresh.__cause__ = error.__cause__
    return fresh


def unknown_scheme(
    scheme: str, installed: Iterable[str], broken: Sequence[Plugin], *, table: str | None = None
) -> UnknownSchemeError:
    """The error for a scheme that nothing serves: what there is, what is near, what to install, what is broken.

    ``table`` is the alias of that name in ``forebay.toml``, which does not say whose it is.
    """
    known = sorted(set(installed))
    hint = install_hint(scheme)
    famous = {name for schemes in EXTRAS.values() for name in schemes if "*" not in name}
    parts = [f"no backend serves the scheme {scheme!r}"]
    if table:
        parts.append(f", and {table} names none that would: give it a line such as backend = {_example(known)!r}")
    elif not hint:
        parts.append(near(scheme, {*known, *famous}) or _families(scheme, known))
    if hint:
        parts.append(f"; install it with: {hint}")
    parts.append(f" (installed: {', '.join(known)}" + ("" if hint else "; see forebay.register_downloader") + ")")
    if broken:
        names = ", ".join(sorted({str(plugin) for plugin in broken}))
        parts.append(f"; could not be loaded, see `forebay plugins`: {names}")
    return UnknownSchemeError("".join(parts), option="scheme")


def _families(scheme: str, known: Sequence[str]) -> str:
    """How a plugin with a family of schemes would be asked; only it knows which of them mean something."""
    families = [f"{name.removesuffix('*')}{scheme}://" for name in known if name.endswith("+*")]
    return f"; a protocol of that name is read as {' or '.join(families)}" if families else ""


def _example(known: Sequence[str]) -> str:
    return "http" if "http" in known or not known else known[0]


def unknown_backend(name: str, origin: str, installed: Iterable[str]) -> ConfigError:
    """The error for a ``backend`` option that names none."""
    known = sorted(set(installed))
    hint = install_hint(name)
    remedy = f"; install it with: {hint}" if hint else near(name, known)
    return ConfigError(
        f"there is no backend {name!r} (from {origin}){remedy} (installed: {', '.join(known)})",
        option="backend",
        origin=origin,
    )
