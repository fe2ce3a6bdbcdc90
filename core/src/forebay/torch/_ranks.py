"""Who else trains: rank, number of ranks and number of machines, found where they are known."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed

from forebay import _config
from forebay.exceptions import ConfigError

__all__ = ["World", "find_world"]


@dataclass(frozen=True, slots=True)
class World:
    """This process's rank among ``size`` ranks on ``machines`` machines."""

    rank: int = 0
    size: int = 1
    machines: int = 1


def find_world(rank: int | None, size: int | None) -> World:
    """Return what the arguments say, else the process group, else ``RANK`` and ``WORLD_SIZE``, else a world of one.

    It is asked anew at each iteration, so a dataset may be made before the process group.

    Raises:
        ConfigError: One of two numbers is missing, or they do not fit together.
    """
    origin = "the arguments"
    machines = 1
    if (rank is None) != (size is None):
        name = "rank" if rank is None else "world_size"
        raise ConfigError(f"{name} is missing: rank and world_size go together", option=name)
    if rank is None or size is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            origin = "torch.distributed"
            rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        else:
            origin = "the environment"
            rank, size = _number("RANK"), _number("WORLD_SIZE")
            if (rank is None) != (size is None):
                raise ConfigError("of RANK and WORLD_SIZE in the environment one is missing: set both, or none")
            if rank is None or size is None:
                return World()
        local = _number("LOCAL_WORLD_SIZE")
        local = size if local is None else local
        if local < 1:
            raise ConfigError(f"LOCAL_WORLD_SIZE={local} in the environment cannot be: a machine has one rank or more")
        machines = size // local if size % local == 0 else 1
    if size < 1 or not 0 <= rank < size:
        raise ConfigError(f"rank {rank} of {size} ranks, from {origin}, cannot be", option="rank")
    return World(rank, size, machines)


def _number(name: str) -> int | None:
    text = _config.environ().get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError as exc:
        raise ConfigError(f"{name}={text!r} in the environment is no number") from exc
