"""Baselines: a run's modules and optimizers as they were at its start, to find changes during
training.

A buffer that training registers, or makes larger, comes back with the checkpoint. So does a buffer
outside of the state_dict() whose numbers change. Any other change of the structure is refused at
the save: no start could restore it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ..errors import UsageError
from ..state.codec import encode_leaf
from ..store.format import digest
from .gradients import GradientWatch

BESIDES = ".besides"  # no state_dict name begins with a dot, and no optimizer's part
OPTIONS = ("lr", "weight_decay", "momentum", "betas", "eps", "dampening", "nesterov", "amsgrad")
LARGEST_BYTES = 64 << 20  # of a buffer outside of the state_dict() whose numbers are compared
_NUMBERS = (int, float, tuple)


class ModuleBaseline:
    """A module's names and shapes at the start of its run, and the values of the buffers that its
    state_dict() leaves out.
    """

    def __init__(self, state: Mapping[str, Any], apart: Mapping[str, torch.Tensor]) -> None:
        self.shapes = {name: _shape(value) for name, value in state.items()}
        self._first = {name: _numbers(each) for name, each in apart.items()}
        self._looked: dict[str, Any] = {}

    def changed_buffers(self, apart: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the buffers whose numbers have changed."""
        return {
            name: each for name, each in apart.items() if _numbers(each) != self._first.get(name)
        }

    def note_computed_buffers(self, apart: Mapping[str, torch.Tensor]) -> None:
        """Record which buffers are computed once: they have changed, but not since the
        last call.
        """
        now = {name: _numbers(each) for name, each in apart.items()}
        self._first |= {name: each for name, each in now.items() if self._looked.get(name) == each}
        self._looked = now

    def new_buffers(
        self, state: Mapping[str, Any], buffers: set[str], passed: Iterable[str], what: str
    ) -> list[str]:
        """Return the names of buffers that are new, or have another shape. Names in `passed` are
        not compared.

        Raises:
            UsageError: anything else has come, is gone, or has another shape.
        """
        shapes = {name: _shape(value) for name, value in state.items()}
        if shapes == self.shapes:
            return []
        free = {*passed}
        late = [
            name
            for name in shapes
            if name in buffers and shapes[name] != self.shapes.get(name, "absent")
        ]
        lines = [*_difference_lines(self.shapes, shapes, free.union(late))]
        if lines:
            raise UsageError(
                f"the structure of a tracked {what} has changed since "
                "the run was entered, and no start could restore "
                f"it: {'; '.join(lines[:3])}. Nothing is saved; "
                "the checkpoints of before can be used. Make it before "
                "Run(...) as it will be: layers of their last width, "
                "torch.nn.utils.prune.identity(...) for masks "
                "that come later. Or end this run before the change, "
                "and begin another with start_from="
            )
        return late


class OptimizerBaseline:
    """An optimizer's group sizes and options at the start of its run."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._sizes = _group_sizes(optimizer)
        self.carried = GradientWatch(optimizer)
        self.record_options(optimizer, [])

    def record_options(self, optimizer: Optimizer, moved: Iterable[Mapping[str, Any]]) -> None:
        """Record the present options as the first ones. `moved`: the first values of options that
        had changed, by group.
        """
        known = [dict(each) for each in moved]
        self._moved = [*known, *({} for _ in range(len(optimizer.param_groups) - len(known)))]
        self._first = [_options(group) for group in optimizer.param_groups]

    def changed_options(self, optimizer: Optimizer) -> list[dict[str, Any]]:
        """Return by group the first values of options that the script itself has changed; [] if
        there are none.

        Where a scheduler has left `initial_lr`, that is the first value. An option that is back at
        its first value has not changed, in a resumed run as in the others.
        """
        pairs = zip(optimizer.param_groups, self._first, self._moved, strict=False)
        found = [
            {} if "initial_lr" in group else _changed_values({**first, **known}, _options(group))
            for group, first, known in pairs
        ]
        return found if any(found) else []

    def require_same_groups(self, optimizer: Optimizer) -> None:
        """Require the groups that the optimizer had when the run began.

        Raises:
            UsageError: groups or parameters have come or gone, so that no start could restore them.
        """
        now = _group_sizes(optimizer)
        if now != self._sizes:
            raise UsageError(
                f"a tracked {type(optimizer).__name__} has "
                f"groups of {_format_sizes(now)} parameters, and had "
                f"{_format_sizes(self._sizes)} when the run was entered: "
                "no start could restore that. Nothing is saved; the "
                "checkpoints of before can be used. "
                "Give it all parameters before Run(...), and let those that wait "
                "have no gradients: p.requires_grad_(epoch >= 1) at each epoch's beginning"
            )


_MODULES: WeakKeyDictionary[nn.Module, ModuleBaseline] = WeakKeyDictionary()
_OPTIMIZERS: WeakKeyDictionary[Optimizer, OptimizerBaseline] = WeakKeyDictionary()


def module_baseline(root: nn.Module) -> ModuleBaseline | None:
    """Return the baseline of a module that a run has entered; None for others."""
    return _MODULES.get(root)


def optimizer_baseline(optimizer: Optimizer) -> OptimizerBaseline | None:
    """Return the baseline of an optimizer that a run has entered; None for others."""
    return _OPTIMIZERS.get(optimizer)


def record_baseline(target: nn.Module | Optimizer, state: Mapping[str, Any] | None = None) -> None:
    """Record the present state of a module or an optimizer. `state`: the module's, by
    plain names.
    """
    if isinstance(target, Optimizer):
        drop_baseline(target)
        _OPTIMIZERS[target] = OptimizerBaseline(target)
    else:
        _MODULES[target] = ModuleBaseline(state or {}, unsaved_buffers(target))


def drop_baseline(target: Any) -> None:
    """Drop the baseline of a module or an optimizer: its run has ended."""
    if not isinstance(target, Optimizer):
        _MODULES.pop(target, None)
    elif (known := _OPTIMIZERS.pop(target, None)) is not None:
        known.carried.remove_hooks()


def unsaved_buffers(root: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that are not in the state_dict(), by their names."""
    return {
        f"{name}.{key}" if name else key: each
        for name, module in root.named_modules()
        for key, each in module.named_buffers(recurse=False)
        if key in module._non_persistent_buffers_set and not is_lazy(each)  # noqa: SLF001  torch has no other way
    }


def _numbers(tensor: torch.Tensor) -> Any:
    shape, size = tuple(tensor.shape), tensor.numel() * tensor.element_size()
    if (
        type(tensor) is not torch.Tensor
        or tensor.is_meta
        or tensor.layout != torch.strided
        or size > LARGEST_BYTES
    ):
        return shape, id(tensor), tensor._version  # noqa: SLF001
    return shape, digest(encode_leaf(tensor.detach()).data)


def _shape(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return None
    return "lazy" if is_lazy(value) else tuple(value.shape)


def _difference_lines(
    before: Mapping[str, Any], now: Mapping[str, Any], passed: set[str]
) -> Iterator[str]:
    for name in [*before, *(name for name in now if name not in before)]:
        if (
            name in passed
            or before.get(name) == "lazy"
            or before.get(name, "") == now.get(name, "")
        ):
            continue
        if name not in now:
            yield f"{name} is gone"
        elif name not in before:
            yield f"{name} has come"
        else:
            yield f"{name} has shape {now[name]}, and had {before[name]}"


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: group[name] for name in OPTIONS if isinstance(group.get(name), _NUMBERS)}


def _changed_values(first: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in first.items() if name in now and now[name] != value}


def _group_sizes(optimizer: Optimizer) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]


def _format_sizes(sizes: list[int]) -> str:
    return " + ".join(map(str, sizes))
