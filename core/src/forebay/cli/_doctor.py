"""``forebay doctor``: what stands between this machine and a URL, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import click

from forebay.cli._interruptible import iterate
from forebay.cli._output import State, emit, say
from forebay.cli._params import common_options, example, options_option, typed_options

if TYPE_CHECKING:
    from forebay._registry import Resolved
    from forebay.downloader import Downloader
    from forebay.types import ObjectInfo

__all__ = ["doctor"]

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
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_ENOUGH = 3  # objects of a listing that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that was tried, and what came of it. ``outcome``: ok, failed, skipped."""

    name: str
    outcome: str
    detail: str
    seconds: float = 0.0
    facts: Mapping[str, object] = field(default_factory=dict)


@click.command(
    short_help="Say what stands between this machine and a URL.",
    epilog=example("forebay doctor https://data.example.org/digits", "forebay doctor --json s3://bucket/digits"),
)
@click.argument("url")
@options_option
@common_options
@click.pass_obj
def doctor(state: State, url: str, options: Mapping[str, str]) -> int:
    """Try what reading URL takes, in order: settings, backend, driver, credentials, listing, reading.

    No secret is shown: options and variables that may hold one are named with their origin only.
    """
    steps: list[Step] = []
    for step in iterate(lambda: _steps(url, options)):
        steps.append(step)
        if not state.json:
            took = f"  ({step.seconds:.2f} s)" if step.seconds >= 0.01 else ""
            say(f"{step.outcome:<8} {step.name:<12} {step.detail}{took}")
    healthy = all(step.outcome != "failed" for step in steps)
    if state.json:
        from forebay._url import redact

        emit("doctor", url=redact(url), healthy=healthy, steps=[asdict(step) for step in steps])
    return 0 if healthy else 1


def _steps(url: str, texts: Mapping[str, str]) -> Iterator[Step]:
    from forebay._registry import make, resolve

    yield _settings()
    found: list[Resolved] = []

    def look() -> tuple[str, Mapping[str, object]]:
        resolved = resolve(url, typed_options(url, texts))
        found.append(resolved)
        return _backend(resolved)

    yield _tried("backend", look)
    if not found:
        return
    resolved = found[0]
    yield _options(resolved)
    yield _environment(resolved)
    made: list[Downloader] = []

    def open_it() -> tuple[str, Mapping[str, object]]:
        from forebay.downloader import probe

        made.append(make(resolved, str(resolved.url)))
        able = probe(made[0])
        return f"{able.driver} {able.version or ''}: {able.reason or 'the only one'}", asdict(able)

    yield _tried("driver", open_it)
    if not made:
        return
    try:
        yield _credentials(made[0])
        yield from _requests(made[0])
    finally:
        made[0].close()


def _settings() -> Step:
    from forebay._config import load_settings

    def look() -> tuple[str, Mapping[str, object]]:
        settings = load_settings()
        source = str(settings.source) if settings.source else None
        return source or "no forebay.toml", {"source": source, "aliases": sorted(settings.aliases)}

    return _tried("settings", look)


def _backend(resolved: Resolved) -> tuple[str, Mapping[str, object]]:
    spec = resolved.backend
    detail = f"{spec.name} of {spec.distribution or 'this process'} reads {resolved.url.redacted}"
    return detail, {"backend": spec.name, "distribution": spec.distribution, "url": resolved.url.redacted}


def _options(resolved: Resolved) -> Step:
    from forebay._url import redact

    told = {
        name: {
            "value": redact(str(value)) if name in _PLAIN else None,
            "origin": resolved.origins.get(name, ""),
        }
        for name, value in sorted(resolved.options.items())
    }
    words = [
        f"{name}={one['value']} (from {one['origin']})"
        if one["value"] is not None
        else f"{name} (from {one['origin']})"
        for name, one in told.items()
    ]
    return Step(name="options", outcome="ok", detail=", ".join(words) or "none", facts=told)


def _environment(resolved: Resolved) -> Step:
    from forebay._config import environ

    prefixes = (f"FOREBAY_{resolved.backend.name.upper()}_", *_VARIABLES.get(resolved.backend.name, ()))
    names = sorted(
        name for name, value in environ().items() if value and (name.startswith(prefixes) or name.upper() in _PROXIES)
    )
    return Step(name="environment", outcome="ok", detail=", ".join(names) or "nothing set", facts={"variables": names})


def _credentials(downloader: Downloader) -> Step:
    describe = getattr(downloader, "describe_access", None)
    if describe is None:
        return Step(name="credentials", outcome="skipped", detail="this backend tells nothing of them")
    return _tried("credentials", lambda: (str(describe()), {}))


def _requests(downloader: Downloader) -> Iterator[Step]:
    from forebay.exceptions import UnsupportedOperationError

    seen: list[ObjectInfo] = []

    def look() -> tuple[str, Mapping[str, object]]:
        try:
            for info in downloader.list(""):
                seen.append(info)
                if len(seen) >= _ENOUGH:
                    break
        except UnsupportedOperationError as exc:
            return f"not possible here, which is no fault: {exc}", {"listed": None}
        return f"{len(seen) or 'no'} objects looked at", {"listed": [info.key for info in seen]}

    yield _tried("list", look)
    key = next((info.key for info in seen if info.size), "index.json")

    def read() -> tuple[str, Mapping[str, object]]:
        data = downloader.download_bytes(key, 0, 1)
        return f"{len(data)} byte of {key!r}", {"key": key}

    yield _tried("read", read)


def _tried(name: str, look: Callable[[], tuple[str, Mapping[str, object]]]) -> Step:
    from forebay._config import monotonic
    from forebay._url import redact

    begin = monotonic()
    try:
        detail, facts = look()
    except Exception as exc:  # noqa: BLE001 - whatever a step raises is what the person on call came for
        facts = {"error": type(exc).__name__, "status": getattr(exc, "status", None)}
        detail = redact(f"{type(exc).__name__}: {' '.join(str(exc).split())}")
        return Step(name=name, outcome="failed", detail=detail, seconds=monotonic() - begin, facts=facts)
    return Step(name=name, outcome="ok", detail=redact(detail), seconds=monotonic() - begin, facts=facts)
