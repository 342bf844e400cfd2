"""What all ranks do together besides saving: claim a run, wait for a commit to be visible, load a checkpoint."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from ..errors import Damaged, NotFound, UsageError
from ..ranks import Ranks
from ..store.attempt import JOIN_S, Attempt, is_checkpoint, join
from ..store.checkpoint import Checkpoint
from ..store.shelf import Shelf

T = TypeVar("T")


def tried(work: Callable[[], bytes]) -> Callable[[], bytes]:
    """Call `work` now. Return a function that returns, or raises, the same."""
    try:
        found = work()
        return lambda: found
    except Exception as error:
        return raising(error)


def raising(error: Exception) -> Callable[[], bytes]:
    """A function that raises `error`."""

    def fail() -> bytes:
        raise error

    return fail


def claim(ranks: Ranks, root: Path, begin: Callable[[], Attempt]) -> Attempt:
    """Rank 0 begins the attempt by `begin`; the other ranks join it.

    Raises:
        UsageError: `begin` raised it, or a rank does not see rank 0's directory.
    """
    if ranks.alone:
        return begin()
    found: list[Attempt] = []

    def claimed() -> bytes:
        found.append(begin())
        return msgspec.json.encode((found[0].number, found[0].run))

    number, run = msgspec.json.decode(ranks.lead("claim", claimed), type=tuple[int, str])

    def joined() -> bytes:
        if ranks.rank:
            try:
                found.append(join(root, number, run))
            except UsageError as error:
                raise UsageError(f"rank {ranks.rank} does not see what rank 0 does: {error}") from None
        return b""

    ranks.collect("join", joined)
    return found[0]


def appear(checkpoint: Path) -> None:
    """Wait until this process, too, sees the checkpoint that rank 0 has committed.

    Raises:
        FileNotFoundError: not within `JOIN_S` seconds, longer than network file systems cache a directory.
    """
    until = time.monotonic() + JOIN_S
    while not is_checkpoint(checkpoint):
        if time.monotonic() > until:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(checkpoint))
        os.listdir(checkpoint.parent)  # makes a network file system refresh its cache
        time.sleep(0.05)


def load(ranks: Ranks, shelf: Shelf, choose: Callable[[], Checkpoint] | None, read: Callable[[Checkpoint], T]) -> T:
    """Each rank calls `read` on its own part of one checkpoint, and returns what that returned.

    Rank 0 chooses the checkpoint by `choose`. Without `choose` it is the newest one that all ranks can read.

    Raises:
        NotFound: there is no checkpoint.
        Damaged: there is none that all ranks can read.
    """

    def one(checkpoint: Checkpoint) -> T:
        found: list[T] = []

        def mine() -> bytes:
            found.append(read(checkpoint.as_rank(ranks.rank)))
            return b""

        ranks.collect(f"load {checkpoint.path.name}", mine)
        return found[0]

    def told(find: Callable[[], Checkpoint] | None) -> Checkpoint:
        def named() -> bytes:
            return find().path.name.encode() if find is not None else b""

        return shelf.checkpoint(ranks.lead("checkpoint", named).decode())

    if choose is not None:
        return one(told(choose))
    if ranks.rank == 0:
        try:
            return shelf.read_newest(lambda checkpoint: one(told(lambda: checkpoint)))
        except (NotFound, Damaged) as error:
            ranks.lead("checkpoint", raising(error))
            raise
    while True:  # until rank 0 has no further one
        checkpoint = told(None)
        with suppress(NotFound, Damaged):
            return one(checkpoint)
