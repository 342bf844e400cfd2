"""Captures, compares and restores optimizers of Keras, as `stateful/objects.py` asks of each
framework.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from ..errors import UsageError
from ..state.fill import read_whole
from .state import Optimizer


def handles(target: object) -> TypeGuard[Optimizer]:
    return isinstance(target, Optimizer)


def capture(target: Optimizer) -> Any:
    return target.state_dict()


def differences(_: Optimizer, __: Any) -> list[str]:
    """Return []: `restore` compares, when the optimizer is built."""
    return []


def restore(target: Optimizer, stored: Any) -> None:
    target.load_state_dict(read_whole(stored))


def overridden_options(target: Optimizer, stored: Any) -> list[str]:
    """Return a line if the script begins with another learning rate than the run did,
    which will be used.
    """
    here, there = target.base_rate, stored.get("base_rate")
    if None in (here, there) or here == there:
        return []
    return [f"learning_rate is {here:g} here and {there:g} in the checkpoint"]


def override(target: Optimizer, changes: Mapping[str, Any], _: Iterable[object]) -> list[str]:
    """Set options of the optimizer.

    Raises:
        UsageError: the optimizer has no such option that a checkpoint holds; nothing was changed.
    """
    if unknown := changes.keys() - {"learning_rate"}:
        raise UsageError(
            "overrides: of an optimizer of Keras a checkpoint "
            f"holds the learning_rate, and not {min(unknown)}: "
            "change that in the script"
        )
    return [target.set_learning_rate(float(new)) for new in changes.values()]


def class_name(target: Optimizer) -> str:
    return type(target).__qualname__


def parameter_count(_: Optimizer) -> None:
    """Return None: it is no model."""
