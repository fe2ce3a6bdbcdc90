"""Items into the bytes of the litdata layout, for `forebay.pack`.

The first item fixes the structure and the type of each leaf; a later item that differs is an error that names it.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from forebay._formats._encode_leaves import LeafType, leaf_type
from forebay._formats._tree import LEAF, Node, leaf_paths, node_to_spec
from forebay.exceptions import DatasetError

__all__ = ["EncodedItem", "ItemEncoder"]

#: The parts of an item in the order in which they are written, their bytes, and the number of tokens where it has any.
EncodedItem = tuple[list[bytes | memoryview], int, int | None]

_CONTAINERS = (dict, OrderedDict, list, tuple)
_MAX_ITEM = (1 << 32) - 1


class ItemEncoder:
    """Encodes items that all look like the first one.

    Args:
        allow_pickle: Whether a leaf of a type that the layout does not know may be pickled.
        tokens: Each item is one array or tensor of one dimension, written without sizes; blocks are cut by the reader.
    """

    def __init__(self, *, allow_pickle: bool, tokens: bool) -> None:
        self._allow_pickle = allow_pickle
        self._tokens = tokens
        self._spec: Node | None = None
        self._paths: list[str] = []
        self._types: list[LeafType] = []
        self._sizes = struct.Struct("<")

    @property
    def data_format(self) -> list[str] | None:
        """The names of the leaf types, None before the first item."""
        return None if self._spec is None else [kind.name for kind in self._types]

    @property
    def data_spec(self) -> str | None:
        """The structure as text, None before the first item."""
        return None if self._spec is None else node_to_spec(self._spec)

    def encode(self, item: Any, number: int) -> EncodedItem:
        """Encode one item; ``number`` is its place, for messages.

        Raises:
            DatasetError: It is not like the first item, or a value cannot be stored.
            UnsafePickleError: A leaf would have to be pickled.
        """
        if self._spec is None:
            self._learn(item, number)
        assert self._spec is not None
        leaves = list(_flatten(item, self._spec, f"item {number}", "item"))
        parts: list[bytes | memoryview] = []
        for kind, leaf, path in zip(self._types, leaves, self._paths, strict=True):
            parts.append(kind.encode(leaf, f"item {number}: {path}"))
        sizes = [len(part) for part in parts]
        total = sum(sizes)
        if total > _MAX_ITEM - 1024 - 4 * len(sizes):
            raise DatasetError(f"item {number} takes {total} bytes; a chunk of this layout holds at most {_MAX_ITEM}")
        if self._tokens:
            return parts, total, total // self._types[0].itemsize
        head = self._sizes.pack(*sizes)
        return [head, *parts], total + len(head), None

    def _learn(self, item: Any, number: int) -> None:
        spec = _structure(item, "item", 0)
        self._paths = leaf_paths(spec)
        if not self._paths:
            raise DatasetError(f"item {number} holds no value: {type(item).__name__} {item!r:.80}")
        leaves = _flatten(item, spec, f"item {number}", "item")
        self._types = [
            leaf_type(leaf, f"item {number}: {path}", allow_pickle=self._allow_pickle)
            for leaf, path in zip(leaves, self._paths, strict=True)
        ]
        if self._tokens and (spec.kind is not None or not self._types[0].name.startswith("no_header_")):
            raise DatasetError(
                f"item {number} is a {type(item).__name__}; with tokens=True each item is one array or tensor of one"
                " dimension"
            )
        self._sizes = struct.Struct(f"<{len(self._types)}I")
        self._spec = spec


def _structure(value: Any, path: str, depth: int) -> Node:
    if type(value) not in _CONTAINERS:
        return LEAF
    if depth >= 50:
        raise DatasetError(f"{path} is nested deeper than 50 levels")
    if isinstance(value, dict):
        for key in value:
            if type(key) not in (str, int):
                raise DatasetError(f"{path} has the key {key!r:.80}; keys of a dict are str or int")
        children = tuple(_structure(child, f"{path}[{key!r}]", depth + 1) for key, child in value.items())
        return Node(type(value), tuple(value), children)
    children = tuple(_structure(child, f"{path}[{place}]", depth + 1) for place, child in enumerate(value))
    return Node(type(value), (), children)


def _flatten(value: Any, node: Node, where: str, path: str) -> Iterator[Any]:
    """Yield the leaves in the order of the structure; the keys of a dict may come in any order."""
    if node.kind is None:
        if type(value) in _CONTAINERS:
            raise _differs(where, path, "one value", value)
        yield value
        return
    if type(value) is not node.kind or not isinstance(value, _CONTAINERS):
        raise _differs(where, path, f"a {node.kind.__name__}", value)
    if isinstance(value, dict):
        if len(value) != len(node.keys) or any(key not in value for key in node.keys):
            missing = [key for key in node.keys if key not in value]
            more = [key for key in value if key not in node.keys]
            raise DatasetError(f"{where}: {path} has other keys than in the first item: missing {missing}, new {more}")
        for key, child in zip(node.keys, node.children, strict=True):
            yield from _flatten(value[key], child, where, f"{path}[{key!r}]")
        return
    if len(value) != len(node.children):
        raise DatasetError(f"{where}: {path} has {len(value)} entries, in the first item it has {len(node.children)}")
    for place, child in enumerate(node.children):
        yield from _flatten(value[place], child, where, f"{path}[{place}]")


def _differs(where: str, path: str, was: str, value: Any) -> DatasetError:
    return DatasetError(f"{where}: {path} is a {type(value).__name__}, in the first item it was {was}")
