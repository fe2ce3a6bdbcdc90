"""``forebay ls``: what lies under a root."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from forebay.cli._interruptible import iterate
from forebay.cli._output import State, emit, say
from forebay.cli._params import common_options, example, options_option, typed_options

if TYPE_CHECKING:
    from forebay._index import ChunkEntry
    from forebay.types import ObjectInfo

__all__ = ["ls"]


@click.command(
    short_help="List what is under a root.",
    epilog=example("forebay ls https://data.example.org/digits", "forebay ls ./digits"),
)
@click.argument("url")
@options_option
@common_options
@click.pass_obj
def ls(state: State, url: str, options: Mapping[str, str]) -> None:
    """List the objects under URL: size in bytes, then name.

    A root that cannot list (most web servers) shows the chunks that its index names: size, items, name.
    """
    from forebay.exceptions import AccessDeniedError, UnsupportedOperationError

    typed = typed_options(url, options)
    try:
        _show(state, url, "listing", map(_from_listing, _objects(url, typed)))
    except (UnsupportedOperationError, AccessDeniedError) as refusal:
        _show(state, url, "index", map(_from_index, _chunks(url, typed, refusal)))


def _show(state: State, url: str, source: str, objects: Iterator[dict[str, object]]) -> None:
    if state.json:
        from forebay._url import redact

        emit("ls", url=redact(url), source=source, objects=list(objects))
        return
    for entry in objects:
        size = "-" if entry["size"] is None else entry["size"]
        items = f"  {entry['items']:>9} items" if "items" in entry else ""
        say(f"{size:>14}{items}  {entry['key']}")


def _objects(url: str, options: Mapping[str, object] | None) -> Iterator[ObjectInfo]:
    import forebay

    downloader = forebay.open_downloader(url, options=options)
    try:
        yield from iterate(lambda: downloader.list(""))
    finally:
        downloader.close()


def _chunks(url: str, options: Mapping[str, object] | None, refusal: Exception) -> list[ChunkEntry]:
    import forebay
    from forebay._url import redact
    from forebay.exceptions import ObjectNotFoundError

    # An empty cache of its own: to look is no reason to make one where the user's will be, or to meet its budget.
    with tempfile.TemporaryDirectory(prefix="forebay-ls-") as cache_dir:
        try:
            dataset = forebay.open_dataset(url, cache_dir=cache_dir, options=options, prefetch=False, allow_pickle=True)
        except ObjectNotFoundError as exc:
            text = f"{redact(url)} cannot be listed, and has no index whose chunks could be shown"
            raise ObjectNotFoundError(f"{text} ({refusal})") from exc
        with dataset:
            index = dataset._index
            return [index.chunk(number) for number in range(len(index))]


def _from_listing(info: ObjectInfo) -> dict[str, object]:
    modified = info.last_modified.isoformat() if info.last_modified else None
    return {"key": info.key, "size": info.size, "etag": info.etag, "last_modified": modified}


def _from_index(entry: ChunkEntry) -> dict[str, object]:
    size = entry.stored_bytes if entry.stored_bytes is not None else entry.decoded_bytes
    return {"key": entry.name, "size": size, "items": entry.items, "digest": entry.digest}
