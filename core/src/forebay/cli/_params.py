"""What the commands' options have in common."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from forebay.cli._output import State

__all__ = [
    "SIZE",
    "cache_dir_option",
    "common_options",
    "debug_option",
    "example",
    "log_everything",
    "max_cache_bytes_option",
    "options_option",
    "typed_options",
]

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    _IntParam = click.ParamType[int]
else:
    _IntParam = click.ParamType  # generic only since click 8.4


def example(*lines: str) -> str:
    """An epilog that shows command lines; ``\\b`` keeps click from joining them."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


class _Size(_IntParam):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from forebay._config import parse_size
        from forebay.exceptions import ConfigError

        try:
            return parse_size(value)
        except ConfigError as exc:
            self.fail(str(exc), param, ctx)


class _Directory(click.Path):
    """A directory; ``~`` is expanded, which a shell does not do in ``--cache-dir=~/x``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from forebay._config import expand_user
        from forebay.exceptions import ConfigError

        if not value:
            self.fail("the name of the directory is empty", param, ctx)
        try:
            expanded = expand_user(value, "--cache-dir", "the command line")
        except ConfigError as exc:
            self.fail(str(exc), param, ctx)
        return super().convert(str(expanded), param, ctx)


#: A number of bytes, plain or as in "200GiB".
SIZE = _Size()


def _collect(ctx: click.Context, _param: click.Parameter, pairs: tuple[str, ...]) -> Mapping[str, str]:
    options: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            # The value may be a secret that was typed without its name: do not print it.
            raise click.BadParameter("an option is written key=value, as in -O anonymous=true")
        options[name] = value
    ctx.ensure_object(State).options = tuple(options)
    return options


def _want_json(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    state = ctx.ensure_object(State)
    state.json = state.json or value


def _want_debug(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    state = ctx.ensure_object(State)
    if value and not state.debug:
        state.debug = True
        log_everything()


def log_everything() -> None:
    """Send Forebay's own log to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("forebay")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)


def typed_options(url: str, texts: Mapping[str, str]) -> Mapping[str, object] | None:
    """Give the values of ``-O`` the types that the backend of ``url`` declares."""
    if not texts:
        return None
    from forebay._options import option_from_text
    from forebay._registry import resolve

    found = resolve(url, {name: text for name, text in texts.items() if name == "backend"})
    backend, types = found.backend.name, found.cls.option_types
    return {
        name: text if name == "backend" else option_from_text(backend, types, name, text, "-O")
        for name, text in texts.items()
    }


options_option = click.option(
    "-O",
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_collect,
    help="An option of the backend; may be given several times.",
)
cache_dir_option = click.option(
    "--cache-dir",
    metavar="DIR",
    type=_Directory(file_okay=False),
    help="The cache directory  [default: FOREBAY_CACHE_DIR, forebay.toml, the user's cache directory]",
)
max_cache_bytes_option = click.option(
    "--max-cache-bytes", metavar="SIZE", type=SIZE, help="The cache's budget, as in 200GiB."
)
debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_want_debug,
    help="Log to stderr and show tracebacks, as FOREBAY_DEBUG=1 does.",
)
_json_option = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_want_json,
    help="Print one JSON object instead of text.",
)


def common_options(function: F) -> F:
    """Give a command ``--json`` and ``--debug``; their values are in the context's `State`."""
    return _json_option(debug_option(function))
