"""``forebay demo``: the whole path on this machine, in half a minute, with nothing to set up."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from forebay.cli._output import State, emit, print_table, say
from forebay.cli._params import SIZE, common_options, example

if TYPE_CHECKING:
    from forebay.cli._demo.play import Outcome

__all__ = ["demo"]

_SMALLEST = 1 << 20


@click.command(
    short_help="See the whole path at work on this machine.",
    epilog=example("forebay demo", "forebay demo --size 64MiB --latency 0.05 --json"),
)
@click.option("--size", type=SIZE, default="384MiB", show_default=True, help="About how large a dataset to make.")
@click.option(
    "--latency",
    type=click.FloatRange(0, 10),
    default=0.02,
    show_default=True,
    metavar="SECONDS",
    help="How long the server waits before each answer.",
)
@common_options
@click.pass_obj
def demo(state: State, size: int, latency: float) -> int:
    """Make a dataset, serve it over local HTTP, and stream it twice through a cache that is smaller than it.

    Checks every item and the cache's budget, and leaves nothing behind. Exits with 1 where something is wrong.
    """
    if size < _SMALLEST:
        raise click.BadParameter("the demo wants at least 1MiB", param_hint="'--size'")
    _need_http()
    from forebay.cli._demo.play import play

    outcome = play(size=size, latency=latency)
    if state.json:
        fields = dataclasses.asdict(outcome)
        rates = {"items_per_second": outcome.items_per_second, "mib_per_second": outcome.mib_per_second}
        emit("demo", ok=outcome.ok, **fields, **rates)
    else:
        _show(outcome)
    return 0 if outcome.ok else 1


def _need_http() -> None:
    """Say at once what to install, before a dataset is made for nothing."""
    from forebay._registry import resolve
    from forebay.exceptions import MissingDependencyError, UnknownSchemeError

    try:
        resolve("http://127.0.0.1/")
    except UnknownSchemeError as exc:
        raise MissingDependencyError('the demo streams over HTTP: pip install "forebay[http]"') from exc


def _show(outcome: Outcome) -> None:
    from forebay._config import format_size
    from forebay.cli._demo.play import EPOCHS

    items = f"{outcome.items} in {outcome.seconds:.1f} s"
    wrong = f"{outcome.bad_items} wrong, {outcome.missing_items} missing"
    rows = [
        ("dataset", f"{format_size(outcome.dataset_bytes)} in {outcome.chunks} chunks, read {EPOCHS} times"),
        ("items checked", f"{items}, {wrong}"),
        ("items/s", f"{outcome.items_per_second:,.0f}"),
        ("MiB/s", f"{outcome.mib_per_second:,.0f}"),
        ("time to first item", f"{outcome.first_item_seconds:.3f} s"),
        ("bytes fetched", f"{format_size(outcome.bytes_fetched)} in {outcome.chunks_fetched} chunks"),
        ("cache hits", f"{outcome.cache_hits}"),
        ("peak cache bytes", f"{format_size(outcome.peak_cache_bytes)} of {format_size(outcome.max_cache_bytes)}"),
        ("leases left", f"{outcome.leases}"),
    ]
    print_table(rows)
    if not outcome.ok:
        say("something is wrong: items, budget or leases are not as promised")
