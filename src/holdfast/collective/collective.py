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
from ..ranks import Ranks, giving, looks
from ..store.attempt import JOIN_S, Attempt, is_checkpoint, join
from ..store.checkpoint import Checkpoint
from ..store.shelf import Shelf

T = TypeVar("T")


def claim(ranks: Ranks, root: Path, begin: Callable[[], Attempt]) -> Attempt:
    """Rank 0 begins the attempt by `begin`; the other ranks join it.

    Raises:
        UsageError: `begin` raised it, or a rank does not see rank 0's directory.
    """
    found: list[Attempt] = []

    def claimed() -> bytes:
        found.append(begin())
        return msgspec.json.encode((found[0].number, found[0].run))

    number, run = msgspec.json.decode(ranks.lead("claim", claimed), type=tuple[int, str])
    with ranks.together("join"):
        if ranks.rank:
            try:
                found.append(join(root, number, run))
            except UsageError as error:
                raise UsageError(f"rank {ranks.rank} does not see what rank 0 does: {error}") from None
    return found[0]


def appear(path: Path, is_there: Callable[[Path], bool] = is_checkpoint) -> None:
    """Wait until this process sees what another rank has made: by default a checkpoint.

    Raises:
        FileNotFoundError: not within `JOIN_S` seconds, longer than network file systems cache a directory.
    """
    for _ in looks(time.monotonic() + JOIN_S):
        if is_there(path):
            return
        with suppress(FileNotFoundError):
            os.listdir(path.parent)  # makes a network file system refresh its cache
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def load(ranks: Ranks, shelf: Shelf, choose: Callable[[], Checkpoint] | None, read: Callable[[Checkpoint], T]) -> T:
    """Each rank calls `read` on its own part of one checkpoint, and returns what that returned.

    Rank 0 chooses the checkpoint by `choose`. Without `choose` it is the newest one that all ranks can read.

    Raises:
        NotFound: there is no checkpoint.
        Damaged: there is none that all ranks can read.
    """

    def one(checkpoint: Checkpoint) -> T:
        found: list[T] = []
        with ranks.together(f"load {checkpoint.path.name}"):
            found.append(read(checkpoint.as_rank(ranks.rank)))
        return found[0]

    def led(find: Callable[[], Checkpoint]) -> Checkpoint:
        """The checkpoint that rank 0 finds."""
        name = ranks.lead("checkpoint", lambda: find().path.name.encode())  # noqa: PLW0108  only rank 0 calls `find`
        return shelf.checkpoint(name.decode())

    if choose is not None:
        return one(led(choose))
    if ranks.rank == 0:
        try:
            return shelf.read_newest(lambda checkpoint: one(led(lambda: checkpoint)))
        except (NotFound, Damaged) as error:
            ranks.lead("checkpoint", giving(error=error))
            raise
    while True:  # until rank 0 has no further one
        checkpoint = led(shelf.latest)
        with suppress(NotFound, Damaged):
            return one(checkpoint)
