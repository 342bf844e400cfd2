"""Metrics of many ranks: sums and weighted means over ranks, over the steps of an epoch, and
over its interruptions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, Self

import msgspec
import torch
from torch import Tensor, distributed

from ..errors import UsageError
from .world import is_grouped


@dataclass
class Sum:
    """The accumulated values of one metric."""

    mean: bool  # each value counts with its weight, and the sum is divided by the sum of weights
    total: Any = 0.0  # a number, or a tensor whose value was not fetched yet
    weight: Any = 0.0
    count: float = 0.0

    def add(self, total: Any, weight: Any, count: float = 1.0) -> None:
        self.total, self.weight, self.count = (
            _add_sums(self.total, total),
            _add_sums(self.weight, weight),
            self.count + count,
        )

    @property
    def value(self) -> float:
        if not self.mean:
            return float(self.total)
        return float(self.total) / float(self.weight) if self.weight else float("nan")


Sums = dict[str, Sum]


class MetricsTracker:
    """Accumulates numbers on each rank, and on request over all ranks.

        metrics = MetricsTracker()
        for epoch in run.epochs(10):
            for x, y in run.batches(loader):
                ...
                metrics.update({"seen": len(x)}).update({"loss": loss}, weight=len(x))
                run.log(**metrics.reduce().local)
                metrics.reset_local()
            metrics.end_epoch()

    `local`: since the last `reset_local`; of all ranks once they have called `reduce`, before that
    of this rank. `agg`: the reduced values of all ranks since the epoch began. `epoch_reports`:
    `agg` at the end of each epoch. `local` and `agg` read as mappings in which a metric without
    updates is 0.0.

    Values may be tensors on any device; reading one waits only in `reduce` or when `local` is read.
    Sums have 64 bits. `reduce` is a collective: all ranks call it; each may have updated other
    metrics, in another order. Tracked by a `Run` it resumes with its values; updates not reduced
    when the state was saved are lost.
    """

    def __init__(self, group: Any = None) -> None:
        self.epoch_reports: list[dict[str, float]] = []
        self._group = group
        self._fresh: Sums = {}  # of this rank, not reduced yet
        self._local: Sums = {}
        self._agg: Sums = {}
        # name of each metric known to all ranks -> whether it is a mean
        self._known: dict[str, bool] = {}

    @property
    def local(self) -> Mapping[str, float]:
        """Sums and means since the last `reset_local`."""
        return _values(_fetch_sums(self._local, self._fresh))

    @property
    def agg(self) -> Mapping[str, float]:
        """The reduced sums and means of this epoch."""
        return _values(self._agg)

    def update(self, metrics: Mapping[str, Any], weight: Any = None) -> Self:
        """Add each number to the sum of its name; with `weight`, to a weighted mean.

        Raises:
            UsageError: a value is not a single number, or a metric is used both as a sum and as a
                mean.
        """
        for name, value in metrics.items():
            mean = weight is not None
            before = self._fresh.get(name) or self._agg.get(name)
            known = before.mean if before else self._known.get(name, mean)
            if known != mean:
                raise UsageError(
                    f"metric {name!r} is a {_kind_name(known)}: "
                    f"it cannot be a {_kind_name(mean)} as well"
                )
            number = _number(name, value)
            counts = _number(f"{name}'s weight", weight) if mean else 0.0
            self._fresh.setdefault(name, Sum(mean)).add(number * counts if mean else number, counts)
        return self

    def reduce(self) -> Self:
        """Combine the updates of all ranks since the last call; nothing counts twice.

        Raises:
            UsageError: a metric is a sum on one rank and a mean on another.
        """
        several = is_grouped() and distributed.get_world_size(self._group) > 1
        fresh = self._reduce_over_ranks() if several else self._fresh
        self._local, self._agg, self._fresh = (
            _fetch_sums(self._local, fresh),
            _fetch_sums(self._agg, fresh),
            {},
        )
        return self

    def reset_local(self) -> Self:
        """Reset `local`; updates that were not reduced are dropped."""
        self._local, self._fresh = {}, {}
        return self

    def end_epoch(self) -> Self:
        """Append `agg` to `epoch_reports`, and reset it.

        Raises:
            UsageError: an update was not reduced.
        """
        if self._fresh:
            raise UsageError(
                f"end_epoch(): {', '.join(sorted(self._fresh))} was "
                "updated and not reduced: call reduce() on every"
                " rank before it, or reset_local() to leave it out"
            )
        self.epoch_reports.append(dict(self.agg))
        self._agg = {}
        return self.reset_local()

    def state_dict(self) -> dict[str, Any]:
        """The state that is equal on every rank."""
        return {
            "epoch_reports": [dict(report) for report in self.epoch_reports],
            "agg": {name: each.total for name, each in self._agg.items()},
            "weights": {name: each.weight for name, each in self._agg.items() if each.mean},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Restore what `state_dict` returned."""
        weights = state.get("weights", {})
        self.epoch_reports = [dict(report) for report in state["epoch_reports"]]
        self._agg = {
            name: Sum(name in weights, float(total), float(weights.get(name, 0.0)), 1.0)
            for name, total in state["agg"].items()
        }
        return self.reset_local()

    def _reduce_over_ranks(self) -> Sums:
        """Return the sums of all ranks. One collective, unless a metric is new to some rank."""
        device = _device(self._group)
        news = self._fresh.keys() - self._known.keys()
        packed = _pack_sums(self._fresh, self._known, device, news=bool(news))
        distributed.all_reduce(packed, group=self._group)
        *flat, unknown = packed.tolist()
        if unknown:
            self._known = self._agree_on_names(device)
            return self._reduce_over_ranks()
        found = zip(self._known.items(), flat[::3], flat[1::3], flat[2::3], strict=True)
        return {
            name: Sum(mean, total, weight, count)
            for (name, mean), total, weight, count in found
            if count
        }

    def _agree_on_names(self, device: torch.device) -> dict[str, bool]:
        """Return the metrics of all ranks, in one order."""
        mine = self._known | {name: each.mean for name, each in self._fresh.items()}
        every = _gather_json(sorted(mine.items()), self._group, device)
        found: dict[str, bool] = {}
        for name, mean in sorted(pair for theirs in every for pair in theirs):
            if found.setdefault(name, mean) != mean:
                raise UsageError(
                    f"metric {name!r} is a sum on one rank and "
                    "a mean on another: weight= belongs to all"
                )
        return found


def _pack_sums(
    sums: Sums, names: Mapping[str, bool], device: torch.device, *, news: bool
) -> Tensor:
    """Return one tensor on the device with three numbers for each name, and at the end whether
    there are other names.
    """
    found = [sums.get(name, Sum(mean=False)) for name in names]
    numbers = [part for each in found for part in (each.total, each.weight, each.count)]
    known = [0.0 if isinstance(number, Tensor) else number for number in numbers]
    packed = torch.tensor([*known, float(news)], dtype=_sum_dtype(device)).to(device)
    for place, number in enumerate(numbers):
        if isinstance(number, Tensor):
            packed[place] = number
    return packed


def _gather_json(
    mine: list[tuple[str, bool]], group: Any, device: torch.device
) -> list[list[tuple[str, bool]]]:
    """Return each rank's value. It is sent as JSON, padded to one length with spaces:
    all_gather_object would pickle it.
    """
    text = msgspec.json.encode(mine)
    longest = torch.tensor(len(text), device=device)
    distributed.all_reduce(longest, distributed.ReduceOp.MAX, group=group)
    padded = torch.tensor(list(text.ljust(int(longest))), dtype=torch.uint8, device=device)
    theirs = [torch.zeros_like(padded) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(theirs, padded, group=group)
    return [
        msgspec.json.decode(bytes(each.tolist()), type=list[tuple[str, bool]]) for each in theirs
    ]


def _device(group: Any) -> torch.device:
    """Return the device of the group's backend: the CPU if possible."""
    kinds = [pair.split(":")[0] for pair in distributed.get_backend_config(group).split(",")]
    return torch.device("cpu" if "cpu" in kinds else kinds[0])


def _sum_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64


def _number(name: str, value: Any) -> Any:
    """Convert to a float, or to a zero-dimensional tensor."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            raise UsageError(
                f"metric {name!r} is a tensor of shape {tuple(value.shape)}, not one number"
            )
        return value.detach().to(_sum_dtype(value.device)).reshape(())
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"metric {name!r} is a {type(value).__name__}, not one number") from error


def _add_sums(first: Any, second: Any) -> Any:
    if isinstance(first, Tensor) and isinstance(second, Tensor) and first.device != second.device:
        return float(first) + float(second)
    return first + second


def _fetch_sums(*several: Sums) -> Sums:
    """Return all sums as numbers, fetched from the device together."""
    found: Sums = {}
    for name, each in chain.from_iterable(sums.items() for sums in several):
        found.setdefault(name, Sum(each.mean)).add(
            float(each.total), float(each.weight), each.count
        )
    return found


def _values(sums: Sums) -> Mapping[str, float]:
    return MappingProxyType(defaultdict(float, {name: each.value for name, each in sums.items()}))


def _kind_name(mean: bool) -> str:
    return "mean" if mean else "sum"
