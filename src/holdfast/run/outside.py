"""Outside: a run's directory is for others to write to while no block of a run in it is entered here."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import UsageError
from .run import living


def require_outside(path: str | os.PathLike[str], instead: str) -> None:
    """
    Raises:
        UsageError: this process is inside of the block of a run in that directory; `instead` says what to do.
    """
    place = Path(path).resolve()
    if any(Path(run.path).resolve() == place for run in living):
        raise UsageError(f"{os.fspath(path)}: this is inside of its run's block. {instead}")
