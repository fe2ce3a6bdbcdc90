"""What is installed: schemes for `forebay plugins`, codecs and dataset layouts for the reader."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from forebay._config import Alias, Settings, load_settings
from forebay._registry._load import Claim, Loaded, Plugin
from forebay._registry._resolve import alias_backend, choose, load_class, scheme_options
from forebay._registry._state import in_process_registrations, loaded
from forebay.downloader import Downloader, probe_class
from forebay.exceptions import ForebayError, PluginConflictError, UnsupportedFormatError
from forebay.types import BackendSpec, CodecSpec, FormatSpec

__all__ = ["PluginInfo", "codec_by_name", "codecs", "format_by_name", "formats", "plugins"]

_S = TypeVar("_S", CodecSpec, FormatSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """One scheme, who serves it and with what; or a plugin that cannot be used, and why.

    A broken plugin has no scheme: its ``backend`` is the entry point's name. ``note`` is for people: an alias's source,
    a driver's reason.
    """

    scheme: str | None
    backend: str | None
    distribution: str | None = None
    version: str | None = None
    driver: str | None = None
    native_async: bool = False
    error: str | None = None
    note: str | None = None


def plugins() -> list[PluginInfo]:
    """Every scheme, sorted, then every plugin that could not be loaded. Imports the backends; makes no request."""
    state, settings, by_hand = loaded(), load_settings(), in_process_registrations()
    rows = [_in_process(scheme, cls, settings) for scheme, cls in by_hand.items()]
    aliases = {name: alias for name, alias in settings.aliases.items() if _is_own_row(alias, state, by_hand)}
    for claim in state.claims:
        for scheme in claim.spec.schemes:
            if scheme in aliases:
                continue  # the alias's row says so; two rows would leave open which one counts
            replaced = "replaced by register_downloader in this process" if scheme in by_hand else None
            rows.append(_row(scheme, claim, state.claims_of(scheme), settings, replaced))
    rows += [_alias(alias, state, settings) for alias in aliases.values()]
    rows.sort(key=lambda row: (row.scheme or "", row.error is not None, row.distribution or ""))
    return rows + [_broken(plugin) for plugin in state.broken]


def _in_process(scheme: str, cls: type[Downloader], settings: Settings) -> PluginInfo:
    note = f"{cls.__module__}.{cls.__qualname__}, registered in this process"
    row = PluginInfo(scheme=scheme, backend=scheme, note=note)
    return _probed(row, BackendSpec(name=scheme, schemes=(scheme,), load=lambda: cls), settings)


def _probed(row: PluginInfo, spec: BackendSpec, settings: Settings) -> PluginInfo:
    """The row with what opening a URL of its scheme would find: by the alias's options and the environment's."""
    assert row.scheme is not None
    try:
        cls = load_class(spec)
        said = probe_class(cls, scheme_options(row.scheme, spec, cls, settings))
    except ForebayError as failed:
        return replace(row, error=row.error or str(failed))
    except Exception as failed:  # noqa: BLE001 - a stranger's probe must not take the listing down; shown in its row
        return replace(row, error=row.error or f"{type(failed).__name__}: {failed}")
    notes = [note for note in (row.note, said.reason) if note]
    return replace(
        row,
        version=row.version or said.version,
        driver=said.driver,
        native_async=said.native_async,
        note="; ".join(notes) or None,
    )


def _is_own_row(alias: Alias, state: Loaded, by_hand: Iterable[str]) -> bool:
    """Whether the alias decides who serves its scheme, or should: options for what is there anyway need no row."""
    there = {claim.spec.name for claim in state.claims_of(alias.scheme)}
    if alias.backend in (None, alias.scheme):
        return not (there or alias.scheme in by_hand)
    return there != {alias.backend}


def _alias(alias: Alias, state: Loaded, settings: Settings) -> PluginInfo:
    note = f"alias in {settings.source}"
    if hidden := state.claims_of(alias.scheme):
        note += f", in place of {hidden[0].plugin}"
    row = PluginInfo(scheme=alias.scheme, backend=alias.backend or alias.scheme, note=note)
    try:
        spec = alias_backend(alias, settings)
    except ForebayError as failed:
        return replace(row, error=str(failed))
    version = next((claim.plugin.version for claim in state.claims if claim.spec is spec), None)
    return _probed(replace(row, distribution=spec.distribution, version=version), spec, settings)


def _row(scheme: str, claim: Claim, claims: list[Claim], settings: Settings, error: str | None) -> PluginInfo:
    spec, plugin = claim.spec, claim.plugin
    row = PluginInfo(
        scheme=scheme,
        backend=spec.name,
        distribution=plugin.distribution,
        version=plugin.version,
        driver=spec.drivers[0] if spec.drivers else None,
        error=error,
    )
    try:
        chosen = choose(scheme, claims, settings)
    except ForebayError as failed:
        return replace(row, error=error or str(failed))
    if chosen is not claim:
        unused = f"not used: {scheme}:// is served by {chosen.plugin} ([backends] in {settings.source})"
        row = replace(row, error=error or unused)
    return _probed(row, spec, settings)


def _broken(plugin: Plugin) -> PluginInfo:
    return PluginInfo(
        scheme=None,
        backend=plugin.entry_point,
        distribution=plugin.distribution,
        version=plugin.version,
        error=str(plugin.error),
    )


def codecs() -> list[CodecSpec]:
    """Every decompressor, built-ins first."""
    return [spec for _, spec in loaded().codecs]


def formats() -> list[FormatSpec]:
    """Every dataset layout, built-ins first."""
    return [spec for _, spec in loaded().formats]


def codec_by_name(name: str) -> CodecSpec:
    """The decompressor called ``name``.

    Raises:
        UnsupportedFormatError: There is none.
        PluginConflictError: There are two.
    """
    return _by_name("codec", name, loaded().codecs)


def format_by_name(name: str) -> FormatSpec:
    """The dataset layout called ``name``.

    Raises:
        UnsupportedFormatError: There is none.
        PluginConflictError: There are two.
    """
    return _by_name("format", name, loaded().formats)


def _by_name(kind: str, name: str, known: Iterable[tuple[Plugin, _S]]) -> _S:
    found = [(plugin, spec) for plugin, spec in known if spec.name == name]
    if len(found) > 1:
        who = " and ".join(str(plugin) for plugin, _ in found)
        raise PluginConflictError(f"the {kind} {name!r} is brought by {who}; uninstall one of them")
    if not found:
        names = ", ".join(sorted(spec.name for _, spec in known))
        broken = ", ".join(sorted({str(plugin) for plugin in loaded().broken}))
        tail = f"; could not be loaded, see `forebay plugins`: {broken}" if broken else ""
        raise UnsupportedFormatError(f"no installed {kind} is called {name!r} (installed: {names}){tail}")
    return found[0][1]
