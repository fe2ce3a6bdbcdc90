"""``forebay cache``: look at a cache directory, check it, make room in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forebay.cli._output import State, count, emit, print_table, say
from forebay.cli._params import cache_dir_option, common_options, example

if TYPE_CHECKING:
    from forebay import ChunkCache

__all__ = ["cache"]


@click.group(epilog=example("forebay cache info --cache-dir ./cache"))
@click.pass_context
def cache(ctx: click.Context) -> None:
    """Look at a cache directory, check it, make room in it."""
    ctx.ensure_object(State).command = f"cache {ctx.invoked_subcommand}"


@cache.command(epilog=example("forebay cache info --cache-dir ./cache"))
@cache_dir_option
@common_options
@click.pass_obj
def info(state: State, cache_dir: str | None) -> None:
    """Show how full the cache is, with which datasets, and who uses it."""
    from forebay._config import format_size

    with _opened(cache_dir) as (directory, opened):
        report = opened.report()
    now = report.info
    fields = {name: getattr(now, name) for name in ("bytes", "max_bytes", "chunks", "leases", "holders")}
    if state.json:
        emit(
            "cache info",
            directory=str(directory),
            **fields,
            dead_holders=report.dead,
            datasets=[asdict(dataset) for dataset in report.datasets],
            processes=[asdict(process) for process in report.processes],
        )
        return
    print_table(
        [
            ("directory", str(directory)),
            ("bytes", f"{format_size(now.bytes)} of {format_size(now.max_bytes)}"),
            *((name, str(fields[name])) for name in ("chunks", "leases", "holders")),
            ("dead holders", f"{report.dead}, what they held is given back" if report.dead else "0"),
        ]
    )
    for dataset in report.datasets:
        example_url = f", for example {dataset.url}" if dataset.url else ""
        say(f"dataset {dataset.dataset}: {count(dataset.chunks, 'chunk')}, {format_size(dataset.bytes)}{example_url}")
    for process in report.processes:
        say(
            f"process {process.pid} on {process.host}: reads {count(process.reading, 'chunk')},"
            f" has {process.prefetched} ahead, fetches {process.fetching}"
            f" ({format_size(process.reserved_bytes)} reserved, {process.waiting} waiting for room),"
            f" budget {format_size(process.budget)}"
        )


@cache.command(epilog=example("forebay cache verify --cache-dir ./cache"))
@cache_dir_option
@common_options
@click.pass_obj
def verify(state: State, cache_dir: str | None) -> int:
    """Check every cached chunk against its recorded digest. Exits with 1 where something is wrong."""
    with _opened(cache_dir) as (directory, opened):
        problems = [str(problem) for problem in opened.verify()]
        chunks = opened.info().chunks
    if state.json:
        emit("cache verify", directory=str(directory), chunks=chunks, problems=problems)
    else:
        for problem in problems:
            say(problem)
        say(f"{count(chunks, 'chunk')}, {count(len(problems), 'problem')}")
    return 1 if problems else 0


@cache.command(epilog=example("forebay cache gc --cache-dir ./cache"))
@cache_dir_option
@common_options
@click.pass_obj
def gc(state: State, cache_dir: str | None) -> None:
    """Remove what dead processes left behind: their leases, and files that no living process writes."""
    _shrink(state, "gc", cache_dir)


@cache.command(epilog=example("forebay cache clear --cache-dir ./cache"))
@cache_dir_option
@common_options
@click.pass_obj
def clear(state: State, cache_dir: str | None) -> None:
    """Remove every chunk. Those in use stay, and make it exit with 1."""
    _shrink(state, "clear", cache_dir)


def _shrink(state: State, what: str, cache_dir: str | None) -> None:
    from forebay._config import format_size

    with _opened(cache_dir) as (directory, opened):
        before = _bytes_below(directory / "chunks")  # the ledger may not be readable before there is room for it
        if what == "gc":
            opened.gc()
        else:
            opened.clear()
        after = opened.info()
    if state.json:
        emit(
            f"cache {what}",
            directory=str(directory),
            freed_bytes=max(before - after.bytes, 0),
            bytes=after.bytes,
            chunks=after.chunks,
            leases=after.leases,
        )
    else:
        freed = format_size(max(before - after.bytes, 0))
        say(f"freed {freed}; {count(after.chunks, 'chunk')} and {count(after.leases, 'lease')} left")


def _bytes_below(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(where, name)).st_size
    return total


@contextmanager
def _opened(cache_dir: str | None) -> Iterator[tuple[Path, ChunkCache]]:
    """Open an existing cache; a mistyped directory is an error and not a new, empty cache."""
    import forebay
    from forebay._config import default_cache_dir
    from forebay.exceptions import CacheError

    directory = Path(cache_dir) if cache_dir is not None else default_cache_dir()
    if not (directory / "FORMAT").is_file():
        raise CacheError(f"there is no cache in {str(directory)!r}", path=str(directory))
    opened = forebay.ChunkCache(directory)
    try:
        yield directory, opened
    finally:
        opened.close()
