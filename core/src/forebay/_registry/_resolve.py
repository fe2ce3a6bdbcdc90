"""From a URL and options to the class that serves it. Every mistake is an error here, before any I/O."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from forebay._config import Alias, Settings, load_settings
from forebay._options import Layer, merge_options, option_types_fault
from forebay._registry._known import broken_for, install_hint, unknown_backend, unknown_scheme
from forebay._registry._load import Claim, Loaded, normalized
from forebay._registry._state import in_process_registrations, loaded, registered
from forebay._url import URL, parse_url
from forebay.downloader import Downloader
from forebay.exceptions import (
    ConfigError,
    ForebayError,
    InvalidURLError,
    MissingDependencyError,
    PluginConflictError,
    PluginLoadError,
)
from forebay.types import BackendSpec

__all__ = [
    "EXPLICIT",
    "Resolved",
    "alias_backend",
    "choose",
    "load_class",
    "make",
    "open_downloader",
    "resolve",
    "scheme_options",
]

EXPLICIT = "options="


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What a URL means here. ``url`` has aliases applied; ``origins`` says where each option came from."""

    url: URL
    backend: BackendSpec
    cls: type[Downloader]
    options: dict[str, object] = field(repr=False)
    remote: bool
    origins: dict[str, str] = field(default_factory=dict)


def resolve(url: str | os.PathLike[str] | URL, options: Mapping[str, object] | None = None) -> Resolved:
    """Find what serves ``url`` and join its options; imports the backend, makes no request.

    Raises:
        InvalidURLError: The URL cannot be read.
        UnknownSchemeError: Nothing serves its scheme; the message says what to install.
        PluginLoadError: What would serve it is broken.
        PluginConflictError: Two plugins claim it and ``[backends]`` names neither.
        MissingDependencyError: The backend is there and what it needs is not.
        ConfigError: An option is unknown or of another type, or ``forebay.toml`` is wrong.
    """
    parsed = parse_url(url)
    settings = load_settings()
    explicit = _explicit(options)
    alias = settings.aliases.get(parsed.scheme)
    wanted, origin = _wanted_backend(parsed.scheme, explicit, alias, settings)
    spec = _backend(parsed.scheme, wanted, origin, settings)
    # The alias's options were written for the alias's backend: another one that is asked for does not get them.
    own = alias is not None and (alias.backend or alias.scheme) in (spec.name, *spec.schemes)
    cls = load_class(spec)
    given = alias if own or explicit.get("backend") is None else None
    target = _retarget(parsed, spec, wanted, origin)
    merged, origins = _merged(spec, cls, str(target), explicit, given, settings)
    return Resolved(url=target, backend=spec, cls=cls, options=merged, remote=spec.remote, origins=origins)


def open_downloader(url: str | os.PathLike[str], *, options: Mapping[str, object] | None = None) -> Downloader:
    """Make the downloader whose root is ``url``; the scheme picks the backend.

    Args:
        url: A URL or local path; see `resolve` for what can be wrong with it.
        options: Options of the backend; stronger than ``forebay.toml`` and the environment. ``backend``
            picks another one than the scheme's.
    """
    resolved = resolve(url, options)
    return make(resolved, str(resolved.url))


def make(resolved: Resolved, root: str) -> Downloader:
    """Make a downloader of ``root``, with options of its own that no other shares.

    Raises:
        InvalidURLError: The root ends in ``//``, and the empty part of the key would be lost.
    """
    url = parse_url(root)
    path = url.rest.partition("?")[0] if url.scheme in ("http", "https") else url.rest
    if path.endswith("//") and url.scheme != "file":
        raise InvalidURLError(f"{url.redacted} ends in an empty part, which a root cannot keep; end it in one slash")
    options = {name: dict(value) if isinstance(value, dict) else value for name, value in resolved.options.items()}
    return resolved.cls(root, options)


def scheme_options(scheme: str, spec: BackendSpec, cls: type[Downloader], settings: Settings) -> Mapping[str, object]:
    """The options that a URL of ``scheme`` is opened with where nobody passes any: the alias's and the environment's.

    Raises:
        ConfigError: One of them is unknown or of another type: what opening such a URL raises.
    """
    return _merged(spec, cls, f"{scheme}://", {}, settings.aliases.get(scheme), settings)[0]


def _merged(
    spec: BackendSpec,
    cls: type[Downloader],
    root: str,
    explicit: Mapping[str, object],
    alias: Alias | None,
    settings: Settings,
) -> tuple[dict[str, object], dict[str, str]]:
    layers = [Layer(EXPLICIT, {name: value for name, value in explicit.items() if name != "backend"})]
    if alias is not None:
        layers.append(Layer(f"[scheme.{alias.scheme}] in {settings.source}", alias.options))
    names = {claim.spec.name for claim in loaded().claims} | set(in_process_registrations())
    join = functools.partial(cls.join_options, root)
    return merge_options(spec.name, cls.option_types, layers, names, join)


def _explicit(options: Mapping[str, object] | None) -> Mapping[str, object]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise ConfigError(f"options must be a mapping of names to values, not a {type(options).__name__}")
    backend = options.get("backend")
    if backend is not None and not isinstance(backend, str):
        raise ConfigError(
            f"option 'backend' must be a text, not a {type(backend).__name__}", option="backend", origin=EXPLICIT
        )
    return options


def _wanted_backend(
    scheme: str, explicit: Mapping[str, object], alias: Alias | None, settings: Settings
) -> tuple[str | None, str]:
    """The backend that somebody names, and who; None: the scheme's own."""
    if explicit.get("backend") is not None:
        return str(explicit["backend"]).lower(), EXPLICIT
    if alias is None or alias.backend is None or alias.backend == scheme:
        return None, ""
    origin = f"[scheme.{alias.scheme}] in {settings.source}"
    if registered(scheme) is not None:
        raise PluginConflictError(
            f"{scheme}:// is registered in this process and also an alias for {alias.backend!r} ({origin}); "
            "unregister it or remove the alias"
        )
    return alias.backend, origin


def _backend(scheme: str, wanted: str | None, origin: str, settings: Settings) -> BackendSpec:
    name = wanted or scheme
    by_hand = registered(name)
    if by_hand is not None:
        return BackendSpec(name=name, schemes=(name,), load=functools.partial(_itself, by_hand))
    plugins = loaded()
    claims = (wanted and plugins.claims_named(wanted)) or plugins.claims_of(name)
    if not claims:
        failed = broken_for(name, plugins)
        if failed is not None:
            raise failed
        if wanted is not None:
            raise unknown_backend(wanted, origin, (claim.spec.name for claim in plugins.claims))
        table = f"[scheme.{scheme}] in {settings.source}" if scheme in settings.aliases else None
        raise unknown_scheme(scheme, _schemes(plugins, settings), plugins.broken, table=table)
    return choose(name, claims, settings).spec


def alias_backend(alias: Alias, settings: Settings) -> BackendSpec:
    """What URLs of the alias's scheme are served by.

    Raises:
        ForebayError: Nothing, or too much: what opening such a URL raises.
    """
    wanted, origin = _wanted_backend(alias.scheme, {}, alias, settings)
    return _backend(alias.scheme, wanted, origin, settings)


def _itself(cls: type[Downloader]) -> type[Downloader]:
    return cls


def _schemes(plugins: Loaded, settings: Settings) -> list[str]:
    served = [scheme for claim in plugins.claims for scheme in claim.spec.schemes]
    aliases = [alias.scheme for alias in settings.aliases.values() if alias.backend not in (None, alias.scheme)]
    return [*served, *aliases, *in_process_registrations()]


def choose(name: str, claims: list[Claim], settings: Settings) -> Claim:
    """The one claim that serves ``name``, by ``[backends]`` where there are several.

    Raises:
        PluginConflictError: Several, and no setting.
        ConfigError: The setting names a distribution that is not among them.
    """
    wanted = settings.backends.get(name)
    who = " and ".join(f"{claim.plugin} (entry point {claim.plugin.entry_point!r})" for claim in claims)
    if wanted is not None:
        for claim in claims:
            if normalized(claim.plugin.distribution) == normalized(wanted):
                return claim
        raise ConfigError(
            f"{settings.source}: [backends] {name} = {wanted!r}, but the scheme is served by {who}",
            option=f"backends.{name}",
            origin=str(settings.source),
        )
    if len(claims) == 1:
        return claims[0]
    raise PluginConflictError(
        f"{name}:// is claimed by {who}; uninstall one, or say which one serves it in forebay.toml: "
        f'[backends] {name} = "{claims[0].plugin.distribution}"',
        entry_point=claims[0].plugin.entry_point,
        distribution=claims[0].plugin.distribution,
        version=claims[0].plugin.version,
    )


def load_class(spec: BackendSpec) -> type[Downloader]:
    """Import the backend's class.

    Raises:
        MissingDependencyError: The import failed; the message says what to install.
        PluginLoadError: It failed otherwise, or gave something else than a `Downloader` class.
    """
    who = f"backend {spec.name!r}" + (f" of {spec.distribution}" if spec.distribution else "")
    try:
        cls = spec.load()
    except ForebayError:
        raise
    except ImportError as error:
        hint = spec.install_hint or install_hint(spec.schemes[0])
        remedy = f"; install what it needs with: {hint}" if hint else ""
        raise MissingDependencyError(f"{who} cannot be used: {error}{remedy}", option="backend") from error
    except Exception as error:
        raise PluginLoadError(
            f"{who} could not be loaded: {type(error).__name__}: {error}", distribution=spec.distribution
        ) from error
    if not isinstance(cls, type) or not issubclass(cls, Downloader):
        raise PluginLoadError(
            f"{who} could not be loaded: load() returned {cls!r}, not a Downloader class",
            distribution=spec.distribution,
        )
    if fault := option_types_fault(cls.option_types):
        raise PluginLoadError(f"{who} could not be loaded: {fault}", distribution=spec.distribution)
    return cls


def _retarget(url: URL, spec: BackendSpec, wanted: str | None, origin: str) -> URL:
    """The URL as the backend knows it: its own scheme for an alias. An https URL stays one, whoever reads it."""
    served = _serves(spec, url.scheme)
    if wanted is None or served or url.scheme in ("http", "https"):
        return url
    if url.bare:
        raise InvalidURLError(
            f"{url.redacted} is a local path, which backend {spec.name!r} (from {origin}) cannot serve; write a URL"
        )
    scheme = wanted if _serves(spec, wanted) else spec.schemes[0]
    if scheme.endswith("*"):
        raise InvalidURLError(
            f"backend {spec.name!r} serves many schemes, and {url.redacted} does not say which: name one of them, as in"
            f" backend = {scheme[:-1] + 'sftp'!r}"
        )
    return parse_url(f"{scheme}://{url.rest}")


def _serves(spec: BackendSpec, scheme: str) -> bool:
    return scheme in spec.schemes or any(
        family.endswith("*") and scheme.startswith(family[:-1]) for family in spec.schemes
    )
