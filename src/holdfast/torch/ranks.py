"""Ranks over torch: messages go through the store of torch's process group."""

from __future__ import annotations

import itertools
import os
from typing import Any

from torch import distributed

from ..errors import RanksError, UsageError
from ..ranks import ALONE, Ranks
from .rendezvous import agree_on_prefix
from .world import is_grouped

_serial = itertools.count(1)  # every rank begins the same runs, in the same order


def ranks(timeout_s: float) -> Ranks | None:
    """Return the ranks of torch's default group,
    under a new key prefix; None when there is no group.
    """
    if not is_grouped():
        return None
    if distributed.get_world_size() == 1:
        return ALONE
    rank, world, place = (
        distributed.get_rank(),
        distributed.get_world_size(),
        f"holdfast/{next(_serial)}",
    )
    store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001  there is no public way
    name = agree_on_prefix(StoreChannel(store, f"{place}/meeting"), rank, world, timeout_s)
    return Ranks(rank, world, StoreChannel(store, f"{place}/{name}"), timeout_s=timeout_s)


class StoreChannel:
    """A channel in a store of torch's, with keys under a prefix, over its own connection.

    It asks whether a key exists before it reads it. Reading one that does not exist would wait in
    C++, where Python handles no signals, and print warnings.
    """

    def __init__(self, store: Any, name: str) -> None:
        self._shared, self._name, self._process = store, name, os.getpid()
        # Stores have clones since torch 2.8; a shared one serves one thread at a time.
        own = store.clone() if hasattr(store, "clone") else store
        c10d: Any = distributed.distributed_c10d
        self._store = c10d.PrefixStore(name, own)

    def put(self, key: str, value: bytes) -> None:
        self._call_store("set", key, value)

    def get(self, key: str) -> bytes | None:
        if not self._call_store("check", [key]):
            return None
        found: bytes = self._call_store("get", key)
        return found

    def drop(self, key: str) -> None:
        self._call_store("delete_key", key)

    def reconnect(self) -> StoreChannel:
        return StoreChannel(self._shared, self._name)

    def _call_store(self, what: str, *given: Any) -> Any:
        if os.getpid() != self._process:
            raise UsageError("a forked child, such as a DataLoader's worker, is no rank")
        try:
            return getattr(self._store, what)(*given)
        except RuntimeError as error:
            line = str(error).partition("\n")[0]
            raise RanksError(
                "the ranks' rendezvous does not answer; "
                f"perhaps the process that held it has ended ({line})"
            ) from error
