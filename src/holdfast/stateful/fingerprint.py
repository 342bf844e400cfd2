"""Fingerprint: facts besides the state that influence results.
Every resume compares them and reports changes.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..data.advice import Advice, other_samples
from ..data.feed import MOVES
from ..data.order import VERSION
from ..data.seekable import STREAM_ORDER
from ..errors import Mismatch
from ..provenance import libraries
from .tracked import framework_modules

Facts = dict[str, Any]

# a position in our order stays valid
_KEEPING = {
    VERSION: {"accumulate", "batch_size", "drop_last", "length", "seed", "shuffle"},
    STREAM_ORDER: {"accumulate", "batch_size", "drop_last", "length", "sources"},
}


def describe_environment() -> Facts:
    """Return the interpreter, libraries, threads,
    device and deterministic switches of this process.
    """
    facts: Facts = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "libraries": libraries(),
    }
    for module in framework_modules():
        facts.update(module.facts())
    return facts


def describe_changes(
    before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = ""
) -> list[str]:
    """Return one line for each fact that differs: `libraries.torch: 2.12.0, now 2.13.0`."""
    lines = []
    for key in [*before, *(key for key in now if key not in before)]:
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += describe_changes(old, new, f"{prefix}{key}.")
        elif old != new:
            lines.append(f"{prefix}{key}: {old}, now {new}")
    return lines


def have_same_batches(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether two loaders give the same batches, as far as their facts show."""
    return all(before.get(key) == now.get(key) for key in MOVES - {"accumulate"})


def facts_that_move_position(
    before: Mapping[str, Any], now: Mapping[str, Any], accepted: Collection[str]
) -> list[str]:
    """Return the facts that changed, are not `accepted`,
    and move the position in the middle of an epoch.
    """
    # a step may take as many samples over all ranks as before, however the ranks divide them
    same = (
        {"batch_size", "accumulate"}
        if _samples_per_step(before) == _samples_per_step(now) > 0
        else set()
    )
    # accelerate's processes: their number decides who shares the same order out
    if (order := before.get("dealt")) is not None and order == now.get("dealt"):
        same |= {"sampler"}
    return [
        key
        for key in sorted(MOVES - same)
        if before.get(key) != now.get(key) and key not in accepted
    ]


def changed_loader_error(
    name: str, before: Mapping[str, Any], now: Mapping[str, Any], moved: Sequence[str]
) -> Mismatch:
    """Return the refusal of the loader `name` in the middle of an epoch,
    after the facts `moved` have changed.
    """
    what = "; ".join(
        f"{key} was {before.get(key)}, is {now.get(key)}" for key in moved
    ) + _describe_step_size_change(before, now)
    order = before.get("order") if before.get("order") == now.get("order") else None
    keeps = not {*moved} - _KEEPING.get(str(order), {"accumulate"})
    advice = Advice(
        "a changed fact", f"Put it back, or say accept={{{', '.join(map(repr, moved))}}}"
    )
    return Mismatch(
        f"the loader {name!r} is not the one of the checkpoint: "
        f"{what}. The position in its data would mean other "
        f"samples. {advice if keeps else other_samples()}"
    )


def _describe_step_size_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe a changed number of samples per step over all ranks:
    with more ranks it should stay the same.
    """
    was, size = before.get("global_batch_size"), now.get("global_batch_size")
    if not was or not size or was == size:
        return ""
    return (
        f" (a step took {was} samples over all ranks and would take {size}; "
        "keep that number, or each rank's)"
    )


def _samples_per_step(facts: Mapping[str, Any]) -> int:
    """Samples of a step over all ranks; 0 if the facts do not tell."""
    size, batches = facts.get("global_batch_size", 0), facts.get("accumulate", 1)
    return size * batches if isinstance(size, int) and isinstance(batches, int) else 0
