"""By itself: why two undisturbed runs of one command differ. Pure."""

from __future__ import annotations

from .cause import CauseFacts, DivergenceCause
from .evidence import RunTrace
from .sights import VariableRecord
from .suspects import reordered_containers, script_name, time_variables

UNKNOWN = "unknown"
_SEEDS = {
    "torch": "torch.manual_seed(0)",
    "numpy": "numpy.random.seed(0)",
    "python": "random.seed(0)",
}


def names_a_cause(found: DivergenceCause) -> bool:
    """Whether the result names a cause, and not only which part differed."""
    return found.name not in (UNKNOWN, "unseeded")


def cause_of(first: RunTrace, second: RunTrace, facts: CauseFacts) -> DivergenceCause:
    """Return why `second` differs from `first`:
    what differed before the state did, the most certain first.
    """
    found = _causes(first, second, facts) if first.sights.all and second.sights.all else []
    if not found:
        return DivergenceCause(UNKNOWN, "nothing that was noted differed before the state did")
    also = "".join(f". Or ({each.name}): {each.advice}" for each in found[1:])
    return DivergenceCause(found[0].name, found[0].advice + also)


def _causes(first: RunTrace, second: RunTrace, facts: CauseFacts) -> list[DivergenceCause]:
    began, beside = first.sights.all[0], second.sights.all[0]
    unlike = _differing_generators(began, beside)
    drawn = [
        name for name in unlike if len({sight.rng.get(name) for sight in first.sights.all}) > 1
    ]
    orders, times = (
        reordered_containers(first.sights, second.sights),
        time_variables(first.sights, second.sights),
    )
    found = [_seed_cause(drawn)] if drawn else []
    if orders:
        text = (
            "held the same in another order, as a set of strings is iterated: "
            "sort it, sorted(set(...)), or start"
        )
        found.append(
            DivergenceCause("hash order", f"{_names(orders)} {text} Python with PYTHONHASHSEED=0")
        )
    if facts.other_batch is True and not drawn and facts.unseeded:
        text = "handed out other batches: wrap the dataset, holdfast.data.Seeded(dataset, seed=0)"
        found.append(
            DivergenceCause("augmentation", f"the workers of loader {facts.unseeded} {text}")
        )
    if found:
        return found
    # a generator unused since the first loop may have made the state
    if unlike and began.state != beside.state:
        return [_seed_cause(unlike[:1])]
    text = "holds a time: let no time of day and no duration decide what a step does"
    return (
        [DivergenceCause("clock", f"everything else began equal, and {_names(times)} {text}")]
        if times
        else []
    )


def _differing_generators(began: VariableRecord, beside: VariableRecord) -> list[str]:
    """Return the generators that began in another state."""
    unlike = [name for name, state in began.rng.items() if beside.rng.get(name) != state]
    return sorted(unlike, key=lambda name: [*_SEEDS, name].index(name))


def _seed_cause(names: list[str]) -> DivergenceCause:
    calls = ", ".join(_SEEDS.get(name, f"the seed of {name}") for name in names)
    return DivergenceCause(
        "unseeded",
        f"the generator of {', '.join(names)} began in another state: "
        f"call {calls} before anything draws",
    )


def _names(paths: list[str]) -> str:
    return ", ".join(map(script_name, paths[:3]))
