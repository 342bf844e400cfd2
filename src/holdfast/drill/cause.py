"""Cause: the usual reason why a resumed run differs, told from what differed first. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..run.tracked import RESERVED
from .compare import MetricDifference, Parting
from .evidence import Trace

RNG = f"{RESERVED}/rng/"
OWN_TREE = f"tree:{RESERVED}"
_AVERAGES = ("ema", "avg", "averag", "swa", "shadow", "teacher", "polyak")


class Facts(NamedTuple):
    """What is known about a divergence."""

    leaves: tuple[str, ...] = ()  # keys that differed at the first safe point where the state did; empty: none ever
    all_leaves: tuple[str, ...] = ()  # every key of the state
    metrics: tuple[str, ...] = ()  # metrics that differed first
    metrics_first: bool = False  # they did while every leaf was still equal
    same_steps: bool = True  # both runs have the same safe points
    same_metrics_there: bool | None = None  # whether what that step logged was equal; None: it logged nothing
    loaders: Mapping[str, Mapping[str, Any]] = {}  # what run.batches was given, by name

    @property
    def optimizers(self) -> set[str]:
        """Names of tracked objects that look like optimizers."""
        names = {name for key in self.all_leaves for name in [key.removeprefix("tree:").partition("/")[0]]}
        stateful = {key.partition("/")[0] for key in self.all_leaves if "/state/" in key}
        return {name for name in names if "opt" in name.lower()} | (stateful - {RESERVED})


class Cause(NamedTuple):
    name: str
    text: str


POSITION = Cause(
    "position",
    "the data went on from another place, and no loader goes through run.batches: iterate `for batch in "
    "run.batches(loader)`, so that the position in the data is restored; a generator of your own that makes data "
    "belongs among the tracked objects",
)


def gather(reference: Trace, parted: Parting | None, metrics: Sequence[MetricDifference]) -> Facts:
    """The facts that tell the cause, from a comparison with the reference run."""
    first = metrics[0].place if metrics else None
    there = parted.place if parted is not None else None
    logged = {name for line in reference.metrics if line.place == there for name in line.values}
    return Facts(
        leaves=parted.leaves if parted is not None else (),
        all_leaves=tuple(reference.states[0].leaves) if reference.states else (),
        metrics=tuple(dict.fromkeys(each.name for each in metrics if each.place == first and each.name)),
        metrics_first=first is not None and (there is None or first.order < there.order),
        same_steps=parted is None or bool(parted.leaves),
        same_metrics_there=None if not logged else all(each.place != there for each in metrics),
        loaders=reference.loaders,
    )


def usual(facts: Facts) -> Cause:
    """The usual cause of what `facts` describe, and what to do about it."""
    if facts.metrics_first and facts.metrics:
        return _untracked_number(facts)
    if not facts.leaves:
        return _no_leaf(facts)
    changed = {f"tree:{name}" for name in facts.optimizers} & set(facts.leaves)
    if changed:
        return Cause(
            "scheduler",
            f"the options of {', '.join(key.removeprefix('tree:') for key in sorted(changed))} were not what they had "
            "been: the learning rate jumped. Track the scheduler: Run(path, dict(..., scheduler=scheduler))",
        )
    own = {key for key in facts.leaves if key.startswith(f"{RESERVED}/") or key == OWN_TREE}
    if own != set(facts.leaves):
        return _weights(facts)
    return _own(own) if facts.loaders else POSITION


def _no_leaf(facts: Facts) -> Cause:
    if not facts.same_steps:
        return Cause(
            "steps",
            "the two runs did not take the same steps: a decision to end or to go on (early stopping, for one) came from a "
            "variable of the loop that a restart begins anew; keep it in run.vars, and let the loop be run.epochs, "
            "run.batches or run.steps",
        )
    if facts.metrics_first:
        return Cause("lines", "the metrics log has not the same lines: call run.log inside the loops, or after them")
    return Cause(
        "late", "every safe point agreed, so the state changed after its last one; if nothing did that, report a bug"
    )


def _untracked_number(facts: Facts) -> Cause:
    """Metrics differ while the whole tracked state is equal: they come from something outside of it."""
    names = ", ".join(facts.metrics)
    if any(part in name.lower() for name in facts.metrics for part in _AVERAGES):
        return Cause(
            "EMA",
            f"{names} came from an object that is not tracked, an averaged copy of the weights (EMA, SWA): "
            "add it to the tracked ones, Run(path, dict(..., ema=ema))",
        )
    return Cause(
        "accumulator",
        f"{names} came from something that is not restored, while everything tracked was equal: a number or list that "
        "the loop itself changes lives in run.vars; an object with a state of its own belongs among the tracked ones",
    )


def _own(keys: set[str]) -> Cause:
    if any(key.startswith(RNG) for key in keys):
        return Cause(
            "draws",
            "the global random generators were drawn from a different number of times, or by code that runs only in a "
            "resumed run: draw inside the loop only, and load data through run.batches",
        )
    return Cause("vars", "the position in the data, or a value in run.vars, is not what it was")


def _weights(facts: Facts) -> Cause:
    """Weights differ after a step that began with equal ones: its data, its randomness or its update differed."""
    if facts.same_metrics_there and not facts.optimizers:
        return Cause("optimizer", "the step began equal and its update differed: track the optimizer")
    if facts.same_metrics_there:
        return Cause(
            "update",
            "the step began equal, logged the same and its update differed: gradients or a gradient scaler that were "
            "carried over and not tracked (GradScaler, accumulate=)",
        )
    if not facts.loaders:
        return POSITION
    plain = [name for name, loader in facts.loaders.items() if _augments_unseeded(loader)]
    if plain:
        return Cause(
            "augmentation",
            f"the weights were equal one step before, so the data differed: what the workers of loader "
            f"{', '.join(map(repr, plain))} draw at random is not restored. Wrap the dataset: holdfast.data.Seeded(dataset, seed)",
        )
    return Cause(
        "generator",
        "the weights were equal one step before: randomness was drawn from a generator that is not restored (a "
        "np.random.Generator, random.Random or torch.Generator of your own). Track it: Run(path, dict(..., rng=rng))",
    )


def _augments_unseeded(loader: Mapping[str, Any]) -> bool:
    return bool(loader.get("workers")) and not str(loader.get("dataset", "")).startswith("Seeded(")


SWITCHES = (
    "seed every generator first (random.seed, numpy.random.seed, torch.manual_seed)",
    "torch.use_deterministic_algorithms(True)",
    "the same number of threads each time (torch.set_num_threads)",
    "holdfast.data.Seeded(dataset, seed) for random augmentation in workers",
    "no time of day, process id or hash order (PYTHONHASHSEED) in the state",
)
