"""What feeds of every kind say of their loader, and what a position is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

FeedPosition = Mapping[str, Any]  # "epoch", "batches" consumed of it, and what else the feed needs to come back there
LoaderFacts = Mapping[str, Any]  # what decides the order and the batches of a loader


def facts(loader: Any, sized: Any = None) -> dict[str, Any]:
    """What a loader of any kind says of itself; its length is that of `sized`, if that is given."""
    found: dict[str, Any] = {"loader": type(loader).__name__}
    for fact, attribute in (("batch_size", "batch_size"), ("drop_last", "drop_last"), ("workers", "num_workers")):
        value = getattr(loader, attribute, None)
        if isinstance(value, int):
            found[fact] = value
    with suppress(TypeError, NotImplementedError):  # endless, or it does not know
        found["length"] = len(loader if sized is None else sized)
    return found


def reached(position: FeedPosition | None, epoch: int) -> int:
    """Batches of `epoch` that lie before `position`."""
    return int(position["batches"]) if position is not None and position["epoch"] == epoch else 0
