"""Live torch objects: capture, differences, restore, by the kind of object.

Modules and optimizers are restored in place (modules.py, optimizers.py), schedulers and gradient
scalers through their own load_state_dict, generators by their state.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..errors import UsageError
from ..state.codec import without_garbage_collection
from ..state.fill import read_whole
from ..state.rebinding import Members
from . import baseline, modules, optimizers, schedulers
from .modules import class_name, parameter_count
from .overrides import override
from .stored import load_live_state

__all__ = [
    "capture",
    "changes_in_training",
    "check_buffers",
    "class_name",
    "detect_gradient_use",
    "differences",
    "drop_baseline",
    "handles",
    "overridden_options",
    "override",
    "parameter_count",
    "rebindable_buffers",
    "record_baseline",
    "restore",
]


def handles(target: object) -> bool:
    """Return whether this module captures and restores the object; any other object is captured by
    its state_dict alone.
    """
    return isinstance(target, _CLASSES)


def capture(target: Any) -> Any:
    """Return the object's state as a tree; tensors by reference, never copied."""
    return _kind(target).capture(target)


@without_garbage_collection()
def differences(target: Any, stored: Any) -> list[str]:
    """Return one line for each difference between checkpoint and object;
    changes and reads nothing.
    """
    lines: list[str] = _kind(target).differences(target, stored)
    return lines


@without_garbage_collection()
def restore(target: Any, stored: Any) -> None:
    """Restore the stored state into the live object.

    Raises:
        Damaged: a leaf's bytes do not have their digest; the object may hold a part of the state.
        Mismatch: the object's own load_state_dict refused.
    """
    _kind(target).restore(target, stored)


def rebindable_buffers(target: Any) -> Members:
    """Return the buffers, by name: a restore fills them, and a module can rebind them. Each comes
    with a call that gives it new memory.
    """
    return modules.rebindable_buffers(target) if isinstance(target, nn.Module) else {}


def changes_in_training(target: Any) -> bool:
    """Return whether more than the object's numbers may change: then `record_baseline`,
    `check_buffers` and `drop_baseline` must be called.
    """
    return isinstance(target, nn.Module | Optimizer)


def record_baseline(target: nn.Module | Optimizer) -> None:
    """Record the object's structure as its run begins, to find changes during training."""
    _kind(target).record_baseline(target)


def drop_baseline(target: Any) -> None:
    """Drop the record of the object's structure: the run has ended."""
    baseline.drop_baseline(modules.unwrap(target) if isinstance(target, nn.Module) else target)


def check_buffers(target: Any) -> None:
    """Check buffers that may change from step to step."""
    if isinstance(target, nn.Module):
        modules.check_buffers(target)


def detect_gradient_use(target: Any) -> bool:
    """Return whether the gradients that the loop leaves are saved from now on,
    and were not before.
    """
    return isinstance(target, Optimizer) and optimizers.detect_gradient_use(target)


def overridden_options(target: Any, stored: Any) -> list[str]:
    """Return options in the script that differ from the checkpoint's, which a restore will use."""
    return optimizers.overridden_options(target, stored) if isinstance(target, Optimizer) else []


def _kind(target: object) -> Any:
    """Return the module with `capture`, `differences` and `restore` for objects of this kind."""
    for kind, functions in _KINDS.items():
        if isinstance(target, kind):
            return functions
    raise UsageError(
        f"{type(target).__name__} is not a torch object that Holdfast restores in place"
    )


def _scaler_differences(scaler: GradScaler, stored: Any) -> list[str]:
    there, here = ("enabled" if on else "disabled" for on in (stored, scaler.is_enabled()))
    return [f"GradScaler: {there} in the checkpoint, {here} here"] if there != here else []


def _generator_differences(generator: torch.Generator, stored: Any) -> list[str]:
    there = stored.get("device") if isinstance(stored, Mapping) else stored
    there = there if isinstance(there, str) else type(there).__name__
    here = generator.device.type
    if there == here:
        read_whole(stored)  # damage is found before anything is changed
    return [f"Generator: for {there} in the checkpoint, for {here} here"] if there != here else []


_KINDS: dict[type, Any] = {
    nn.Module: modules,
    Optimizer: optimizers,
    LRScheduler: schedulers,
    GradScaler: SimpleNamespace(
        capture=GradScaler.state_dict,
        differences=_scaler_differences,
        restore=lambda scaler, stored: load_live_state(scaler, read_whole(stored)),
    ),
    torch.Generator: SimpleNamespace(
        capture=lambda generator: {"device": generator.device.type, "state": generator.get_state()},
        differences=_generator_differences,
        restore=lambda generator, stored: generator.set_state(read_whole(stored)["state"]),
    ),
}
_CLASSES = tuple(_KINDS)
