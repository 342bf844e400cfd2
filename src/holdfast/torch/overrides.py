"""Changes options of an optimizer on request, with the schedule that depends on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..errors import UsageError
from . import baseline


def override(
    optimizer: Optimizer, changes: Mapping[str, Any], schedulers: Iterable[object] = ()
) -> list[str]:
    """Set options of every group; a list gives each group its own value. Return lines of the form
    old -> new.

    Where a scheduler has left `initial_lr`, "lr" means that base rate. The present rate, and the
    bounds that schedulers keep in the group or in themselves (max_lr, min_lr, base_lrs, max_lrs),
    are scaled with it. Floors such as eta_min stay. Objects in `schedulers` that are no scheduler
    of this optimizer are ignored.

    Raises:
        UsageError: no group has such an option, or a value does not fit; nothing was changed.
    """
    planned = {option: _per_group(optimizer, option, value) for option, value in changes.items()}
    driving = [scheduler for scheduler in schedulers if _sets_rates_of(scheduler, optimizer)]
    lines = []
    for option, values in planned.items():
        for number, (group, new) in enumerate(zip(optimizer.param_groups, values, strict=True)):
            if option == "lr" and "initial_lr" in group:
                line = _scale_rates(group, float(new), number, driving)
            else:
                line = f"{option} {_short_text(group.get(option))} -> {_short_text(new)}"
                _set_in_place(group, option, new)
            lines.append(f"group {number}: {line}")
    known = baseline.optimizer_baseline(optimizer)
    if known is not None and planned:
        known.record_options(optimizer, [])
    return lines


def _per_group(optimizer: Optimizer, option: str, value: Any) -> list[Any]:
    groups = getattr(optimizer, "param_groups", None)
    if groups is None:
        raise UsageError(
            f"a {type(optimizer).__name__} has no options to set: overrides name an optimizer"
        )
    options = sorted({key for group in groups for key in group} - {"params", "param_names"})
    if option not in options:
        raise UsageError(
            f"{type(optimizer).__name__} has no option {option!r}; it has {', '.join(options)}"
        )
    values = value if isinstance(value, list) else [value] * len(groups)
    if len(values) != len(groups):
        raise UsageError(f"{option}: {len(values)} values for {len(groups)} parameter groups")
    for group, new in zip(groups, values, strict=True):
        if _is_number(group.get(option)) and not _is_number(new):
            raise UsageError(f"{option} is a number, not {new!r}")
        old = group.get(option)
        if isinstance(old, tuple) and not (isinstance(new, tuple) and len(new) == len(old)):
            raise UsageError(f"{option} is {old!r}: give a tuple of {len(old)}, not {new!r}")
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (
        isinstance(value, torch.Tensor) and value.numel() == 1
    )


def _scale_rates(
    group: dict[str, Any], new: float, number: int, schedulers: Iterable[object]
) -> str:
    old = float(group["initial_lr"])
    before = float(group["lr"])

    def scaled(value: Any) -> float:
        return float(value) * (new / old) if old else new

    for option in ("lr", "max_lr", "min_lr"):
        if option in group:
            _set_in_place(group, option, scaled(group[option]))
    _set_in_place(group, "initial_lr", new)
    for scheduler in chain.from_iterable(map(_inner_schedulers, schedulers)):
        for name in ("base_lrs", "max_lrs", "_last_lr"):
            rates = getattr(scheduler, name, None)
            if isinstance(rates, list) and number < len(rates):
                _set_in_place(rates, number, scaled(rates[number]))
    return f"base lr {old:g} -> {new:g} (now {before:g} -> {float(group['lr']):g})"


def _inner_schedulers(scheduler: Any) -> Iterable[Any]:
    yield scheduler
    parts = getattr(scheduler, "_schedulers", ())
    for part in parts if isinstance(parts, list | tuple) else ():
        yield from _inner_schedulers(part)


def _sets_rates_of(scheduler: Any, optimizer: Optimizer) -> bool:
    """Return whether the scheduler sets the rates of these groups. Its optimizer may be
    accelerate's, which wraps this one.
    """
    return isinstance(scheduler, LRScheduler) and any(
        getattr(getattr(part, "optimizer", None), "param_groups", None) is optimizer.param_groups
        for part in _inner_schedulers(scheduler)
    )


def _set_in_place(container: Any, key: Any, value: Any) -> None:
    """Assign the value, or fill the existing tensor: compiled steps and CUDA graphs refer to it."""
    old = container.get(key) if isinstance(container, dict) else container[key]
    if isinstance(old, torch.Tensor):
        old.detach().fill_(value)
    else:
        container[key] = value


def _short_text(value: Any) -> str:
    return (
        f"{value.item():g}"
        if isinstance(value, torch.Tensor) and value.numel() == 1
        else repr(value)
    )
