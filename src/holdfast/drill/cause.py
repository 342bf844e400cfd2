"""Cause: why a resumed run differs, derived from what differed first. Pure.

Each cause is a rule with the evidence that it needs. The strongest evidence is a variable of the
script that the resume did not restore (suspects.py). Then come the run's own reports, the consumed
batch, and the leaves of the state that changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..stateful.tracked import RESERVED
from . import advice
from .advice import AdviceLine
from .compare import MetricDifference, StateDifference
from .evidence import RunTrace
from .report import Fix
from .safepoint import SafePoint
from .suspects import (
    VARS,
    Suspect,
    consumed_other_batch,
    find_suspects,
    restarted_counters,
    script_name,
)

RNG = f"{RESERVED}/rng/"
OWN_TREE = f"tree:{RESERVED}"
_OF_PARAMETER = re.compile(r"[^/]+/state/\d+/")  # what an optimizer of torch holds of a parameter


class CauseFacts(NamedTuple):
    """The known facts about a divergence."""

    # keys that differed at the first safe point where the state did; empty: none ever
    leaves: tuple[str, ...] = ()
    all_leaves: tuple[str, ...] = ()  # every key of the state
    metrics: tuple[str, ...] = ()  # metrics that differed first
    metrics_first: bool = False  # metrics differed while every leaf was still equal
    same_steps: bool = True  # both runs have the same safe points
    # whether the metrics logged by that step were equal; None: it logged none
    same_metrics_there: bool | None = None
    loaders: Mapping[str, Mapping[str, Any]] = {}  # arguments of run.batches, by name
    suspects: Sequence[Suspect] = ()  # variables that the resume did not restore
    variables: frozenset[str] = frozenset()  # names in run.vars
    counting: tuple[str, ...] = ()  # numbers that restarted from their first value
    other_batch: bool | None = None  # whether the step consumed another batch; None: unknown
    # the first step after the resume changed nothing, where the reference run's did
    idle_step: bool = False
    # mistakes in the script that the run reported: kind, name, line
    told: tuple[tuple[str, str, str], ...] = ()
    iterators: tuple[str, ...] = ()  # iterators that the loop advances itself
    # variables that were not compared, with the call that they lack
    unread: Mapping[str, str] = {}
    unwalked: tuple[str, ...] = ()  # loaders of the script that no run.batches walks
    seen: bool = False  # the script's variables were recorded
    # by loader: what its code draws from and changes
    datasets: Mapping[str, Mapping[str, Sequence[str]]] = {}
    entered: str | None = None  # the function that enters the run, "" for the module

    @property
    def optimizers(self) -> set[str]:
        """Names of tracked objects that look like optimizers."""
        names = {
            name
            for key in self.all_leaves
            for name in [key.removeprefix("tree:").partition("/")[0]]
        }
        stateful = {key.partition("/")[0] for key in self.all_leaves if _OF_PARAMETER.match(key)}
        return {name for name in names if "opt" in name.lower()} | stateful

    @property
    def options(self) -> list[str]:
        """The optimizers whose options differed."""
        return sorted(name for name in self.optimizers if f"tree:{name}" in self.leaves)

    @property
    def unseeded(self) -> str:
        """The loaders whose workers draw from unseeded generators, as text; empty: none."""
        workers = (
            (name, str(each.get("dataset")))
            for name, each in self.loaders.items()
            if each.get("workers")
        )
        return ", ".join(
            repr(name) for name, dataset in workers if not dataset.startswith("Seeded(")
        )

    @property
    def state(self) -> frozenset[str]:
        """Names of all tracked objects."""
        return frozenset(
            key.removeprefix("tree:") for key in self.all_leaves if key.startswith("tree:")
        )

    @property
    def only_metrics(self) -> bool:
        """Whether metrics differed but no tracked object did.
        A run stores the mean of logged values.
        """
        return bool(self.metrics) and (self.metrics_first or set(self.leaves) == {OWN_TREE})


class DivergenceCause(NamedTuple):
    """Why a run differs. `lines` are what to write against it."""

    name: str
    text: str
    lines: tuple[AdviceLine, ...] = ()

    @property
    def advice(self) -> str:
        """The advice of all lines as one text."""
        return ". ".join(filter(None, [self.text, "; ".join(line.text for line in self.lines)]))

    def combined_with(self, other: DivergenceCause) -> DivergenceCause:
        """Return this cause with another one that the evidence fits, too."""
        return DivergenceCause(
            self.name,
            f"{self.text}. Also ({other.name}): {other.text}",
            (*self.lines, *other.lines),
        )


POSITION = DivergenceCause(
    "position",
    "the data went on from another place, "
    "and no loader goes through run.batches: iterate `for batch in "
    "run.batches(loader)`, so that the position in the data is restored; "
    "a generator of your own that makes data "
    "belongs among the tracked objects",
)


UNSEEN = DivergenceCause(
    "unseen",
    "the state, the batch and every variable that the drill "
    "can read were equal, and the step's result was not: "
    "something else was left behind by code that an earlier "
    "attempt had run. Look for what is done only once (`if "
    "epoch == 1:`), for attributes of classes and modules, "
    "for what a library holds inside (a solver, an iterator), "
    "and for files; do it again in every epoch, or keep it in run.vars",
)


def gather_facts(
    reference: RunTrace,
    other: RunTrace,
    where: tuple[SafePoint, int],
    parted: StateDifference | None = None,
    metrics: Sequence[MetricDifference] = (),
) -> CauseFacts:
    """Return the facts that lead to the cause, from a comparison with the reference run.

    `where`: the place and the attempt of the first difference of any kind.
    """
    place, attempt = where
    first = metrics[0].place if metrics else None
    there = parted.place if parted is not None else None
    logged = {name for line in reference.metrics if line.place == there for name in line.values}
    told = [
        (each["kind"], each.get("name", ""), each.get("what", ""))
        for each in (*other.told, *reference.told)
    ]
    shown = reference.sights.record_at(place)
    return CauseFacts(
        leaves=parted.leaves if parted is not None else (),
        all_leaves=tuple(reference.states[0].leaves) if reference.states else (),
        metrics=tuple(
            dict.fromkeys(each.name for each in metrics if each.place == first and each.name)
        ),
        metrics_first=first is not None and (there is None or first.order < there.order),
        same_steps=parted is None or bool(parted.leaves),
        same_metrics_there=None if not logged else all(each.place != there for each in metrics),
        loaders=reference.loaders,
        suspects=[]
        if reference.second is None
        else find_suspects(reference.sights, reference.second, other.sights, attempt, place),
        variables=_variables(reference),
        counting=tuple(restarted_counters(reference.sights, other.sights, attempt, place)),
        other_batch=consumed_other_batch(reference.sights, other.sights, attempt, place),
        idle_step=_is_idle(reference, other, place, attempt),
        told=tuple(dict.fromkeys(told)),
        iterators=_iterators(reference),
        unread=_unread(reference),
        unwalked=_unwalked(reference),
        seen=any(sight.values for sight in reference.sights.all),
        datasets=shown.datasets if shown is not None else {},
        entered=next((sight.entered for sight in reference.sights.all), None),
    )


def _variables(reference: RunTrace) -> frozenset[str]:
    return frozenset(
        path.removeprefix(VARS)
        for sight in reference.sights.all
        for path in sight.values
        if path.startswith(VARS)
    )


def _iterators(reference: RunTrace) -> tuple[str, ...]:
    """Return the live iterators:
    the values that the loop takes from them are neither recorded nor restored.
    """
    about = [item for sight in reference.sights.all[-1:] for item in sight.about.items()]
    return tuple(
        script_name(path)
        for path, each in about
        if each.kind == "iterator" and each.live and _has_script_name(path)
    )


def _unread(reference: RunTrace) -> dict[str, str]:
    """Return the live variables of which an object lacks register(), with that call."""
    about = [item for sight in reference.sights.all[-1:] for item in sight.about.items()]
    return {
        re.split(r"[.\[]", script_name(path))[0]: each.unread
        for path, each in about
        if each.unread and each.live and not each.tracked and _has_script_name(path)
    }


def _unread_cause(facts: CauseFacts) -> DivergenceCause:
    """What no comparison can see: objects that need register(), or else anything."""
    if not facts.unread:
        return UNSEEN
    names, calls = ", ".join(facts.unread), dict.fromkeys(facts.unread.values())
    tracked = ", ".join(f"{name}={name}" for name in facts.unread)
    return DivergenceCause(
        "unread",
        f"everything that the drill can read was equal, and it cannot read {names}: say how its "
        f"objects are saved, {'; '.join(calls)}, and track what the loop changes: "
        f"Run(path, dict(..., {tracked}))",
    )


def _has_script_name(path: str) -> bool:
    """Whether the script holds the object in a variable of its own, and not inside a loader
    or library.
    """
    return not path.startswith("loader ") and "._" not in path


def _unwalked(reference: RunTrace) -> tuple[str, ...]:
    paths = (path for sight in reference.sights.all[-1:] for path in sight.values)
    return tuple(
        script_name(path).removesuffix(".persistent_workers")
        for path in paths
        if path.endswith(".persistent_workers") and not path.startswith("loader ")
    )


def _is_idle(reference: RunTrace, other: RunTrace, place: SafePoint, attempt: int) -> bool:
    """Whether no tracked object changed between the resume and the place of the difference."""
    came_to = other.restored.get(attempt)
    expected = {seen.place: _tracked_leaves(seen.leaves) for seen in reference.states}
    here = [
        _tracked_leaves(seen.leaves)
        for seen in other.states
        if (seen.place, seen.attempt) == (place, attempt)
    ]
    if came_to is None or came_to not in expected or place not in expected or not here:
        return False
    return here[0] == expected[came_to] != expected[place]


def _tracked_leaves(leaves: Mapping[str, str]) -> dict[str, str]:
    return {
        key: digest
        for key, digest in leaves.items()
        if not key.startswith(RESERVED) and key != OWN_TREE
    }


def find_cause(facts: CauseFacts) -> DivergenceCause:
    """Return the cause that `facts` support, and what to do about it."""
    found = next(
        (found for rule in _RULES if (found := rule(facts)) is not None), None
    ) or _cause_from_leaves(facts)
    iterator, index = _own_iterator(facts), _restarted_counter(facts)
    if (
        iterator is not None
        and iterator.name != found.name
        and not facts.loaders
        and not facts.only_metrics
    ):
        found = iterator.combined_with(found)  # everything else depends on what it yields
    if index is None or index.name == found.name:
        return found
    shown = not facts.only_metrics and facts.suspects and all(map(advice.is_meter, facts.suspects))
    return (
        index.combined_with(found) if shown else found.combined_with(index)
    )  # no weight depends on a meter


# Rules by evidence, the strongest first
# ------------------------------------------------------------------------------


def _step_without_work(facts: CauseFacts) -> DivergenceCause | None:
    """The first pass after the resume took a batch but did not train on it."""
    unset = [each for each in facts.suspects if each.now is None]
    if not facts.idle_step or not facts.loaders or (facts.suspects and not unset):
        return None
    name = f" ({unset[0].name})" if unset else ""
    return DivergenceCause(
        "prefetched batch",
        "the first step after the resume took a batch and trained on nothing: "
        "the loop asks for a batch one pass "
        f"ahead of its use{name}, so that a checkpoint counts it as consumed. "
        "Let each pass train on the batch that "
        "it is given: `for batch in run.batches(loader)`; "
        "a prefetcher goes inside: run.batches(prefetch(loader))",
    )


def _own_order(facts: CauseFacts) -> DivergenceCause | None:
    """A loader draws its order from a generator that the resume did not restore.

    The run uses its own copy of a DataLoader's generator, so for a DataLoader the batch must
    differ.
    """
    drawing = [
        each.name
        for each in facts.suspects
        if each.about.in_loader and not _is_of_samples(each.name)
    ]
    found = advice.rank_suspects(facts.suspects, facts.variables, data=True, options=False)
    lines = [
        line.text
        for line in advice.advice_lines(found, facts.variables, facts.state, facts.entered)
    ]
    own = any("dataset" not in loader for loader in facts.loaders.values())
    if not drawing or not (own or facts.other_batch is True):
        return None
    return DivergenceCause(
        "order",
        f"a loader draws its order from {', '.join(drawing)}, "
        "a generator of its own. Make the order a function of "
        "the epoch: sampler=holdfast.data.Sampler(dataset, "
        "seed=0) for a DataLoader, holdfast.data.Shuffle(length, "
        "seed, run.epoch) for a loader of your own; "
        "or give the loader state_dict() and load_state_dict(). Where the "
        f"loop draws from it as well: {'; '.join(lines)}",
    )


def _drawn_in_workers(facts: CauseFacts) -> DivergenceCause | None:
    """The batch differed,
    and the code that makes samples draws random numbers in unseeded workers.
    """
    drawn = any(each.get("draws") for each in facts.datasets.values())
    return _consumed_other_batch(facts) if drawn and facts.unseeded else None


def _is_of_samples(name: str) -> bool:
    """Whether the loader's draws there make samples and decide no order."""
    return any(part in name for part in (".collate_fn", ".dataset", "transform"))


def unrestored_variables(facts: CauseFacts) -> DivergenceCause | None:
    """The script's variables that the resume did not restore."""
    had = [each for each in facts.suspects if each.now is not None or each.about.owner]
    found = advice.rank_suspects(
        had, facts.variables, data=facts.other_batch is True, options=bool(facts.options)
    )
    if all(each.unchanged_at_start for each in found):
        return None
    name = advice.kind_of(found[0], facts.variables)
    if name == "variable" and facts.only_metrics:
        name = "accumulator"
    lines = advice.advice_lines(found, facts.variables, facts.state, facts.entered)
    return DivergenceCause(name, advice.describe_suspects(found), tuple(lines))


_TOLD = {
    "forgotten": "it changes from step to step, and is not tracked",
    "left_out": "what changes from step to step is not in its state_dict()",
    "rebound": "a tracked value was given to the run, "
    "and the loop has bound its name to another object",
    "untracked_parameters": "an optimizer steps parameters that no tracked object holds",
    "generator_replaced": "a tracked generator was replaced by another after the run had begun",
}


def _reported_mistake(facts: CauseFacts) -> DivergenceCause | None:
    """The run itself has detected a mistake and reported what to write."""
    known = [each for each in facts.told if each[0] in _TOLD]
    return next(
        (
            DivergenceCause(kind.replace("_", " "), line or f"{name}: {_TOLD[kind]}")
            for kind, name, line in known
        ),
        None,
    )


def _restarted_counter(facts: CauseFacts) -> DivergenceCause | None:
    """A number that counts an epoch's passes restarted, while the batches were the same."""
    if not facts.counting or facts.other_batch is not False:
        return None
    names = ", ".join(script_name(path) for path in facts.counting)
    return DivergenceCause(
        "enumerate",
        f"{names} counted from its first value again after the resume",
        (
            AdviceLine(
                f"Use the index that survives: `for {script_name(facts.counting[0])}, "
                "batch in run.enumerate(loader)` in "
                "the place of enumerate(run.batches(loader))",
                (Fix("enumerate", tuple(map(script_name, facts.counting))),),
            ),
        ),
    )


def _consumed_other_batch(facts: CauseFacts) -> DivergenceCause | None:
    """The step began with an equal state and consumed another batch."""
    if facts.other_batch is not True:
        return None
    changes, draws = (
        sorted({name for each in facts.datasets.values() for name in each.get(kind, ())})
        for kind in ("changes", "draws")
    )
    itself = (
        f"the dataset changes itself as it is read ({', '.join(changes)}): "
        "make what it returns a function of the "
        "index alone, "
        'or track what it changes: dict(..., dataset=Fields(dataset, "'
        + '", "'.join(changes[:3])
        + '")), without workers'
    )
    if facts.unseeded and (draws or not changes):
        also = f". If that does not mend it: {itself}" if changes else ""
        drawn = f" ({', '.join(draws)})" if draws else ""
        return DivergenceCause(
            "augmentation",
            "the state was equal and the batch was not: "
            f"what the workers of loader {facts.unseeded} draw at "
            f"random{drawn} is not restored",
            (
                AdviceLine(
                    f"Wrap the dataset: holdfast.data.Seeded(dataset, seed=0){also}",
                    _seeding_fixes(facts),
                ),
            ),
        )
    if changes:
        return DivergenceCause("dataset", f"the state was equal and the batch was not: {itself}")
    return DivergenceCause(
        "order",
        "the state was equal and the batch was not: "
        "the loader or its sampler draws its order from a generator of "
        "its own, or reads something that changed. "
        "Track the generator: dict(..., rng=rng), or take "
        "holdfast.data.Sampler",
    )


def _own_iterator(facts: CauseFacts) -> DivergenceCause | None:
    if not facts.iterators:
        return None
    names = ", ".join(facts.iterators)
    if facts.loaders:
        return DivergenceCause(
            "iterator",
            f"the loop takes values from {names}, an iterator whose place is not restored",
            (
                AdviceLine(
                    "Let run.batches walk it (holdfast.data.Zip for "
                    "two loaders side by side), or compute its value "
                    "from run.step",
                    (Fix("batches", facts.iterators),),
                ),
            ),
        )
    return DivergenceCause(
        "position",
        f"the loop takes its data from {names}, an iterator whose place is not restored",
        (
            AdviceLine(
                "Iterate `for batch in run.batches(loader)`, "
                "so that the position in the data is restored; track a "
                "generator of your own that makes data",
                (Fix("batches", facts.iterators),),
            ),
        ),
    )


def _seeding_fixes(facts: CauseFacts) -> tuple[Fix, ...]:
    return (
        Fix("seeded", tuple(name for name, each in facts.loaders.items() if each.get("workers"))),
    )


_RULES = (
    _step_without_work,
    _own_order,
    _drawn_in_workers,
    unrestored_variables,
    _restarted_counter,
    _reported_mistake,
    _consumed_other_batch,
    _own_iterator,
)


# Rules by the leaves that differ, where no variable was recorded
# ----------------------------------------------------


def _cause_from_leaves(facts: CauseFacts) -> DivergenceCause:
    if facts.only_metrics:
        return _untracked_number(facts)
    if not facts.leaves:
        return _no_leaf(facts)
    if facts.options and any("sched" in name.lower() for name in facts.state):
        return DivergenceCause(
            "scheduler",
            f"the options of {', '.join(facts.options)} were not "
            "what they had been, although a scheduler is tracked: "
            "what sets them keeps a number outside of its state_dict(). "
            "Keep that in run.vars, or compute it from "
            "run.step",
        )
    if facts.options:
        return DivergenceCause(
            "scheduler",
            f"the options of {', '.join(facts.options)} were not "
            "what they had been: the learning rate jumped. Track "
            "the scheduler: Run(path, dict(..., scheduler=scheduler))",
        )
    if not all(key.startswith(f"{RESERVED}/") or key == OWN_TREE for key in facts.leaves):
        return _weights_cause(facts)
    drawn = any(key.startswith(RNG) for key in facts.leaves)
    if not facts.loaders:
        return _unread_cause(facts) if facts.seen and not facts.unwalked else POSITION
    if drawn:
        return DivergenceCause(
            "draws",
            "the global random generators were drawn from a different "
            "number of times, or by code that runs only in a "
            "resumed run: draw inside the loop only, and load data through run.batches",
        )
    return DivergenceCause(
        "vars", "the position in the data, or a value in run.vars, is not what it was"
    )


def _no_leaf(facts: CauseFacts) -> DivergenceCause:
    if not facts.same_steps:
        return DivergenceCause(
            "steps",
            "the two runs did not take the same steps: "
            "a decision to end or to go on (early stopping, for one) came "
            "from a variable of the loop that a restart begins anew; "
            "keep it in run.vars, and let the loop be "
            "run.epochs, run.batches or run.steps",
        )
    if facts.metrics_first:
        return DivergenceCause(
            "lines",
            "the metrics log has not the same lines: call run.log inside the loops, or after them",
        )
    return DivergenceCause(
        "late",
        "every safe point agreed, so the state changed after its last one; "
        "if nothing did that, report a bug",
    )


def _untracked_number(facts: CauseFacts) -> DivergenceCause:
    """Metrics differ while the whole tracked state is equal: they depend on an untracked value."""
    names = ", ".join(facts.metrics)
    if any(part in name.lower() for name in facts.metrics for part in advice.AVERAGES):
        return DivergenceCause(
            "EMA",
            f"{names} came from an object that is not tracked, "
            "an averaged copy of the weights (EMA, SWA): "
            "add it to the tracked ones, Run(path, dict(..., ema=ema))",
        )
    return DivergenceCause(
        "accumulator",
        f"{names} came from something that is not restored, "
        "while everything tracked was equal: a number or list that "
        "the loop itself changes lives in run.vars; "
        "an object with a state of its own belongs among the tracked ones",
    )


def _weights_cause(facts: CauseFacts) -> DivergenceCause:
    """Weights differ after a step that began with equal ones:
    its data, its randomness or its update differed.
    """
    if facts.same_metrics_there and not facts.optimizers:
        return DivergenceCause(
            "optimizer", "the step began equal and its update differed: track the optimizer"
        )
    if facts.same_metrics_there:
        return DivergenceCause(
            "update",
            "the step began equal, logged the same and its update differed. "
            "What the update reads was not brought "
            f"back: what {', '.join(sorted(facts.optimizers))} "
            "keeps outside of its state_dict() (counters, slow "
            "weights, an optimizer inside), or sparse gradients that were pending",
        )
    if facts.other_batch is False or (facts.seen and not facts.loaders and not facts.unwalked):
        return _unread_cause(facts)
    if not facts.loaders:
        return POSITION
    if facts.unseeded:
        return DivergenceCause(
            "augmentation",
            "the weights were equal one step before, "
            "so the data differed: what the workers of loader "
            f"{facts.unseeded} draw at random is not restored. "
            "Wrap the dataset: holdfast.data.Seeded(dataset, seed)",
        )
    return DivergenceCause(
        "generator",
        "the weights were equal one step before: "
        "randomness was drawn from a generator that is not restored (a "
        "np.random.Generator, random.Random or torch.Generator of your own). "
        "Track it: Run(path, dict(..., rng=rng))",
    )


SWITCHES = (  # for a command that differs from itself
    "seed every generator first (random.seed, numpy.random.seed, torch.manual_seed)",
    "torch.use_deterministic_algorithms(True)",
    "the same number of threads each time (torch.set_num_threads)",
    "holdfast.data.Seeded(dataset, seed) for random augmentation in workers",
    "no time of day, process id or hash order (PYTHONHASHSEED) in the state",
)
