"""Memory: the run's own part of a checkpoint, checked before anything is restored. The file may be hostile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec

from ..errors import Damaged
from ..state import rng
from ..state.sound import Count, is_number, is_plain, shaped
from ..store.checkpoint import Checkpoint
from .cursor import AHEAD
from .position import Position

Random = dict[str, Any]  # states of generators, by package


class Fingerprint(msgspec.Struct, forbid_unknown_fields=True):
    environment: dict[str, Any]
    loaders: dict[str, dict[str, Any]]


class RunMemory(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of `Session.memory`, as far as their kinds do not depend on the script. A new one raises `VERSION`."""

    position: dict[str, Any]
    vars: dict[str, Any]
    seed: int
    overrides: dict[str, dict[str, Any]]
    fingerprint: Fingerprint
    probe: Any
    rng: Random
    epoch_rng: Random | None
    epoch_generators: dict[str, Any] = {}
    reducers: dict[str, tuple[list[Count], Annotated[int, msgspec.Meta(ge=0, le=2)]]] = {}
    nested: list[str] = []
    bound_anew: list[str] = []
    means: dict[str, dict[str, Annotated[list[float], msgspec.Meta(min_length=2, max_length=2)]]] = {}
    durations: dict[str, Any] = {}


msgspec.json.Decoder(RunMemory)  # here, where only one thread is: the first use of a type by two can crash msgspec


def checked(stored: Any, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return `stored`, the run's own part of `checkpoint`.

    Raises:
        Damaged: no run remembers that.
    """
    if not isinstance(stored, dict):
        raise Damaged(f"{checkpoint.path}: what the run remembered is not a mapping")
    memory = shaped(RunMemory, stored, f"{checkpoint.path}: what the run remembered")
    position = Position.of(memory.position)
    if (position.step, position.phase) != (checkpoint.step, checkpoint.phase):
        raise Damaged(f"{checkpoint.path}: the run's position in it is step {position.step}, {position.phase!r}")
    if not is_number(memory.seed):
        raise Damaged(f"{checkpoint.path}: no run has a seed of so many digits")
    for what in (memory.fingerprint.environment, memory.fingerprint.loaders, memory.overrides):
        if not is_plain(what):
            raise Damaged(f"{checkpoint.path}: the run remembered facts that are neither text nor numbers")
    rng.require_sound(_random(memory, position))
    return stored


def _random(memory: RunMemory, position: Position) -> Iterator[Mapping[str, Any]]:
    """Yield the states of random generators in the run's own part."""
    yield memory.rng
    yield memory.epoch_rng or {}
    for feed in position.feeds.values():
        yield feed.get("rng", {})
        yield feed.get("last_rng", {})
        yield from feed.get(AHEAD, [])
