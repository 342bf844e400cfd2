"""The tensors of a captured object that are parameters or moments.

A save checks that their numbers are finite. Buffers are not checked: a causal mask is full of
infinities. Nor are an optimizer's options, such as its rates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .pieces import local_tensor


def trainable_leaves(target: object, captured: Any) -> Iterator[torch.Tensor]:
    """Yield the parameters, or the moments, among the tensors of `captured`: the state of `target`.

    A tensor that is tracked by itself counts if it is a parameter: an `nn.Parameter`, or a leaf
    that gets gradients.
    """
    if isinstance(target, nn.Module):
        known = {_memory_key(parameter) for parameter in target.parameters()}
        yield from (each for each in _tensors(captured) if _memory_key(each) in known)
    elif isinstance(target, Optimizer):
        states = captured.get("state") if isinstance(captured, Mapping) else None
        # a single number is a count or a bound, such as the best loss so far
        yield from (each for each in _tensors(states) if each.dim() > 0)
    elif isinstance(target, torch.Tensor) and _is_parameter(target):
        yield target


def _is_parameter(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) or (tensor.is_leaf and tensor.requires_grad)


def _memory_key(tensor: torch.Tensor) -> tuple[str, int, int]:
    """Return what identifies a tensor's memory: a module's state_dict() holds other tensor objects
    over the same memory.
    """
    held = local_tensor(tensor)
    return str(held.device), held.data_ptr() if held.numel() else -id(tensor), held.numel()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested dicts and lists."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    members: Iterable[Any] = ()
    if isinstance(value, Mapping):
        members = value.values()
    elif isinstance(value, list | tuple):
        members = value
    for member in members:
        yield from _tensors(member)
