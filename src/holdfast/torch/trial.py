"""Trial: whether stored content can be that of a torch object, decided before the live object is changed.

Options and small values of torch's own classes are compared with the live ones by kind. What only an object's own
load_state_dict can tell is tried with a twin.
"""

from __future__ import annotations

import math
import types
import weakref
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import msgspec
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..errors import Damaged
from ..state.sound import Whole, is_number, shaped, sound
from .stored import DTYPES, is_stored_tensor, require_described


class _Group(msgspec.Struct):
    params: list[Whole]
    param_names: list[str] | None = None


class _Optimizer(msgspec.Struct):
    state: dict[Any, Any]
    param_groups: list[dict[str, Any]]


for _kind in (_Group, _Optimizer):
    msgspec.json.Decoder(_kind)  # here, where only one thread is: the first use of a type by two can crash msgspec


def require_optimizers(optimizer: Optimizer, stored: Any) -> None:
    """
    Raises:
        Damaged: no optimizer has such a state.
    """
    found = shaped(_Optimizer, stored, "an optimizer's state")
    groups = [shaped(_Group, group, "an optimizer's group") for group in found.param_groups]
    numbers = [number for group in groups for number in group.params]
    if len({*numbers}) != len(numbers):
        raise Damaged("an optimizer's groups share a parameter")
    if is_torchs(optimizer):  # what others keep for a parameter is their own
        for number in {*numbers} & found.state.keys():
            _require_moments(number, shaped(dict[str, Any], found.state[number], f"an optimizer's state/{number}"))
        for group, old in zip(optimizer.param_groups, found.param_groups, strict=False):
            require_kinds({name: group[name] for name in group if name != "params"}, old, "an optimizer's option")


def _require_moments(number: int, entry: Mapping[str, Any]) -> None:
    for name, value in entry.items():
        if is_stored_tensor(value):
            require_described(value)
        if name == "step" and not (math.prod(value.shape) == 1 if is_stored_tensor(value) else is_number(value)):
            raise Damaged(f"an optimizer's state/{number}/step is no number")


def require_moments(what: str, moments: Mapping[str, Any], parameter: torch.Tensor) -> None:
    """
    Raises:
        Damaged: one is no tensor of real or complex numbers, as `parameter` is.
    """
    for name, value in moments.items():
        dtype = DTYPES.get(value.dtype) if is_stored_tensor(value) else getattr(value, "dtype", None)
        if not isinstance(dtype, torch.dtype) or _kind_of(dtype) != _kind_of(parameter.dtype):
            raise Damaged(f"an optimizer's {what}/{name} is no tensor like its parameter's")


def _kind_of(dtype: torch.dtype) -> tuple[bool, bool]:
    return dtype.is_floating_point, dtype.is_complex


def require_kinds(live: Any, stored: Any, what: str) -> None:
    """Require that each stored value is of the kind of the live one in its place.

    A tensor may stand for a number, None for anything but a number, and anything but an array for None.

    Raises:
        Damaged: one is not.
    """
    if live is None:
        if is_tensor(stored) or getattr(stored, "shape", None):
            raise Damaged(f"{what}: an array in the checkpoint, None here")
        return
    if isinstance(live, Mapping):
        same = isinstance(stored, Mapping)
        pairs = [(live[key], stored[key]) for key in live if key in stored] if same else []
    elif isinstance(live, list | tuple):
        same = isinstance(stored, list | tuple) and (isinstance(live, list) or len(live) == len(stored))
        pairs = [(live[0], each) for each in stored] if same and live else []
    else:
        same, pairs = _is_alike(live, stored), []
    if not same:
        raise Damaged(f"{what}: {type(stored).__name__} in the checkpoint, {type(live).__name__} here")
    for one, other in pairs:
        require_kinds(one, other, what)


def _is_alike(live: Any, stored: Any) -> bool:
    if isinstance(live, bool | str):
        return stored is None or isinstance(stored, type(live))
    if is_number(live) or is_tensor(live):
        return is_number(stored) or is_tensor(stored)
    return not is_tensor(stored)


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or is_stored_tensor(value)


def require_scalers(scaler: GradScaler, stored: Any) -> None:
    """
    Raises:
        Damaged: no scaler that is enabled has such a state.
    """
    numbers = shaped(dict[str, float], stored, "a gradient scaler's state")
    if missing := GradScaler.state_dict(scaler).keys() - numbers.keys():  # as it was captured
        raise Damaged(f"a gradient scaler's state lacks {', '.join(sorted(missing))}")


def require_generators(generator: torch.Generator, state: Any) -> None:
    """
    Raises:
        Damaged: no generator of that device has such a state.
    """
    with sound("a torch.Generator's state"):
        torch.Generator(generator.device).set_state(state)


def is_torchs(value: object) -> bool:
    """Whether its class is one of torch's own: of others, nothing is known."""
    return type(value).__module__.startswith("torch.optim.")


def require_schedulers(scheduler: LRScheduler, state: Any) -> None:
    """Let a twin load `state`, and a twin of each of its parts.

    Raises:
        Damaged: one cannot.
    """
    if not is_torchs(scheduler):
        return
    live = scheduler.state_dict()
    parts = getattr(scheduler, "_schedulers", [])
    require_kinds({name: live[name] for name in live if name != "_schedulers"}, state, "a scheduler's state")
    with sound("a scheduler's state"):
        _twin(scheduler, parts).load_state_dict(state)
    for part, old in zip(parts, state.get("_schedulers", []), strict=True):
        require_schedulers(part, old)


class _Part:
    """Stands for a part in its scheduler's twin. Each part is tried by itself, and somebody's own is not tried."""

    def load_state_dict(self, state: Any) -> None:
        pass


def _twin(scheduler: LRScheduler, parts: Sequence[Any]) -> LRScheduler:
    """A copy of a scheduler of torch's: what its load_state_dict changes in place is copied, all else is shared."""
    made = object.__new__(type(scheduler))
    vars(made).update({name: _copied(value) for name, value in vars(scheduler).items()})
    if parts:
        vars(made)["_schedulers"] = [_Part() for _ in parts]
    return made


def _copied(value: Any) -> Any:
    if type(value) is list:
        return [*map(_copied, value)]
    # the user's schedule, if it is an object with attributes: torch stores and loads these
    is_object = callable(value) and not isinstance(value, _SHARED) and hasattr(value, "__dict__")
    return copy(value) if is_object else value


_SHARED = (type, types.FunctionType, types.MethodType, weakref.ReferenceType, Optimizer, nn.Module)
