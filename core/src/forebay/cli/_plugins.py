"""``forebay plugins``: who serves which scheme."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from forebay.cli._output import State, emit, print_table, say
from forebay.cli._params import common_options, example

if TYPE_CHECKING:
    from forebay._registry import PluginInfo

__all__ = ["plugins"]


@click.command(
    short_help="Show who serves which URL scheme.", epilog=example("forebay plugins", "forebay plugins --json")
)
@common_options
@click.pass_obj
def plugins(state: State) -> None:
    """Show each URL scheme with the distribution that serves it, and the plugins that could not be loaded."""
    from forebay import _registry

    known = _registry.plugins()
    if state.json:
        emit("plugins", plugins=[dataclasses.asdict(plugin) for plugin in known])
        return
    header = ("scheme", "backend", "distribution", "version", "driver", "async", "note")
    print_table([_row(plugin) for plugin in known if not plugin.error], header=header)
    for plugin in known:
        if plugin.error:
            say(f"error: {plugin.distribution or plugin.scheme or plugin.backend}: {' '.join(plugin.error.split())}")


def _row(plugin: PluginInfo) -> tuple[str, ...]:
    return (
        plugin.scheme or "-",
        plugin.backend or "-",
        plugin.distribution or "-",
        plugin.version or "-",
        plugin.driver or "-",
        "yes" if plugin.native_async else "no" if plugin.driver else "-",
        plugin.note or "",
    )
