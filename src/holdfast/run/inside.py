"""Inside: whether this process is inside of a run's block."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from ..errors import UsageError

if TYPE_CHECKING:
    from .run import Run

living: WeakSet[Run] = WeakSet()  # runs whose blocks are entered in this process


def outside(what: str, ended: str | os.PathLike[str] | None) -> str:
    """Return the message for a call of run.<what>() outside of the run. `ended`: the path of a run that has ended."""
    if ended is None:
        return f"run.{what}() belongs inside `with Run(...) as run:`, or after run = Run(...).start()"
    return (
        f"run.{what}(): {os.fspath(ended)} has ended, with its outermost loop. What comes after that, a second loop "
        "for one, wants a block around all of it: with Run(...) as run:"
    )


def require_outside(path: str | os.PathLike[str], instead: str) -> None:
    """Require that no run of this directory is open in this process.

    Raises:
        UsageError: this process is inside the block of a run in that directory; `instead` names the alternative.
    """
    place = Path(path).resolve()
    if any(Path(run.path).resolve() == place for run in living):
        raise UsageError(f"{os.fspath(path)}: this is inside of its run's block. {instead}")
