"""LR schedulers: their own state_dict and load_state_dict, without objects that belong to the script.

Functions, methods, partials, classes, weak references, and references to an optimizer, a scheduler or a module belong
to the script: they are not stored, and the live ones stay in place. Anything else that cannot be encoded raises a
UsageError at the save, since dropping it could lose state silently.
"""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..state.fill import whole
from .stored import load
from .trial import require_kinds, require_schedulers

_SCRIPTS_OWN = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    functools.partial,
    weakref.ReferenceType,
    type,
    Optimizer,
    LRScheduler,
    nn.Module,
)


def capture(scheduler: LRScheduler) -> Any:
    """Return its state_dict without objects that belong to the script."""
    return _storable(scheduler.state_dict())


def differences(scheduler: LRScheduler, stored: Any) -> list[str]:
    """Return one line for each setting or part that does not fit; changes nothing.

    Names are compared for torch's own classes only: attributes of other classes may appear as they run. Private names
    are not compared, because torch's versions change them.
    """
    if not isinstance(stored, dict):
        return [f"{type(stored).__name__} in the checkpoint, a scheduler here"]
    lines = _state_differences("", scheduler, stored)
    if not lines:
        require_schedulers(scheduler, _completed(whole(stored), scheduler.state_dict()))
    return lines


def restore(scheduler: LRScheduler, stored: Any) -> None:
    """Load the stored state into the live scheduler.

    Raises:
        Mismatch: the scheduler's own load_state_dict refused.
    """
    load(scheduler, _completed(whole(stored), scheduler.state_dict()))


def _storable(value: Any) -> Any:
    if type(value) is dict:
        return {key: _storable(item) for key, item in value.items() if not _is_scripts_own(item)}
    return [_storable(item) for item in value] if type(value) is list else value


def _is_scripts_own(value: Any) -> bool:
    if type(value) in (list, tuple) and value:
        return all(map(_is_scripts_own, value))
    return isinstance(value, _SCRIPTS_OWN)


def _completed(stored: Any, live: Any) -> Any:
    """Return `stored` with the script's own objects taken from `live`."""
    if type(live) is dict and type(stored) is dict:
        known = {key: _completed(value, live.get(key)) for key, value in stored.items()}
        return known | {key: value for key, value in live.items() if key not in stored and _is_scripts_own(value)}
    if type(live) is list and type(stored) is list and len(live) == len(stored):
        return [_completed(there, here) for there, here in zip(stored, live, strict=True)]
    return stored


def _state_differences(path: str, scheduler: Any, stored: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    rates, parts = getattr(scheduler, "base_lrs", []), getattr(scheduler, "_schedulers", [])
    require_kinds({"base_lrs": [0.0 for _ in rates], "_schedulers": [{} for _ in parts]}, stored, "a scheduler's state")
    if type(scheduler).__module__.startswith("torch.optim."):
        live = _public(capture(scheduler))
        there = _public(stored)
        lines += [f"{path}{name}: missing in the checkpoint" for name in live if name not in there]
        lines += [f"{path}{name}: only in the checkpoint" for name in there if name not in live]
    old_rates = stored.get("base_lrs", [])
    if "base_lrs" in stored and len(rates) != len(old_rates):
        lines.append(f"{path}base_lrs: {len(old_rates)} in the checkpoint, {len(rates)} here")
    old_parts = stored.get("_schedulers", [])
    if len(parts) != len(old_parts):
        return [*lines, f"{path}_schedulers: {len(old_parts)} in the checkpoint, {len(parts)} here"]
    for number, (part, old) in enumerate(zip(parts, old_parts, strict=True)):
        lines += _state_differences(f"{path}_schedulers/{number}/", part, old)
    return lines


def _public(state: dict[str, Any]) -> list[str]:
    return [name for name in state if not str(name).startswith("_") and name != "verbose"]
