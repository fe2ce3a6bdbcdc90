"""Nested items: a flat row of leaves and the structure that turns it back into dicts, lists and tuples.

The litdata layout stores the structure once for the whole dataset (``data_spec``, a JSON text in JSON): ``[1, node]``;
a node has ``type`` (null for a leaf), ``context`` (JSON text: the keys of a dict, the bound of a deque) and
``children_spec``. Only types from a fixed table are made: a dataset may not name code to import.
"""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.exceptions import InvalidIndexError, UnsupportedFormatError

__all__ = [
    "CONTAINERS",
    "LEAF",
    "Builders",
    "Node",
    "compile_builders",
    "display",
    "leaf_paths",
    "node_to_spec",
    "parse_spec",
]

#: Deeper structures are damage; the bound keeps our recursion and Python's parser well inside of theirs.
_MAX_DEPTH = 60
_TYPES: dict[str, type] = {
    "builtins.dict": dict,
    "builtins.list": list,
    "builtins.tuple": tuple,
    "collections.OrderedDict": OrderedDict,
    "collections.defaultdict": defaultdict,
    "collections.deque": deque,
}
_NAMES = {kind: name for name, kind in _TYPES.items()}
_FACTORIES: dict[str, type] = {kind.__name__: kind for kind in (bool, bytes, dict, float, int, list, set, str, tuple)}


@dataclass(frozen=True, slots=True)
class Node:
    """One place of the structure. ``kind`` None is a leaf; dicts have ``keys``, deque and defaultdict ``extra``."""

    kind: type | None = None
    keys: tuple[Any, ...] = ()
    children: tuple[Node, ...] = ()
    extra: Any = None


LEAF = Node()


def parse_spec(text: str) -> Node:
    """Read a ``data_spec``.

    Raises:
        InvalidIndexError: It is not one; the message has no address, the caller adds it.
        UnsupportedFormatError: It names a container that we do not make.
    """
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidIndexError(f"config.data_spec is not JSON: {error}") from error
    if not isinstance(loaded, list) or len(loaded) != 2:
        raise InvalidIndexError("config.data_spec is not a pair of protocol and structure")
    protocol, root = loaded
    if protocol != 1:
        raise UnsupportedFormatError(f"config.data_spec has protocol {protocol!r}; this version reads protocol 1")
    return _parse_node(root, "config.data_spec", 0)


def _parse_node(raw: Any, where: str, depth: int) -> Node:
    if depth > _MAX_DEPTH:
        raise InvalidIndexError(f"{where} is nested deeper than {_MAX_DEPTH} levels")
    if not isinstance(raw, dict) or not isinstance(raw.get("children_spec"), list) or "type" not in raw:
        raise InvalidIndexError(f"{where} is not a node with 'type', 'context' and 'children_spec'")
    name, below = raw["type"], raw["children_spec"]
    if name is None:
        if below:
            raise InvalidIndexError(f"{where} is a leaf with children")
        return LEAF
    kind = _TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise UnsupportedFormatError(f"{where} holds a container of type {name!r}; known are {', '.join(_TYPES)}")
    children = tuple(_parse_node(child, f"{where}[{place}]", depth + 1) for place, child in enumerate(below))
    context = _context(raw.get("context"), where)
    if kind is defaultdict:
        return Node(kind, _keys(context.get("dict_context") if isinstance(context, dict) else None, children, where),
                    children, _factory(context, where))  # fmt: skip
    if kind in (dict, OrderedDict):
        return Node(kind, _keys(context, children, where), children)
    if kind is deque and not (context is None or (type(context) is int and context >= len(children))):
        raise InvalidIndexError(f"{where} is a deque with the bound {context!r} and {len(children)} entries")
    return Node(kind, (), children, context if kind is deque else None)


def _context(raw: Any, where: str) -> Any:
    if not isinstance(raw, str):
        return raw
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidIndexError(f"{where} has a context that is not JSON: {error}") from error


def _keys(raw: Any, children: Sequence[Node], where: str) -> tuple[Any, ...]:
    if not isinstance(raw, list) or len(raw) != len(children):
        raise InvalidIndexError(f"{where} is a dict whose keys do not match its {len(children)} values")
    for key in raw:
        if not (key is None or isinstance(key, str | int | float)):
            raise InvalidIndexError(f"{where} has the key {key!r}, which is no plain value")
    if len(set(raw)) != len(raw):
        raise InvalidIndexError(f"{where} has a key twice")
    return tuple(raw)


def _factory(context: Any, where: str) -> type:
    # litdata imports the module that the index names. An index must not choose what we import.
    module, name = context.get("default_factory_module"), context.get("default_factory_name")
    if module != "builtins" or name not in _FACTORIES:
        raise UnsupportedFormatError(f"{where} is a defaultdict of {module}.{name}; known are built-in types only")
    return _FACTORIES[name]


def node_to_spec(root: Node) -> str:
    """Write the structure as a ``data_spec``."""
    return json.dumps([1, _raw(root)])


def _raw(node: Node) -> dict[str, Any]:
    if node.kind is None:
        return {"type": None, "context": None, "children_spec": []}
    context = json.dumps(list(node.keys)) if node.kind in (dict, OrderedDict) else json.dumps(node.extra)
    return {"type": _NAMES[node.kind], "context": context, "children_spec": [_raw(child) for child in node.children]}


def leaf_paths(root: Node, path: str = "item") -> list[str]:
    """Return how a person would write the way to each leaf: ``item['a'][0]``."""
    if root.kind is None:
        return [path]
    steps: Iterable[Any] = root.keys if root.keys else range(len(root.children))
    return [
        leaf
        for step, child in zip(steps, root.children, strict=True)
        for leaf in leaf_paths(child, f"{path}[{step!r}]")
    ]


@dataclass(frozen=True, slots=True)
class Builders:
    """``one`` makes an item of a row of leaves, ``many`` a list of items of the columns of leaves."""

    one: Callable[..., Any]
    many: Callable[..., list[Any]]


def compile_builders(root: Node) -> Builders:
    """Turn the structure into two functions without a loop in them.

    Measured with five leaves: ``dict(zip(keys, row))`` 430 ns an item, the display compiled here 180 ns. As in
    ``namedtuple`` a source text is compiled; no text of the dataset enters it, only names that are counted here
    (``k0``, ``v0``); keys are passed as values.
    """
    if root.kind is None:
        return Builders(one=lambda leaf: leaf, many=list)
    constants: dict[str, Any] = dict(CONTAINERS)
    leaves: list[str] = []
    shown = display(root, constants, leaves)
    if not leaves:
        raise InvalidIndexError("config.data_spec is a structure without a single leaf")
    values = ", ".join(leaves)
    columns = ", ".join(f"c{place}" for place in range(len(leaves)))
    over = f"for {values} in zip({columns})" if len(leaves) > 1 else f"for {values} in {columns}"
    names = ", ".join(constants)
    source = f"lambda {names}: ((lambda {values}: {shown}), (lambda {columns}: [{shown} {over}]))"
    one, many = eval(source, {"__builtins__": {"zip": zip}})(*constants.values())
    return Builders(one=one, many=many)


#: What the expression of `display` takes by name.
CONTAINERS: dict[str, Any] = {"OrderedDict": OrderedDict, "defaultdict": defaultdict, "deque": deque}


def display(node: Node, constants: dict[str, Any], leaves: list[str]) -> str:
    """Return the expression that makes an item out of ``v0``, ``v1``, …; keys join ``constants``, names ``leaves``."""
    if node.kind is None:
        leaves.append(f"v{len(leaves)}")
        return leaves[-1]
    values = [display(child, constants, leaves) for child in node.children]
    if node.kind is list:
        return f"[{', '.join(values)}]"
    if node.kind is tuple:
        return f"({', '.join(values)}{',' if len(values) == 1 else ''})"
    if node.kind is deque:
        return f"deque([{', '.join(values)}], {_constant(node.extra, constants)})"
    pairs = ", ".join(f"{_constant(key, constants)}: {value}" for key, value in zip(node.keys, values, strict=True))
    if node.kind is OrderedDict:
        return f"OrderedDict({{{pairs}}})"
    if node.kind is defaultdict:
        return f"defaultdict({_constant(node.extra, constants)}, {{{pairs}}})"
    return f"{{{pairs}}}"


def _constant(value: Any, constants: dict[str, Any]) -> str:
    name = f"k{len(constants)}"
    constants[name] = value
    return name
