"""Inside: whether this process is inside of a run's block."""

from __future__ import annotations

import os
from pathlib import Path
from weakref import WeakKeyDictionary

from ..errors import UsageError

living: WeakKeyDictionary[object, Path] = WeakKeyDictionary()  # each run whose block is entered here, and its directory


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
    if any(each.resolve() == place for each in living.values()):
        raise UsageError(f"{os.fspath(path)}: this is inside of its run's block. {instead}")
