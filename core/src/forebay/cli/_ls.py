"""``forebay ls``: what lies under a root."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from forebay.cli._interruptible import iterate
from forebay.cli._output import State, emit, say
from forebay.cli._params import cache_dir_option, common_options, example, options_option

if TYPE_CHECKING:
    from forebay._index import ChunkEntry
    from forebay.types import ObjectInfo

__all__ = ["ls"]


@click.command(
    short_help="List what is under a root.",
    epilog=example("forebay ls https://data.example.org/digits", "forebay ls ./digits"),
)
@click.argument("url")
@cache_dir_option
@options_option
@common_options
@click.pass_obj
def ls(state: State, url: str, cache_dir: str | None, options: Mapping[str, object]) -> None:
    """List the objects under URL: size in bytes, then name.

    A root that cannot list (most web servers) shows the chunks that its index names: size, items, name.
    """
    from forebay._url import redact
    from forebay.exceptions import AccessDeniedError, UnsupportedOperationError

    try:
        if state.json:
            objects = [_object(info) for info in _objects(url, options)]
            emit("ls", url=redact(url), source="listing", objects=objects)
        else:
            for info in _objects(url, options):
                say(f"{_number(info.size):>14}  {info.key}")
        return
    except (UnsupportedOperationError, AccessDeniedError) as exc:
        refusal = exc
    try:
        chunks = list(_chunks(url, cache_dir, options))
    except Exception as exc:
        exc.add_note(f"the root was asked for its index because it cannot list: {refusal}")
        raise
    if state.json:
        emit("ls", url=redact(url), source="index", objects=[_chunk(entry) for entry in chunks])
        return
    for entry in chunks:
        say(f"{_number(_size(entry)):>14}  {entry.items:>9} items  {entry.name}")


def _objects(url: str, options: Mapping[str, object]) -> Iterator[ObjectInfo]:
    import forebay

    downloader = forebay.open_downloader(url, options=options)
    try:
        yield from iterate(lambda: downloader.list(""))
    finally:
        downloader.close()


def _chunks(url: str, cache_dir: str | None, options: Mapping[str, object]) -> Iterator[ChunkEntry]:
    import forebay

    with forebay.open_dataset(url, cache_dir=cache_dir, options=options, prefetch=False, allow_pickle=True) as dataset:
        index = dataset.index
        for number in range(len(index)):
            yield index.chunk(number)


def _size(entry: ChunkEntry) -> int | None:
    return entry.stored_bytes if entry.stored_bytes is not None else entry.decoded_bytes


def _number(size: int | None) -> str:
    return "-" if size is None else str(size)


def _object(info: ObjectInfo) -> dict[str, object]:
    modified = info.last_modified.isoformat() if info.last_modified else None
    return {"key": info.key, "size": info.size, "etag": info.etag, "last_modified": modified}


def _chunk(entry: ChunkEntry) -> dict[str, object]:
    return {"key": entry.name, "size": _size(entry), "items": entry.items, "digest": entry.digest}
