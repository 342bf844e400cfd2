"""LR schedulers: their own state_dict and load_state_dict, without objects that belong to the
script.

A scheduler that another one holds is stored as a part of it, and restored into the live one.
Functions, methods, partials, classes, weak references, and references to an optimizer or a module
belong to the script: they are not stored, and the live ones stay in place. Anything else that
cannot be encoded raises a UsageError at the save, since dropping it could lose state silently.
"""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau, SequentialLR

from ..errors import UsageError
from ..state.fill import read_whole
from .optimizers import is_torchs
from .stored import load_live_state

_Parts = list[tuple[LRScheduler, Any]]  # schedulers inside of another one, and their stored states

# in older versions a tensor of theirs is that of the optimizer
_SHARING = (ReduceLROnPlateau, SequentialLR)
_SHARES_UNTIL = "2.10"

_SCRIPTS_OWN = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    functools.partial,
    weakref.ReferenceType,
    type,
    Optimizer,
    nn.Module,
)


def capture(scheduler: LRScheduler) -> Any:
    """Return its state_dict without objects that belong to the script.

    Raises:
        UsageError: this torch makes it change its own base rates, which no restore can repeat.
    """
    return _storable(_state(scheduler), (scheduler,))


def _state(scheduler: LRScheduler) -> Any:
    groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", ())
    if (
        isinstance(scheduler, _SHARING)
        and torch.__version__ < _SHARES_UNTIL
        and any(isinstance(group["lr"], torch.Tensor) for group in groups)
    ):
        raise UsageError(
            f"{type(scheduler).__name__} with a tensor as its "
            f"learning rate is not exact in torch {torch.__version__}: "
            f"give lr as a number, or use torch {_SHARES_UNTIL}"
        )
    return scheduler.state_dict()


def differences(scheduler: LRScheduler, stored: Any) -> list[str]:
    """Return one line for each setting or part that does not fit; changes nothing.

    Names are compared for torch's own classes only: attributes of other classes may appear as they
    run. Private names are not compared, because torch's versions change them.
    """
    lines = _state_differences("", scheduler, stored)
    if not lines:
        parts: _Parts = []
        _with_live_objects(read_whole(stored), scheduler.state_dict(), parts)
        lines += [line for part, old in parts for line in differences(part, old)]
    return lines


def restore(scheduler: LRScheduler, stored: Any) -> None:
    """Load the stored state into the live scheduler.

    Raises:
        Mismatch: the scheduler's own load_state_dict refused.
    """
    parts: _Parts = []
    completed = _with_live_objects(read_whole(stored), scheduler.state_dict(), parts)
    for part, old in parts:
        restore(part, old)
    load_live_state(scheduler, completed)


def _storable(value: Any, around: tuple[Any, ...]) -> Any:
    """Return the part of a scheduler's value that is stored. `around`: the schedulers that hold it;
    references to them are not stored.
    """
    if isinstance(value, LRScheduler):
        return _storable(_state(value), (*around, value))
    if type(value) is dict:
        return {
            key: _storable(item, around)
            for key, item in value.items()
            if not _belongs_to_script(item, around)
        }
    return (
        [_storable(item, around) for item in value]
        if type(value) in (list, tuple) and _is_stored_by_item(value)
        else value
    )


def _is_stored_by_item(value: Any) -> bool:
    """Return whether a list is stored item by item; a tuple is if a scheduler is in it."""
    return type(value) is list or any(isinstance(item, LRScheduler) for item in value)


def _belongs_to_script(value: Any, around: tuple[Any, ...] = ()) -> bool:
    if type(value) in (list, tuple) and value:
        return all(_belongs_to_script(item, around) for item in value)
    return isinstance(value, _SCRIPTS_OWN) or any(value is each for each in around)


def _with_live_objects(stored: Any, live: Any, parts: _Parts) -> Any:
    """Return `stored` with the script's own objects taken from `live`.

    `parts` gets the schedulers inside, each with its stored state.
    """
    if isinstance(live, LRScheduler):
        parts += [(live, stored)]
        return live
    if type(live) is dict and type(stored) is dict:
        known = {
            key: _with_live_objects(value, live.get(key), parts) for key, value in stored.items()
        }
        only_here = {key: value for key, value in live.items() if key not in stored}
        return known | {
            key: value
            for key, value in only_here.items()
            if _belongs_to_script(value) or _is_part(value)
        }
    if (
        type(live) in (list, tuple)
        and type(stored) is list
        and len(live) == len(stored)
        and _is_stored_by_item(live)
    ):
        return type(live)(
            _with_live_objects(there, here, parts) for there, here in zip(stored, live, strict=True)
        )
    return stored


def _is_part(value: Any) -> bool:
    """Return whether the value is a scheduler, or a list of schedulers."""
    return isinstance(value, LRScheduler) or (
        type(value) in (list, tuple)
        and bool(value)
        and all(isinstance(each, LRScheduler) for each in value)
    )


def _state_differences(path: str, scheduler: Any, stored: Any) -> list[str]:
    if not isinstance(stored, dict):
        return [f"{path}{type(stored).__name__} in the checkpoint, a scheduler here"]
    if not is_torchs(scheduler):
        return _count_differences(path, scheduler, stored)
    stored = {"_schedulers": []} | stored
    if not isinstance(stored["_schedulers"], list | tuple):
        return [
            (
                f"{path}_schedulers: "
                f"{type(stored['_schedulers']).__name__} in the checkpoint, a list here"
            )
        ]
    live, there = _public_names(capture(scheduler)), _public_names(stored)
    lines = [f"{path}{name}: missing in the checkpoint" for name in live if name not in there]
    lines += [f"{path}{name}: only in the checkpoint" for name in there if name not in live]
    lines += _count_differences(path, scheduler, stored)
    parts = getattr(scheduler, "_schedulers", [])
    for number, (part, old) in enumerate(zip(parts, stored["_schedulers"], strict=False)):
        lines += _state_differences(f"{path}_schedulers/{number}/", part, old)
    return lines


def _count_differences(path: str, scheduler: Any, stored: dict[str, Any]) -> list[str]:
    """Return one line for each list of torch's schedulers that has another length. Values that are
    no lists are not compared: in other authors' schedulers these names may mean anything.
    """
    both = [
        (name, stored.get(name), getattr(scheduler, name, []))
        for name in ("base_lrs", "_schedulers")
    ]
    return [
        f"{path}{name}: {len(there)} in the checkpoint, {len(here)} here"
        for name, there, here in both
        if isinstance(there, list | tuple)
        and isinstance(here, list | tuple)
        and len(there) != len(here)
    ]


def _public_names(state: dict[str, Any]) -> list[str]:
    return [name for name in state if not str(name).startswith("_") and name != "verbose"]
