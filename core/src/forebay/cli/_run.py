"""From a command line to an exit code: errors, signals and a reader that went away."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import click

from forebay.cli._early import quit_early
from forebay.cli._output import State, emit, output_closed, say, silence_stdout
from forebay.cli._params import log_everything

__all__ = ["DONE", "FAILED", "INTERRUPTED", "USAGE", "run"]

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


class _Terminated(BaseException):
    """A signal asked the process to end; like KeyboardInterrupt, nothing but clean-up may catch it."""


class _Ending:
    """The end of a process that a signal stopped: after all clean-up at exit, without tearing down the interpreter.

    Registered before anything else, so it runs last. Requests that were given up a moment ago may still be on their way
    through a native runtime, whose threads panic on stderr when they meet a finalized interpreter. An interrupt that
    arrived while some ``exec`` ran, as each dataclass that is imported does, makes CPython end by SIGINT after all,
    whatever exit code was asked for.
    """

    def __init__(self) -> None:
        self.code: int | None = None

    def leave(self) -> None:
        if self.code is None:
            return
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):  # nobody reads it any more
                continue
        os._exit(self.code)


def run(app: click.Group, argv: Sequence[str] | None) -> int:
    """Run the command that ``argv`` names. Never raises, whatever the command does."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    ending = _Ending()
    if argv is None:  # the process is ours to end
        atexit.register(ending.leave)
    state = State(debug=_debug_wanted())
    if state.debug:
        log_everything()
    try:
        with _ending_on_signals(ending):
            code = _invoke(app, arguments, state)
            sys.stdout.flush()
        ending.code = None  # an interrupt that something swallowed has stopped nothing
    except (KeyboardInterrupt, _Terminated):
        code = _stopped(ending)
    except Exception as exc:  # noqa: BLE001  # the edge of the process: each error becomes one line and an exit code
        # Python may wrap an interrupt: one inside __set_name__ arrives as a RuntimeError.
        code = _stopped(ending) if ending.code is not None else _failed(exc, state)
    return code


def _stopped(ending: _Ending) -> int:
    ending.code = ending.code or INTERRUPTED
    if ending.code == INTERRUPTED:
        click.echo("interrupted", err=True)
    return ending.code


def _invoke(app: click.Group, arguments: list[str], state: State) -> int:
    # Not through click's own main(): it takes any EPIPE, a store's included, for a closed stdout and exits silently.
    try:
        with app.make_context("forebay", arguments, obj=state) as ctx:
            result = app.invoke(ctx)
    except click.exceptions.Exit as exc:
        return int(exc.exit_code)
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as exc:
        exc.show()
        return int(exc.exit_code)
    return result if isinstance(result, int) else DONE


def _failed(error: Exception, state: State) -> int:
    """Say in one line what went wrong; the exit code is 1, or 2 where an option of the command line is."""
    if isinstance(error, BrokenPipeError) and output_closed():
        silence_stdout()
        return FAILED
    text = _one_line(error)
    if state.debug:
        from forebay._url import redact

        click.echo(redact("".join(traceback.format_exception(error))), err=True, nl=False)
    try:
        if state.json:
            emit(state.command, error={"type": type(error).__name__, "message": text})
            sys.stdout.flush()
    except (OSError, ValueError):  # the error may be that stdout cannot be written
        silence_stdout()
    say(f"forebay: {text}", err=True)
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # what could not be written would be tried again at the end, and change the code
        silence_stdout()
    from forebay.exceptions import ConfigError

    return USAGE if isinstance(error, ConfigError) and error.option in state.options else FAILED


def _one_line(error: Exception) -> str:
    from forebay._url import redact
    from forebay.exceptions import ForebayError

    text = str(error)
    if not isinstance(error, ForebayError):
        # A stranger's message rarely stands alone (KeyError: 'x'): its class belongs to it, and so do our notes.
        notes = getattr(error, "__notes__", [])
        text = "; ".join([f"{type(error).__name__}: {text}" if text else type(error).__name__, *map(str, notes)])
    return redact(" ".join(text.split())) or type(error).__name__


def _debug_wanted() -> bool:
    from forebay._config import environ

    return environ().get("FOREBAY_DEBUG", "") not in ("", "0")


@contextmanager
def _ending_on_signals(ending: _Ending) -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack like Ctrl-C does, so that nothing is left behind."""

    def stop(signum: int, _frame: FrameType | None) -> NoReturn:
        ending.code = 128 + signum
        raise KeyboardInterrupt if signum == signal.SIGINT else _Terminated

    previous: dict[int, Any] = {}
    # Only the main thread may set handlers, and Windows has no SIGHUP.
    names = ("SIGINT", "SIGTERM", "SIGHUP") if threading.current_thread() is threading.main_thread() else ()
    try:
        for signum in (getattr(signal, name) for name in names if hasattr(signal, name)):
            # nohup ignores SIGHUP on purpose, and a shell SIGINT for what runs in its background.
            if signal.getsignal(signum) in (signal.SIG_DFL, signal.default_int_handler, quit_early):
                before = signal.signal(signum, stop)
                previous[signum] = signal.default_int_handler if before is quit_early else before
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
