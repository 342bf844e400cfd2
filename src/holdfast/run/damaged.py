"""Damaged: a checkpoint that cannot be read, or whose bytes have changed: found, and set aside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import owner
from ..errors import Damaged, Unreadable
from ..store.checkpoint import Checkpoint
from ..store.store import Store


@contextmanager
def reading(place: Path) -> Iterator[None]:
    """Raise an OSError about a file in `place` as Unreadable. It says which file, and on which host."""
    try:
        yield
    except OSError as error:
        if not isinstance(error.filename, str | bytes | os.PathLike):
            raise
        path, place = Path(os.fsdecode(error.filename)).absolute(), place.absolute()
        if not path.is_relative_to(place):
            raise
        here = str(owner.me()["host"])
        text = f"{path}: cannot be read on {here}: [Errno {error.errno}] {error.strerror}"
        raise Unreadable(text, [(path.relative_to(place).as_posix(), here)]) from None


def require_sound(checkpoint: Checkpoint) -> None:
    """
    Raises:
        Damaged: its bytes differ from the committed ones.
    """
    for problem in checkpoint.problems():
        raise Damaged(str(problem))


def set_aside(store: Store, checkpoint: Checkpoint, word: str, why: str) -> None:
    store.quarantine(checkpoint, word)
    store.claim().record("quarantined", name=checkpoint.path.name, why=why)
    store.claim().flush(sync=True)
