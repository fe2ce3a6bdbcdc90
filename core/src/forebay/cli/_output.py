"""Everything that the commands print, and how it ends when nobody reads it."""

from __future__ import annotations

import json
import os
import re
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

__all__ = ["LAYOUT", "State", "count", "emit", "output_closed", "print_table", "progress", "say", "silence_stdout"]

#: The ``version`` field of each ``--json`` object: raised when a field changes its meaning or goes away.
LAYOUT = 1

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass
class State:
    """What one invocation was asked for, readable also after its context is gone."""

    json: bool = False
    debug: bool = False
    command: str = ""
    options: tuple[str, ...] = ()  # names that ``-O`` gave


def emit(command: str, **fields: Any) -> None:
    """Print the one JSON object of a command."""
    say(json.dumps({"version": LAYOUT, "command": command, **fields}))


def say(text: str, *, err: bool = False) -> None:
    """Print one line on stdout or stderr.

    Names come from strangers: control characters are shown, not obeyed, and so is what the encoding lacks.
    """
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    shown = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
    click.echo(shown.encode(encoding, "backslashreplace").decode(encoding), err=err)


def print_table(
    rows: Iterable[Sequence[str]], *, header: Sequence[str] | None = None, right: Sequence[int] = ()
) -> None:
    """Print rows in aligned columns; the columns numbered in ``right`` are aligned to the right."""
    lines = [list(header)] if header else []
    lines += [list(row) for row in rows]
    if not lines:
        return
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def count(number: int, noun: str) -> str:
    """``1 chunk``, ``2 chunks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@contextmanager
def progress(description: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr while the block runs, on a terminal only; yields what moves it forward.

    Args:
        description: What goes on.
        total: How much there is to do; None where nobody knows, which shows a bar that only moves.
    """
    if not sys.stderr.isatty():
        yield lambda _step: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

    columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()]
    if total is not None:
        columns.insert(2, MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda step: bar.advance(task, step)


def output_closed() -> bool:
    """Whether the reader of stdout is gone (``forebay ls … | head -1``).

    A BrokenPipeError alone does not tell: a connection to a store can raise it as well.
    """
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _fd, event in poll.poll(0))
    except (OSError, ValueError, AttributeError):  # stdout was closed or replaced by something without a descriptor
        return False


def silence_stdout() -> None:
    """Send what is still buffered nowhere, so that the interpreter's last flush has nothing to complain about."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):
        return
