"""Items decoded one after the other by a function that is compiled for their structure.

Measured with a dict of two numbers and 2 kB of bytes: 1,700 ns an item through one decoder call a leaf, 880 ns so. A
batch in columns has a fixed cost of some thirty array operations, which pays from a few dozen items on; a shuffled
batch is made of a few items out of each of many chunks.

As in ``namedtuple`` a source text is compiled; no text of the dataset enters it, only names that are counted here and
the constant texts of the leaf classes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from forebay._formats._leaves import ChunkBytes, Leaf
from forebay._formats._tree import CONTAINERS, Node, display
from forebay.exceptions import IntegrityError

__all__ = ["RowDecoder", "compile_rows"]

#: Items with more leaves than this are rare, and their functions would be long; they are decoded a leaf at a time.
_MAX_LEAVES = 100

_Few = Callable[[ChunkBytes, Iterable[int]], list[Any]]
_Many = Callable[[ChunkBytes, Sequence[int], Sequence[int]], list[Any]]


@dataclass(frozen=True, slots=True)
class RowDecoder:
    """``few`` takes numbers of items, ``many`` where they begin and end, ``one`` a single number.

    All check that the leaves fill the item exactly and raise `IntegrityError` or ``struct.error`` where they do not,
    without saying where; numbers have to lie in the chunk.
    """

    one: Callable[[ChunkBytes, int], Any]
    few: _Few
    many: _Many


def compile_rows(root: Node, leaves: Sequence[Leaf]) -> RowDecoder | None:
    """Return the functions for items of this structure, None where it has too many leaves."""
    if len(leaves) > _MAX_LEAVES:
        return None
    constants: dict[str, Any] = dict(CONTAINERS, damage=IntegrityError, bounds=struct.Struct("<II").unpack_from)
    body = _body(leaves, constants)
    shown = display(root, constants, [])
    names = ", ".join(constants)
    lines = [
        f"def make({names}):",
        "    def one(chunk, item):",
        "        view = chunk.view",
        "        start, end = bounds(view, 4 + 4 * item)",
        *(f"        {line}" for line in body),
        f"        return {shown}",
        "    def few(chunk, items):",
        "        view, out = chunk.view, []",
        "        for item in items:",
        "            start, end = bounds(view, 4 + 4 * item)",
        *(f"            {line}" for line in body),
        f"            out.append({shown})",
        "        return out",
        "    def many(chunk, starts, ends):",
        "        view, out = chunk.view, []",
        "        for start, end in zip(starts, ends):",
        *(f"            {line}" for line in body),
        f"            out.append({shown})",
        "        return out",
        "    return one, few, many",
    ]
    space: dict[str, Any] = {"__builtins__": {"zip": zip, "str": str}}
    exec("\n".join(lines), space)
    return RowDecoder(*space["make"](**constants))


def _body(leaves: Sequence[Leaf], constants: dict[str, Any]) -> list[str]:
    """Return the statements that turn ``view``, ``start`` and ``end`` into ``v0``, ``v1``, …

    The sizes and the numbers in front are unpacked in one call; so is each later run of numbers. Nothing is decoded
    before the sizes are known to be right.
    """
    head, targets, checks = _head(leaves, constants)
    lines: list[str] = []
    decode: list[str] = []
    base, fixed = "start", 4 * len(leaves)  # where the next leaf begins: a name and a number
    place = 0
    while place < len(leaves):
        run = _run(leaves, place)
        if run:
            codes = "".join(str(leaf.code) for leaf in run)
            values = [f"v{place + n}" for n in range(len(run))]
            if place == 0:
                head += codes
                targets += values
            else:
                constants[f"u{place}"] = struct.Struct(f"<{codes}").unpack_from
                decode.append(f"{', '.join(values)}, = u{place}(view, {base} + {fixed})")
            fixed += struct.calcsize(f"<{codes}")
            place += len(run)
            continue
        lines.append(f"a{place} = {base} + {fixed}")
        lines.append(f"b{place} = a{place} + n{place}")
        decode.append(f"v{place} = {_expression(leaves[place], place, constants)}")
        base, fixed = f"b{place}", 0
        place += 1
    constants["sizes"] = struct.Struct(f"<{head}").unpack_from
    wrong = " or ".join([f"{base} + {fixed} != end", *checks])
    return [
        f"{', '.join(targets)}, = sizes(view, start)",
        *lines,
        f"if {wrong}: raise damage('the leaves do not fill their item')",
        *decode,
    ]


def _head(leaves: Sequence[Leaf], constants: dict[str, Any]) -> tuple[str, list[str], list[str]]:
    """Return how the sizes are unpacked, into which names, and what is compared: known sizes as one text of bytes."""
    code, targets, checks = "", [], []
    place = 0
    while place < len(leaves):
        run = _run(leaves, place)
        if not run:
            code += "I"
            targets.append(f"n{place}")
            place += 1
            continue
        constants[f"c{place}"] = struct.pack(f"<{len(run)}I", *(leaf.width or 0 for leaf in run))
        code += f"{4 * len(run)}s"
        targets.append(f"h{place}")
        checks.append(f"h{place} != c{place}")
        place += len(run)
    return code, targets, checks


def _run(leaves: Sequence[Leaf], place: int) -> list[Leaf]:
    """Return the neighbouring leaves from ``place`` on that are plain numbers."""
    run: list[Leaf] = []
    for leaf in leaves[place:]:
        if leaf.code is None:
            break
        run.append(leaf)
    return run


def _expression(leaf: Leaf, place: int, constants: dict[str, Any]) -> str:
    if leaf.expression is not None:
        return leaf.expression.format(a=f"a{place}", b=f"b{place}")
    constants[f"d{place}"] = leaf.one
    return f"d{place}(chunk, a{place}, b{place})"
