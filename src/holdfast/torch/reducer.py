"""Saves and restores the order in which a run's first backward pass made gradients ready in DDP's
reducers.

DistributedDataParallel sums gradients in buckets. It begins with buckets in the order in which
parameters are declared, and rebuilds them once in the order in which the first backward pass made
gradients ready. A restarted process begins with the declared order again; from three ranks on the
sums then differ in their last bits. So Holdfast saves the order. A resume runs a backward pass of
zeros in that order through each reducer, before the state is restored.

Source: torch/csrc/distributed/c10d/reducer.cpp, `autograd_hook`, `delay_all_reduce`,
`rebuild_buckets`; logger.cpp.
"""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import distributed, nn
from torch.autograd import Function, Variable
from torch.nn.parallel import DistributedDataParallel

from . import modules


class BucketLayout(NamedTuple):
    """The parameters' numbers in the order in which their gradients became ready,
    and how many passes count.
    """

    order: list[int]
    passes: int


class ReducerLayouts:
    """Saves and restores the bucket layouts of the DDP models in `objects`,
    which are searched for once.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._models = _ddp_models(objects)

    def capture(self) -> dict[str, list[Any]]:
        """Return the layout of each reducer, by name,
        as plain lists of numbers. No process waits for another.
        """
        return {
            name: list(seen)
            for name, model in self._models.items()
            if (seen := _current_layout(model)) is not None
        }

    def restore_layouts(self, captured: Mapping[str, Any]) -> list[str]:
        """Give the layouts from `capture` to reducers without a backward pass; return their names.
        A collective.

        Gradients are unchanged afterwards. Communication hooks run with zeros: restore their state
        after this.
        """
        warmed = []
        for name, model in self._models.items():
            if name in captured and _current_layout(model) is None:
                order, passes = captured[name]
                parameters = _parameters(model)
                if set(order) <= set(range(len(parameters))):
                    _run_backward(model, parameters, BucketLayout(list(order), passes))
                    warmed.append(name)
        return warmed


def _ddp_models(objects: Mapping[str, Any]) -> dict[str, DistributedDataParallel]:
    """Return DDP's wrappers of tracked models by the name of their first parameter; in the same
    order on every rank.
    """
    if not (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    ):
        return {}
    names = _names(objects)
    found: dict[str, DistributedDataParallel] = {}
    for model in _ddp_wrappers(objects.values()):
        known = [
            names[id(parameter)]
            for parameter in model.module.parameters()
            if id(parameter) in names
        ]
        if known and _rebuilds(model):
            found.setdefault(min(known), model)
    return dict(sorted(found.items()))


def _ddp_wrappers(targets: Iterable[Any]) -> Iterator[DistributedDataParallel]:
    """Yield tracked wrappers, then all others that exist:
    a script may track only the model inside.
    """
    models = [target for target in targets if isinstance(target, nn.Module)]
    inside = [
        module
        for model in models
        for module in model.modules()
        if isinstance(module, DistributedDataParallel)
    ]
    yield from inside
    covered = {id(parameter) for model in inside for parameter in model.parameters()}
    if all(id(parameter) in covered for model in models for parameter in model.parameters()):
        return  # a search through all existing objects takes a tenth of a second
    for each in gc.get_objects():
        if issubclass(type(each), DistributedDataParallel):
            yield each


def _names(objects: Mapping[str, Any]) -> dict[int, str]:
    return {
        id(parameter): f"{name}/{key}"
        for name, target in objects.items()
        if isinstance(target, nn.Module)
        for key, parameter in modules.unwrap(target).named_parameters()
    }


def _rebuilds(model: DistributedDataParallel) -> bool:
    by_python = model._use_python_reducer  # noqa: SLF001  compiled autograd has no buckets
    return not by_python and (model.static_graph or not model.find_unused_parameters)


def _parameters(model: DistributedDataParallel) -> list[nn.Parameter]:
    """Return the parameters in the reducer's order."""
    ignored = model.parameters_to_ignore
    named = model.module.named_parameters()
    return [
        parameter for name, parameter in named if parameter.requires_grad and name not in ignored
    ]


def _current_layout(model: DistributedDataParallel) -> BucketLayout | None:
    """Return the layout of a reducer; None before the first backward pass of this process."""
    wrapper: Any = model
    wrapper.logger.set_runtime_stats_and_log()  # otherwise the data is of the last iteration
    facts: Mapping[str, Any] = wrapper._get_ddp_logging_data()  # noqa: SLF001  there is no other source
    last = _numbers(facts.get("prev_iteration_grad_ready_order_indices"))
    passes = min(int(facts.get("iteration", 0)), 2 if model.static_graph else 1)
    if not last or not passes:
        return None
    built = (
        _numbers(facts.get("rebuilt_per_bucket_param_indices"))
        if facts.get("has_rebuilt_buckets")
        else last
    )
    often = Counter(last)  # in a static graph a parameter may be reached twice, or never
    order = [number for number in built for _ in range(often[number])]
    return BucketLayout(order or last, passes)


def _numbers(text: str | None) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text or "")]


def _run_backward(
    model: DistributedDataParallel, parameters: Iterable[nn.Parameter], seen: BucketLayout
) -> None:
    reducer: Any = model.reducer
    kept = [(parameter, parameter.grad) for parameter in parameters]
    used = {number for number in seen.order if model.static_graph}
    try:
        for _ in range(seen.passes):
            for number, (parameter, _) in enumerate(kept):
                # A missing gradient counts as zeros; in a static graph, as one that never becomes
                # ready.
                parameter.grad = torch.zeros_like(parameter) if number in used else None
            reducer.prepare_for_forward()
            reducer.prepare_for_backward([])
            start = torch.zeros((), requires_grad=True)
            _OrderedBackward.apply(start, model, seen.order).backward()  # type: ignore[no-untyped-call]
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


class _OrderedBackward(Function):
    """A backward pass in which gradients become ready in the given order."""

    @staticmethod
    def forward(
        context: Any, start: torch.Tensor, model: DistributedDataParallel, order: list[int]
    ) -> torch.Tensor:
        context.model, context.order = model, order
        return start.clone()

    @staticmethod
    def backward(context: Any, *_: torch.Tensor) -> tuple[None, None, None]:
        model = context.model
        reducer: Any = model.reducer
        if model.static_graph and not model._static_graph_delay_allreduce_enqueued:  # noqa: SLF001
            Variable._execution_engine.queue_callback(reducer._delay_all_reduce)  # noqa: SLF001
            model._static_graph_delay_allreduce_enqueued = True  # noqa: SLF001
        for number in context.order:
            reducer._autograd_hook(number)  # noqa: SLF001
        return None, None, None
