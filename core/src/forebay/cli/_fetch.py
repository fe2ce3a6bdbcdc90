"""``forebay fetch``: one object, through the cache."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from forebay.cli._output import State, emit, progress, say
from forebay.cli._params import (
    cache_dir_option,
    common_options,
    example,
    max_cache_bytes_option,
    options_option,
    typed_options,
)

__all__ = ["fetch"]


@click.command(
    short_help="Fetch one object through the cache.",
    epilog=example(
        "forebay fetch https://data.example.org/digits/index.json",
        "forebay fetch -o index.json https://data.example.org/digits/index.json",
    ),
)
@click.argument("url")
@click.option("-o", "--output", metavar="FILE", help="Copy the object to FILE; - is stdout.")
@cache_dir_option
@max_cache_bytes_option
@options_option
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Give up after so long."
)
@click.option("--revalidate/--no-revalidate", default=True, help="Ask whether a cached object is still the newest.")
@common_options
@click.pass_obj
def fetch(
    state: State,
    url: str,
    output: str | None,
    cache_dir: str | None,
    max_cache_bytes: int | None,
    options: Mapping[str, str],
    timeout: float | None,
    revalidate: bool,
) -> None:
    """Fetch the object at URL through the cache, and print the path of the cached file.

    The bytes are those of the store, never decompressed. With -o they are copied to FILE, which appears whole or not at
    all. A local path is printed as it is.
    """
    target = _target(output, state)
    import forebay

    with progress("fetching", None):
        path = forebay.fetch(
            url,
            cache_dir=cache_dir,
            max_cache_bytes=max_cache_bytes,
            options=typed_options(url, options),
            revalidate=revalidate,
            timeout=timeout,
        )
        try:
            size = path.stat().st_size
            if output == "-":
                _pour(path)
            elif target is not None:
                _copy(path, target)
        finally:
            forebay.release(path)
    shown = target or path
    if state.json:
        from forebay._url import redact

        emit("fetch", url=redact(url), path=str(shown), bytes=size)
    elif output != "-":
        say(str(shown))


def _target(output: str | None, state: State) -> Path | None:
    """Check ``-o`` before anything is fetched."""
    if output is None:
        return None
    if output == "-":
        if state.json:
            raise click.UsageError("--json and -o - both want stdout")
        return None
    path = Path(output)
    if path.is_dir():
        raise click.BadParameter(f"{output!r} is a directory", param_hint="'-o'")
    if not path.absolute().parent.is_dir():
        raise click.BadParameter(f"the directory of {output!r} does not exist", param_hint="'-o'")
    return path


def _pour(path: Path) -> None:
    sys.stdout.flush()
    with open(path, "rb") as source:
        shutil.copyfileobj(source, sys.stdout.buffer, 1 << 20)
    sys.stdout.buffer.flush()


def _copy(source: Path, target: Path) -> None:
    """Copy to a temporary file beside ``target`` and put it in place in one step."""
    target = target.resolve()  # a link stays a link, what it points to is replaced
    if target.exists() and not target.is_file():
        # A device or a pipe is written to; to put a file in its place would take /dev/null away.
        with open(source, "rb") as reader, open(target, "wb") as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)
        return
    temp = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        with open(source, "rb") as reader, open(temp, "xb") as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)
        os.replace(temp, target)
    except BaseException:  # no half a file stays, whatever came; it is raised again
        temp.unlink(missing_ok=True)
        raise
