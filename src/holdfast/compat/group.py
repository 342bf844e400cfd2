"""The ranks of torch's process group, for those who save together."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

from torch import distributed

from ..errors import UsageError
from ..ranks import ALONE, TIMEOUT_S, Ranks

_groups = itertools.count()  # of this process: the same on every rank, as long as all make the same ones


def is_grouped() -> bool:
    """Whether torch's default process group is there."""
    return distributed.is_available() and distributed.is_initialized()


def group(what: str) -> Ranks:
    """All ranks of the process group; without one, this process alone.

    Raises:
        UsageError: there are several processes, and they have no process group.
    """
    if not is_grouped():
        if os.environ.get("WORLD_SIZE", "1") != "1":
            raise UsageError(
                f"{what}: WORLD_SIZE is {os.environ['WORLD_SIZE']}; call torch.distributed.init_process_group() first, "
                "so that the processes can agree"
            )
        return ALONE
    rank, world = distributed.get_rank(), distributed.get_world_size()
    if world == 1:
        return ALONE
    timeout_s = float(os.environ.get("HOLDFAST_RANKS_TIMEOUT_S", TIMEOUT_S))
    return Ranks(rank, world, _Keys(f"holdfast/compat/{next(_groups)}"), timeout_s=timeout_s)


def my_rank() -> int:
    """In the process group; without one, as torchrun says it; else 0."""
    return distributed.get_rank() if is_grouped() else int(os.environ.get("RANK", "0"))


def numbers(ranks: Sequence[int]) -> str:
    """`rank 3` or `ranks 1, 2`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def told(what: str, said: Sequence[Any]) -> str:
    """`<what> is 'a' on ranks 0, 2 and 'b' on rank 1`."""
    who = {repr(value): [rank for rank, other in enumerate(said) if other == value] for value in said}
    return f"{what} is " + " and ".join(f"{value} on {numbers(ranks)}" for value, ranks in who.items())


class _Keys:
    """Keys of the process group's own store: neither its backend nor a device matters."""

    def __init__(self, under: str) -> None:
        from torch.distributed.distributed_c10d import _get_default_store

        self._store: Any = _get_default_store()
        self._under = under

    def put(self, key: str, value: bytes) -> None:
        self._store.set(f"{self._under}/{key}", value)

    def get(self, key: str) -> bytes | None:
        full = f"{self._under}/{key}"
        return self._store.get(full) if self._store.check([full]) else None

    def drop(self, key: str) -> None:
        self._store.delete_key(f"{self._under}/{key}")

    def twin(self) -> _Keys:
        return self  # one thread talks
