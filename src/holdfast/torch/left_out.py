"""Attributes of modules and optimizers that are not in their state_dict(), but may be used by the
next step.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from ..script.carried import AttributeUse, attribute_use

_OF_MODULES = frozenset(vars(nn.Module()))


@lru_cache(maxsize=1)
def _common_attributes() -> frozenset[str]:
    """Return the names of attributes that every optimizer has. A scheduler replaces the method
    `step`.
    """
    return frozenset(vars(SGD([torch.zeros(1)]))) | {"step", "_opt_called", "_step_count", "fused"}


def unsaved_attributes(target: Any) -> Iterator[tuple[str, Any, str]]:
    """Yield for each attribute that the next step may read: the path of the part, the part, and the
    attribute's name.
    """
    if isinstance(target, Optimizer):
        if not _is_torchs(target) and type(target).state_dict is Optimizer.state_dict:
            yield from (
                ("", target, name)
                for name in vars(target)
                if _may_be_read_before_set(target, name, _common_attributes())
            )
        return
    for path, part in target.named_modules() if isinstance(target, nn.Module) else ():
        if _is_torchs(part):
            continue
        if saves_nothing(part):
            yield from ((path, part, name) for name in vars(part) if name not in _OF_MODULES)
        elif (
            type(part).state_dict is nn.Module.state_dict
            and type(part).get_extra_state is nn.Module.get_extra_state
        ):
            yield from (
                (path, part, name)
                for name in vars(part)
                if _may_be_read_before_set(part, name, _OF_MODULES)
            )


_HOOKS_OF_MODULES = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
)
_HOOKS_OF_OPTIMIZERS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def registered_hooks(target: Any) -> Iterator[Any]:
    """Yield the hooks of a module, of its parts and parameters, or of an optimizer."""
    places: list[tuple[Any, tuple[str, ...]]] = []
    if isinstance(target, Optimizer):
        places = [(target, _HOOKS_OF_OPTIMIZERS)]
    elif isinstance(target, nn.Module):
        places = [(part, _HOOKS_OF_MODULES) for part in target.modules()]
        places += [(each, _HOOKS_OF_TENSORS) for each in target.parameters()]
    for owner, names in places:
        for name in names:
            yield from list((getattr(owner, name, None) or {}).values())


def saves_nothing(part: Any) -> bool:
    """Return whether the class of `part` has a state_dict() of its own, which is empty: a metric
    whose states are not persistent.
    """
    if not isinstance(part, nn.Module) or type(part).state_dict is nn.Module.state_dict:
        return False
    return hasattr(part, "persistent") and not part.state_dict()


def _is_torchs(part: Any) -> bool:
    return type(part).__module__.partition(".")[0] == "torch"


def _may_be_read_before_set(part: Any, name: str, known: frozenset[str]) -> bool:
    """Return whether a method reads the attribute before it sets it, as far as their code shows.

    A value that each step sets before it is read is not carried.
    """
    if name in known:
        return False
    kind: Any = type(part)
    found = attribute_use(kind, name)
    return found is AttributeUse.CARRIED or (
        found is AttributeUse.UNSEEN and attribute_use(kind, "") is AttributeUse.CARRIED
    )
