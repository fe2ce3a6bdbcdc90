"""The group that holds the commands."""

from __future__ import annotations

import click

from forebay.cli._cache import cache
from forebay.cli._demo import demo
from forebay.cli._doctor import doctor
from forebay.cli._fetch import fetch
from forebay.cli._ls import ls
from forebay.cli._output import State
from forebay.cli._params import debug_option, example
from forebay.cli._plugins import plugins

__all__ = ["app"]


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        click.echo(f"forebay {version('forebay')}")
        ctx.exit()


@click.group(
    name="forebay",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=example("forebay demo", "forebay fetch https://data.example.org/digits/index.json -o index.json"),
)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Say which.")
@debug_option
@click.pass_context
def app(ctx: click.Context) -> None:
    """Stream training data from any object store through one bounded, shared, crash-safe cache per machine.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
    """
    ctx.ensure_object(State).command = ctx.invoked_subcommand or ""


for command in (demo, fetch, ls, plugins, doctor, cache):
    app.add_command(command)
