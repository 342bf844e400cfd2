"""What feeds of every kind say of their loader, and read in a position."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any


def facts(loader: Any) -> dict[str, Any]:
    """What a loader of any kind says of itself."""
    found: dict[str, Any] = {"loader": type(loader).__name__}
    for fact, attribute in (("batch_size", "batch_size"), ("drop_last", "drop_last"), ("workers", "num_workers")):
        value = getattr(loader, attribute, None)
        if isinstance(value, int):
            found[fact] = value
    with suppress(TypeError, NotImplementedError):  # endless, or it does not know
        found["length"] = len(loader)
    return found


def reached(position: Mapping[str, Any] | None, epoch: int) -> int:
    """Batches of `epoch` that lie before `position`."""
    return int(position["batches"]) if position is not None and position["epoch"] == epoch else 0
