"""The ranks of torch's process group, for those who save together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..ranks import ALONE, TIMEOUT_S, Ranks
from ..torch.ranks import ranks
from ..torch.world import is_grouped, world


def group() -> Ranks:
    """All ranks of the process group; without one, this process alone.

    Raises:
        UsageError: there are several processes, and they have no process group.
    """
    world()
    return ranks(float(os.environ.get("HOLDFAST_RANKS_TIMEOUT_S", TIMEOUT_S))) or ALONE


def my_rank() -> int:
    """In the process group; without one, as torchrun says it; else 0."""
    return world().rank if is_grouped() else int(os.environ.get("RANK", "0"))


def numbers(these: Sequence[int]) -> str:
    """`rank 3` or `ranks 1, 2`."""
    return f"rank{'s' if len(these) > 1 else ''} {', '.join(map(str, these))}"


def told(what: str, said: Sequence[Any]) -> str:
    """`<what> is 'a' on ranks 0, 2 and 'b' on rank 1`."""
    who = {repr(value): [rank for rank, other in enumerate(said) if other == value] for value in said}
    return f"{what} is " + " and ".join(f"{value} on {numbers(these)}" for value, these in who.items())
