"""Prepared optimizers and schedulers of accelerate: each is captured and restored as the object
inside it.

AcceleratedOptimizer is no subclass of the optimizer that it wraps. Its own load_state_dict would
cast the fp32 moments of bf16 parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler

from ..stateful.objects import OBJECTS, adapter_for


def handles(target: object) -> bool:
    """Return whether the object is a prepared optimizer, or a prepared scheduler."""
    return isinstance(target, AcceleratedOptimizer | AcceleratedScheduler)


def unwrap(target: Any) -> Any:
    """Return the object that the program gave to `Accelerator.prepare`."""
    while handles(target):
        target = target.optimizer if isinstance(target, AcceleratedOptimizer) else target.scheduler
    return target


def capture(target: Any) -> Any:
    return OBJECTS.capture(unwrap(target))


def differences(target: Any, stored: Any) -> list[str]:
    return OBJECTS.differences(unwrap(target), stored)


def restore(target: Any, stored: Any) -> None:
    OBJECTS.restore(unwrap(target), stored)


def overridden_options(target: Any, stored: Any) -> list[str]:
    adapter = adapter_for(unwrap(target))
    return [] if adapter is None else list(adapter.overridden_options(unwrap(target), stored))


def override(target: Any, changes: Mapping[str, Any], others: Iterable[object] = ()) -> list[str]:
    adapter: Any = adapter_for(unwrap(target))
    return list(adapter.override(unwrap(target), changes, [unwrap(each) for each in others]))


def parameter_count(target: object) -> None:
    """Return None: it is not a model."""
    del target
