"""StepObserver: which optimizers step during a run's first steps, and which parameters. Keeps none
of them alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from .stored import memory_id

_READS = 4  # steps of one optimizer at which its parameters are read


class _OptimizerSteps:
    """The steps of one optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer: ReferenceType[Optimizer] = ref(optimizer)
        self.points: set[int] = set()  # the safe points before which it stepped
        self.options = _options(optimizer)
        self.changed = False  # whether an option changed at a later step
        self.parameters: set[int] = set()  # the memory of those that it stepped
        self.reads = 0


class StepObserver:
    """Notes each step of any optimizer, by one hook of torch's, between `begin` and `end`."""

    def __init__(self) -> None:
        self._point = 0
        self._seen: dict[int, _OptimizerSteps] = {}
        self._hook: Any = None

    def begin(self) -> None:
        self._hook = register_optimizer_step_post_hook(self._note_step)

    def end(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._seen.clear()

    def count_from(self, point: int) -> None:
        """Count the steps from here on to the next safe point."""
        self._point = point

    def stepped_memory(self) -> set[int]:
        """Return the data pointers of all parameters that an optimizer has stepped."""
        return set[int]().union(*(each.parameters for each in list(self._seen.values())))

    def untracked(self, held: set[int], kept: Mapping[int, Any]) -> Iterator[tuple[Optimizer, str]]:
        """Yield each optimizer outside of `kept` that carries something from step to step for a
        parameter in `held`.

        `held`: the memory of all tensors that the run saves. `kept`: ids of optimizers. Each result
        also says what the optimizer carries. An optimizer that is made anew in each step carries
        nothing over a safe point.
        """
        for each in list(self._seen.values()):
            optimizer = each.optimizer()
            if (
                optimizer is None
                or id(optimizer) in kept
                or len(each.points) < 2
                or each.parameters.isdisjoint(held)
            ):
                continue
            if any(_has_content(entry) for entry in list(optimizer.state.values())):
                yield optimizer, "its state"
            elif each.changed:
                yield optimizer, "its options, which change in training,"

    def parameters_of(self, optimizer: Optimizer) -> set[int]:
        """Return the memory of the parameters that the optimizer was seen to step."""
        each = self._seen.get(id(optimizer))
        return set() if each is None or each.optimizer() is not optimizer else each.parameters

    def _note_step(self, optimizer: Optimizer, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        each = self._seen.get(id(optimizer))
        if each is None or each.optimizer() is not optimizer:
            each = self._seen[id(optimizer)] = _OptimizerSteps(optimizer)
        if self._point not in each.points:
            each.points.add(self._point)
            each.changed = each.changed or _options(optimizer) != each.options
        if each.reads < _READS:
            each.reads += 1
            groups = optimizer.param_groups
            each.parameters |= {
                memory_id(one)
                for group in groups
                for one in group["params"]
                if one.grad is not None
            }


def _options(optimizer: Optimizer) -> list[dict[str, Any]]:
    kinds = (bool, int, float, tuple)
    return [
        {name: each for name, each in group.items() if isinstance(each, kinds)}
        for group in optimizer.param_groups
    ]


def _has_content(entry: Any) -> bool:
    if isinstance(entry, Mapping):
        return any(_has_content(each) for each in entry.values())
    return entry is not None
