"""Captures and restores the running means of values logged by `self.log` in this epoch, and the
states of torchmetrics.

Lightning's checkpoints lack them: after its own restart inside an epoch, the means cover only the
rest of the epoch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import torch

from . import framework

_OWN = (
    "value",
    "cumulated_batch_size",
    "_forward_cache",
    "_computed",
    "_update_count",
    "has_reset",
)
_FUNCTIONS = ("reduce_fx", "_sync")  # fields of a value's description that are not plain values


def capture(results: Any) -> list[dict[str, Any]]:
    return [
        {
            "key": key,
            "described": {
                each.name: getattr(found.meta, each.name) for each in _meta_fields(found.meta)
            },
            "reduce": found.meta.reduce_fx.__name__,
            "sync": {
                "should": found.meta.sync.should,
                "rank_zero_only": found.meta.sync.rank_zero_only,
            },
            "of_metric": not found.is_tensor,
            "values": {name: vars(found)[name] for name in _state_names(found)},
        }
        for key, found in results.items()
    ]


def restore(trainer: Any, stored: list[dict[str, Any]]) -> None:
    """Fill the collection again, as if each value had been logged."""
    results, kinds = (
        trainer.fit_loop.epoch_loop._results,
        framework.module_of(trainer, "trainer.connectors.logger_connector.result"),
    )
    results.clear()
    for each in stored:
        described = kinds._Metadata(**each["described"], reduce_fx=getattr(torch, each["reduce"]))
        sync = each["sync"]
        described.sync = kinds._Sync(
            fn=trainer.strategy.reduce,
            _should=sync["should"],
            rank_zero_only=sync["rank_zero_only"],
        )
        found = kinds._ResultMetric(described, not each["of_metric"])
        if each["of_metric"]:
            found.value = trainer.lightning_module.get_submodule(described.metric_attribute)
        vars(found).update(each["values"])
        results[each["key"]] = found.to(trainer.lightning_module.device)


def capture_metrics(module: Any) -> dict[str, Any]:
    """Return the states of all torchmetrics in the module: most are in no state_dict()."""
    return {
        name: {
            "states": {state: getattr(metric, state) for state in metric._defaults},
            "updates": metric._update_count,
        }
        for name, metric in _metrics(module)
    }


def restore_metrics(module: Any, stored: dict[str, Any]) -> None:
    for name, metric in _metrics(module):
        if name in stored:
            for state, value in stored[name]["states"].items():
                setattr(metric, state, _copy_to(value, metric.device))
            metric._update_count, metric._computed = stored[name]["updates"], None


def _meta_fields(meta: Any) -> Iterator[Any]:
    return (each for each in fields(meta) if each.name not in _FUNCTIONS)


def _state_names(found: Any) -> Iterator[str]:
    skipped = () if found.is_tensor else ("value", "cumulated_batch_size")
    return (name for name in _OWN if name in vars(found) and name not in skipped)


def _metrics(module: Any) -> Iterator[tuple[str, Any]]:
    kind = sys.modules["torchmetrics"].Metric  # Lightning has imported it
    return ((name, each) for name, each in module.named_modules() if isinstance(each, kind))


def _copy_to(value: Any, device: Any) -> Any:
    if isinstance(value, list):
        return [_copy_to(each, device) for each in value]
    return value.to(device, copy=True) if isinstance(value, torch.Tensor) else value
