"""What is known before anything is asked: settings, backend, options with their origins, environment, who asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from forebay.cli._doctor._step import Step, tried

if TYPE_CHECKING:
    from forebay._registry import Resolved
    from forebay.downloader import Downloader
    from forebay.types import Access, AccessStep

__all__ = ["backend", "credentials", "driver", "environment", "hints", "options", "settings"]

#: Options whose value is no secret. Of all others only the origin is told.
_PLAIN = frozenset(
    {
        "account_name", "addressing_style", "anonymous", "ca_file", "connect_timeout", "driver", "endpoint_url",
        "max_attempts", "max_concurrency", "part_size", "profile", "project", "region", "requester_pays", "timeout",
        "user_project", "verify_tls",
    }
)  # fmt: skip
#: What the clouds' SDKs read: names are told, values never.
_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "s3": ("AWS_",),
    "gcs": ("GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR_HOST", "NO_GCE_CHECK"),
    "azure": ("AZURE_",),
}
_NETWORK = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
#: How an option on the command line is called; the registry knows only that somebody passed it.
_FLAG = "-O"


def settings() -> Step:
    """Which ``forebay.toml`` counts, and the aliases in it."""
    from forebay._config import load_settings

    def look() -> tuple[str, Mapping[str, object]]:
        found = load_settings()
        source = str(found.source) if found.source else None
        aliases = sorted(found.aliases)
        named = f", aliases: {', '.join(aliases)}" if aliases else ""
        return (source or "no forebay.toml") + named, {"source": source, "aliases": aliases}

    return tried("settings", look)


def backend(url: str, typed: Callable[[], Mapping[str, object] | None]) -> tuple[Step, Resolved | None]:
    """What serves the URL."""
    from forebay._registry import resolve

    found: list[Resolved] = []

    def look() -> tuple[str, Mapping[str, object]]:
        resolved = resolve(url, typed())
        found.append(resolved)
        spec = resolved.backend
        detail = f"{spec.name} of {spec.distribution or 'this process'} reads {resolved.url.redacted}"
        return detail, {"backend": spec.name, "distribution": spec.distribution, "url": resolved.url.redacted}

    return tried("backend", look), found[0] if found else None


def options(resolved: Resolved, url: str) -> Step:
    """Each option, where it came from, and its value where that can be no secret; and what a stronger place hides."""
    from forebay._url import redact

    told = {
        name: {"value": redact(str(value)) if name in _PLAIN else None, "origin": _origin(resolved, name)}
        for name, value in sorted(resolved.options.items())
    }
    words = [
        f"{name}={one['value']} (from {one['origin']})"
        if one["value"] is not None
        else f"{name} (from {one['origin']})"
        for name, one in told.items()
    ]
    lines = [", ".join(words) or "none"]
    if hidden := _hidden(resolved, url):
        lines.append(f"passed over: {', '.join(hidden)}")
    return Step(name="options", outcome="ok", detail="\n".join(lines), facts=told)


def _hidden(resolved: Resolved, url: str) -> list[str]:
    """Options of the URL's alias that do not count, because a stronger place says the same or something else of it."""
    from forebay._config import load_settings
    from forebay._url import parse_url

    found = load_settings()
    alias = found.aliases.get(parse_url(url).scheme)
    if alias is None:
        return []
    place = f"[scheme.{alias.scheme}] in {found.source}"
    return [f"{name} (from {place})" for name in sorted(alias.options) if resolved.origins.get(name) != place]


def _origin(resolved: Resolved, name: str) -> str:
    from forebay._registry import EXPLICIT

    origin = resolved.origins.get(name, "")
    return _FLAG if origin == EXPLICIT else origin


def environment(resolved: Resolved) -> Step:
    """Variables that are set and that the backend, its SDK or the network may go by; never their values."""
    from forebay._config import environ

    prefixes = (f"FOREBAY_{resolved.backend.name.upper()}_", *_VARIABLES.get(resolved.backend.name, ()))
    names = sorted(
        name for name, value in environ().items() if value and (name.startswith(prefixes) or name.upper() in _NETWORK)
    )
    return Step(name="environment", outcome="ok", detail=", ".join(names) or "nothing set", facts={"variables": names})


def driver(resolved: Resolved) -> tuple[Step, Downloader | None]:
    """Which library serves this process, and why; and the downloader itself, without a request."""
    from dataclasses import asdict

    from forebay._registry import make
    from forebay.downloader import probe

    made: list[Downloader] = []

    def look() -> tuple[str, Mapping[str, object]]:
        made.append(make(resolved, str(resolved.url)))
        able = probe(made[0])
        return f"{able.driver} {able.version or ''}: {able.reason or 'the only one'}", asdict(able)

    return tried("driver", look), made[0] if made else None


def credentials(resolved: Resolved, downloader: Downloader) -> Step:
    """Who asks, and the places that were looked at for that, in order."""
    from dataclasses import asdict

    told: list[Access] = []

    def look() -> tuple[str, Mapping[str, object]]:
        access = downloader.describe_access()
        if access is None:
            return "this backend tells nothing of them", {}
        told.append(access)
        return "\n".join(_lines(resolved, access)), asdict(access)

    step = tried("credentials", look)
    return replace(step, outcome="skipped") if step.outcome == "ok" and not told else step


def _lines(resolved: Resolved, access: Access) -> list[str]:
    lines = [access.who + (f", at {access.where}" if access.where else "")]
    reached = [(_place(resolved, one), one) for one in access.tried if one.outcome != "not reached"]
    width = max((len(place) for place, _ in reached), default=0)
    digits = len(f"{len(reached)}.")
    for number, (place, one) in enumerate(reached, start=1):
        lines.append(
            f"{f'{number}.':<{digits}} {place:<{width}}  {one.outcome}" + (f": {one.detail}" if one.detail else "")
        )
    rest = [one.source for one in access.tried if one.outcome == "not reached"]
    if rest:
        lines.append(f"not reached: {', '.join(rest)}")
    if access.network:
        lines.append(access.network)
    return lines


def _place(resolved: Resolved, step: AccessStep) -> str:
    origins = sorted({_origin(resolved, name) for name in step.options if name in resolved.options})
    return step.source + (f" (from {', '.join(origins)})" if origins else "")


def hints(access: Step) -> Iterator[Step]:
    """What the backend itself finds suspicious."""
    told = access.facts.get("hints")
    for text in told if isinstance(told, list | tuple) else ():
        yield Step(name="hint", outcome="warning", detail=str(text))
