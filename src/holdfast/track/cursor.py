"""Cursor: how far a tracker has the metrics of a run, in `RUN/trackers/<tracker>.json`."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

import msgspec

from .. import disk

NOTHING = -1  # as a step


class Cursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The run at the tracker, and what it holds.

    Its rows of the steps from `first` to `step` are those that led to the state of attempt
    `attempt`. Rows before `first` stand in an earlier run of the tracker.
    """

    key: str  # W&B's id of the run; a tag of MLflow's
    title: str
    note: str = ""
    first: int = 0
    attempt: int = 0
    step: int = NOTHING
    version: int = 1


_CURSOR = msgspec.json.Decoder(Cursor)  # made here, where only one thread is


def new_key() -> str:
    return secrets.token_hex(4)


def read(path: Path) -> Cursor | None:
    """Return the cursor; None if there is none, or if it cannot be one.

    Raises:
        OSError: it cannot be read now.
    """
    with suppress(FileNotFoundError, msgspec.DecodeError):
        cursor = _CURSOR.decode(path.read_bytes())
        return cursor if cursor.version == 1 else None
    return None


def write(path: Path, cursor: Cursor) -> None:
    """Replace the cursor in one step, durably."""
    disk.replace_with(path, [msgspec.json.encode(cursor)])
