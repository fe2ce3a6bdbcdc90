"""``forebay doctor``: what stands between this machine and a URL, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from forebay.cli._interruptible import iterate
from forebay.cli._output import State, emit, say
from forebay.cli._params import common_options, example, options_option, typed_options

if TYPE_CHECKING:
    from forebay.cli._doctor._step import Step

__all__ = ["doctor"]


@click.command(
    short_help="Say what stands between this machine and a URL.",
    epilog=example("forebay doctor https://data.example.org/digits", "forebay doctor --json s3://bucket/digits"),
)
@click.argument("url")
@options_option
@common_options
@click.pass_obj
def doctor(state: State, url: str, options: Mapping[str, str]) -> int:
    """Try what reading URL takes, in order: settings, backend, driver, credentials, and what lies at the URL.

    URL is an object, a dataset's folder or a bucket. No secret is shown: options and variables that may hold one are
    named with their origin only. The exit code is 0 where URL can be read.
    """
    steps: list[Step] = []
    for step in iterate(lambda: _steps(url, options)):
        steps.append(step)
        if not state.json:
            _show(step)
    healthy = all(step.outcome != "failed" for step in steps)
    if state.json:
        from forebay._url import redact

        emit("doctor", url=redact(url), healthy=healthy, steps=[asdict(step) for step in steps])
    return 0 if healthy else 1


def _show(step: Step) -> None:
    took = f"  ({step.seconds:.2f} s)" if step.seconds >= 0.01 else ""
    first, *more = step.detail.split("\n")
    say(f"{step.outcome:<8} {step.name:<12} {first}{took}")
    for line in more:
        say(f"{'':<22}{line}")


def _steps(url: str, texts: Mapping[str, str]) -> Iterator[Step]:
    from forebay.cli._doctor import _clock, _request, _setup

    yield _setup.settings()
    backend, resolved = _setup.backend(url, lambda: typed_options(url, texts))
    yield backend
    if resolved is None:
        return
    yield _setup.options(resolved, url)
    yield _setup.environment(resolved)
    driver, downloader = _setup.driver(resolved)
    yield driver
    if downloader is None:
        return
    try:
        access = _setup.credentials(resolved, downloader)
        yield access
        yield from _setup.hints(access)
    finally:
        downloader.close()
    refused = False
    for outcome in _request.ask(resolved):
        yield outcome.step
        refused = refused or (outcome.step.outcome == "failed" and _clock.may_be_the_cause(outcome.error))
    if refused:
        yield from _clock.compare(access.facts.get("endpoint"))
