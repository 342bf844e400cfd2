"""Finds torch's objects that a loop uses and a run does not save: optimizers, parameters,
copies.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .stepping import StepObserver
from .stored import memory_id


def memory_of_tensors(captured: Iterable[Any]) -> set[int]:
    """Return the memory of all tensors in captured states, modules and optimizers' states
    excepted.
    """
    return {place for value in captured for place in _memory_of_captured(value)}


def memory_of_run(objects: Mapping[str, Any], captured: Mapping[str, Any]) -> set[int]:
    """Return the memory of all tensors that the run saves, besides the moments of its optimizers.

    `captured`: the state of all objects, and the values of run.vars.
    """
    optimizers = {name for name, each in objects.items() if isinstance(each, Optimizer)}
    models = [each for each in objects.values() if isinstance(each, nn.Module)]
    parts = [value for part, value in captured.items() if part not in optimizers]
    return memory_of_tensors(parts) | {
        memory_id(each) for model in models for each in model.parameters()
    }


def untracked_parameters(
    objects: Mapping[str, Any], held: set[int], more_held: set[int], steps: StepObserver
) -> Iterator[tuple[str, str]]:
    """Yield name and line of each tracked optimizer that steps parameters which no tracked object
    holds.

    `more_held`: the memory of tensors that a tracked object reaches, and may save in its own way.
    """
    optimizers = {name: each for name, each in objects.items() if isinstance(each, Optimizer)}
    for name, optimizer in optimizers.items():
        known = [each for each in _parameters(optimizer) if each.numel()]
        stepped = steps.parameters_of(optimizer)
        own = [
            each
            for each in known
            if memory_id(each) in stepped or (each.requires_grad and each in optimizer.state)
        ]
        lost = [
            each for each in own if memory_id(each) not in held and memory_id(each) not in more_held
        ]
        if lost and len(lost) == len(own):
            others = [
                each
                for other, one in optimizers.items()
                if other != name
                for each in _parameters(one)
            ]
            yield (
                name,
                _untracked_line(name, known, objects, lost, {memory_id(each) for each in others}),
            )
        elif lost:
            yield name, _untracked_line(name, [], {}, lost, set())


def _untracked_line(
    name: str,
    parameters: list[torch.Tensor],
    objects: Mapping[str, Any],
    lost: list[torch.Tensor],
    stepped: set[int],
) -> str:
    for model_name, model in objects.items():
        own = (
            [each for each in model.parameters() if each.numel()]
            if isinstance(model, nn.Module)
            else []
        )
        if own and _shapes(own) == _shapes(parameters) and stepped.isdisjoint(map(memory_id, own)):
            return (
                f"state[{name!r}] steps parameters that no "
                "tracked object holds, and none of those of "
                f"state[{model_name!r}], a model of the same shapes: "
                "the model that learns is not saved. "
                "Give the run the model whose parameters the optimizer was made with"
            )
    first = f"of shape {tuple(lost[0].shape)}"
    many = (
        f"a parameter {first}" if len(lost) == 1 else f"{len(lost)} parameters, the first {first},"
    )
    return (
        f"state[{name!r}] steps {many} that no tracked object holds: "
        "a resume loses what was learned there. "
        "Give the run the module, or the tensor itself, "
        "beside the model: dict(model=model, criterion=criterion, ...)"
    )


def unsaved_optimizers(
    steps: StepObserver, held: set[int], kept: Mapping[int, Any], captured: Any
) -> Iterator[tuple[Any, str]]:
    """Yield each optimizer that steps saved parameters,
    is not in `kept`, and whose own state is not saved.
    """
    saved: set[int] | None = None
    for optimizer, what in steps.untracked(held, kept):
        saved = memory_of_tensors([captured]) if saved is None else saved
        own = memory_of_tensors([dict(optimizer.state)])
        if not own or not own <= saved:
            yield optimizer, what


def omits_references(value: Any) -> bool:
    """Return whether the value is of torch's own kind: its state_dict() does not contain the
    objects that it refers to.
    """
    method = getattr(type(value), "state_dict", None)
    homes = (nn.Module.state_dict, Optimizer.state_dict, GradScaler.state_dict)
    # LambdaLR has one of its own
    is_schedulers = getattr(method, "__module__", "") == LRScheduler.__module__
    return (method in homes or is_schedulers) and type(value).__dict__.get(
        "get_extra_state"
    ) is None


def unsaved_tensors(module: nn.Module, held: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers of a module outside of `held`, without those in which batch
    norm counts.
    """
    for name, each in module.named_modules():
        buffers = [] if isinstance(each, _NormBase) else each.named_buffers(recurse=False)
        for key, one in chain(each.named_parameters(recurse=False), buffers):
            if not is_lazy(one) and memory_id(one) not in held:
                yield f"{name}.{key}", one


def is_stepped(value: Any, steps: StepObserver) -> bool:
    """Return whether an optimizer steps the parameters of a module, or the tensors of a container.

    If so, the warning is about the optimizer.
    """
    stepped = steps.stepped_memory()
    tensors = value.parameters() if isinstance(value, nn.Module) else ()
    return bool(stepped) and not stepped.isdisjoint(
        {*map(memory_id, tensors), *_memory_of_captured(value)}
    )


def memory_of(tensor: Any) -> int:
    """Return what identifies a tensor's memory; 0 for anything else."""
    return memory_id(tensor) if isinstance(tensor, torch.Tensor) else 0


def is_unshared(value: Any) -> bool:
    """Return whether only its Python object refers to a tensor and its memory; true for anything
    else.
    """
    if not isinstance(value, torch.Tensor):
        return True
    try:
        return _reference_counts(value) == _reference_counts(torch.zeros(1))
    except (
        AttributeError,
        RuntimeError,
        TypeError,
        NotImplementedError,
    ):  # another torch, or no plain tensor
        return False


def _reference_counts(tensor: torch.Tensor) -> tuple[int, int]:
    """Return how many references C++ has to the tensor, and to its memory."""
    memory = tensor.untyped_storage()
    return tensor._use_count(), torch._C._storage_Use_Count(memory._cdata)  # type: ignore[attr-defined]  # noqa: SLF001


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _shapes(parameters: Iterable[torch.Tensor]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(each.shape) for each in parameters if each.numel())


def _memory_of_captured(value: Any) -> Iterator[int]:
    """Yield the memory of all tensors in a captured state."""
    if isinstance(value, torch.Tensor):
        yield memory_id(value)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _memory_of_captured(each)
    elif isinstance(value, list | tuple | deque | set):
        for each in value:
            yield from _memory_of_captured(each)
