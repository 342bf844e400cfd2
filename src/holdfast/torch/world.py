"""The rank of this process and the number of ranks: as the caller says, as torch's process group
says, or a process alone.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from torch import distributed

from ..errors import UsageError


class World(NamedTuple):
    rank: int
    size: int


def is_grouped() -> bool:
    """Return whether torch's default process group exists."""
    return distributed.is_available() and distributed.is_initialized()


def rank_of_process() -> int:
    """Return this process's rank in the process group; without a group as torchrun says
    it; else 0.
    """
    return distributed.get_rank() if is_grouped() else int(os.environ.get("RANK", "0"))


def world(rank: int | None = None, size: int | None = None) -> World:
    """Return the given rank and size; the process group says what is not given. Without a group,
    this process is alone.

    Raises:
        UsageError: no such rank; or torchrun or the like started several ranks, and they have no
            process group yet.
    """
    if is_grouped():
        rank = distributed.get_rank() if rank is None else rank
        size = distributed.get_world_size() if size is None else size
    elif size is None and rank is None and os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, and there is no process group: call"
            " torch.distributed.init_process_group() first, or say which rank this is, of how many"
        )
    size = 1 if size is None else size
    if rank is None and size > 1:
        raise UsageError(
            f"which of the {size} ranks is this? Give rank=, or call init_process_group() first"
        )
    rank = rank or 0
    if not 0 <= rank < size:
        raise UsageError(f"rank {rank} of {size}: ranks count from 0")
    return World(rank, size)
