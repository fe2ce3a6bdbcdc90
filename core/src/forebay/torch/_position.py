"""A position in the stream, and the state that is saved of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay.exceptions import ConfigError

__all__ = ["Position", "check_state", "make_state"]

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place in an epoch.

    ``start``: samples that are gone, over all ranks. ``inside``: items of this reader that are gone besides; then
    ``shape`` is what they depend on: batch size, ranks, and worker and workers where a worker said so.
    """

    epoch: int
    start: int = 0
    inside: int = 0
    shape: tuple[int, ...] = ()


def make_state(position: Position, *, partitions: int, description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a position as plain values."""
    return {
        "version": VERSION,
        "epoch": position.epoch,
        "consumed": position.start,
        "inside": position.inside,
        "shape": list(position.shape),
        "partitions": partitions,
        **description,
    }


def check_state(
    state: Mapping[str, Any], *, partitions: int | None, description: Mapping[str, Any]
) -> tuple[Position, int]:
    """Return the position and the partitions of a state; ``partitions`` None takes what the state says.

    Raises:
        ConfigError: It is not a state, or its order is not the one that ``description`` makes; the field is named.
    """
    if not isinstance(state, Mapping):
        raise ConfigError(f"a state is a mapping, as state_dict() gives it, not a {type(state).__name__}")
    if "version" not in state or "consumed" not in state:
        has = ", ".join(map(repr, list(state)[:6])) or "nothing"
        raise ConfigError(f"this is no state of a stream, it has {has}: give what state_dict() gave", option="version")
    if state["version"] != VERSION:
        raise ConfigError(
            f"the state has version {state['version']!r}, and this release reads version {VERSION}",
            option="version",
        )
    numbers = {}
    for name in ("epoch", "consumed", "inside", "partitions"):
        value = state.get(name)
        least = int(name == "partitions")
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"the state's {name!r} must be an int of at least {least}, not {value!r}", option=name)
        numbers[name] = value
    if partitions not in (None, numbers["partitions"]):
        raise _changed("partitions", numbers["partitions"], partitions)
    _compare(description, state)
    shape = state.get("shape", [])
    if not isinstance(shape, list) or not all(isinstance(value, int) for value in shape):
        raise ConfigError(f"the state's 'shape' must be a list of ints, not {shape!r}", option="shape")
    position = Position(epoch=numbers["epoch"], start=numbers["consumed"], inside=numbers["inside"], shape=tuple(shape))
    return position, numbers["partitions"]


def _compare(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    for name, value in ours.items():
        saved = theirs.get(name)
        if isinstance(value, list) and value and isinstance(value[0], Mapping) and isinstance(saved, list):
            if len(saved) != len(value):
                raise _changed(name, f"{len(saved)} of them", f"{len(value)}")
            for one, other in zip(value, saved, strict=True):
                _compare(one, other if isinstance(other, Mapping) else {})
        elif saved != value:
            raise _changed(name, saved, value)


def _changed(name: str, saved: object, ours: object) -> ConfigError:
    if name == "dataset":
        return ConfigError(
            f"the state was saved with another dataset than this one: dataset={saved!r} there and {ours!r} here, which"
            " stand for their indexes; give the one that it was saved with, or start anew without the state",
            option=name,
        )
    return ConfigError(
        f"the state was saved with {name}={saved!r} and this dataset has {name}={ours!r}: its order is another one;"
        f" make the dataset with what the state says, or start anew without the state",
        option=name,
    )
