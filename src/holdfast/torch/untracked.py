"""Untracked: what torch can say of values that a run tracks and a loop does not use."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .stored import storage


def untracked(objects: Mapping[str, Any], captured: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and line of each optimizer that steps another model than the tracked one.

    That is certain when no tracked object holds any of its parameters, and there is a tracked model with parameters of
    the same shapes, none of which a tracked optimizer steps. `captured`: the state of all objects, and
    what run.vars holds.
    """
    optimizers = {name: each for name, each in objects.items() if isinstance(each, Optimizer)}
    models = {name: each for name, each in objects.items() if isinstance(each, nn.Module)}
    if not optimizers or not models:
        return
    held = {place for part, value in captured.items() if part not in optimizers for place in _places(value)}
    held |= {storage(parameter) for model in models.values() for parameter in model.parameters()}
    stepped = {storage(parameter) for optimizer in optimizers.values() for parameter in _parameters(optimizer)}
    for name, optimizer in optimizers.items():
        parameters = [each for each in _parameters(optimizer) if each.numel()]
        if not parameters or not held.isdisjoint(map(storage, parameters)):
            continue
        for model_name, model in models.items():
            own = [each for each in model.parameters() if each.numel()]
            if _shapes(own) == _shapes(parameters) and stepped.isdisjoint(map(storage, own)):
                line = (
                    f"state[{name!r}] steps parameters that no tracked object holds, and none of those of "
                    f"state[{model_name!r}], a model of the same shapes: the model that learns is not saved. "
                    "Give the run the model whose parameters the optimizer was made with"
                )
                yield name, line
                break


def alone(value: Any) -> bool:
    """Whether nothing but its Python object holds a tensor or its memory. True of anything else."""
    if not isinstance(value, torch.Tensor):
        return True
    try:
        return _uses(value) == _uses(torch.zeros(1))
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):  # another torch, or no plain tensor
        return False


def _uses(tensor: torch.Tensor) -> tuple[int, int]:
    """References in C++ to the tensor, and to its memory."""
    memory = tensor.untyped_storage()
    return tensor._use_count(), torch._C._storage_Use_Count(memory._cdata)  # type: ignore[attr-defined]  # noqa: SLF001


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _shapes(parameters: Iterable[torch.Tensor]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(each.shape) for each in parameters)


def _places(value: Any) -> Iterator[int]:
    """The memory of all tensors in a captured state."""
    if isinstance(value, torch.Tensor):
        yield storage(value)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _places(each)
    elif isinstance(value, list | tuple | deque | set):
        for each in value:
            yield from _places(each)
