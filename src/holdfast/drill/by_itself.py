"""By itself: why two undisturbed runs of one command differ. Pure."""

from __future__ import annotations

from .cause import Cause, CauseFacts
from .evidence import Trace
from .sights import VariableRecord
from .suspects import clocks, reordered, spelled

UNKNOWN = "unknown"
_SEEDS = {
    "torch": "torch.manual_seed(0)",
    "numpy": "numpy.random.seed(0)",
    "python": "random.seed(0)",
}


def is_known(found: Cause) -> bool:
    """Whether it names a cause, and not only that something differed."""
    return found.name not in (UNKNOWN, "unseeded")


def cause_of(first: Trace, second: Trace, facts: CauseFacts) -> Cause:
    """Return why `second` differs from `first`:
    what differed before the state did, the most certain first.
    """
    found = _causes(first, second, facts) if first.sights.all and second.sights.all else []
    if not found:
        return Cause(UNKNOWN, "nothing that was noted differed before the state did")
    also = "".join(f". Or ({each.name}): {each.advice}" for each in found[1:])
    return Cause(found[0].name, found[0].advice + also)


def _causes(first: Trace, second: Trace, facts: CauseFacts) -> list[Cause]:
    began, beside = first.sights.all[0], second.sights.all[0]
    unlike = _unlike(began, beside)
    drawn = [
        name for name in unlike if len({sight.rng.get(name) for sight in first.sights.all}) > 1
    ]
    orders, times = reordered(first.sights, second.sights), clocks(first.sights, second.sights)
    found = [_seed(drawn)] if drawn else []
    if orders:
        text = (
            "held the same in another order, as a set of strings is iterated: "
            "sort it, sorted(set(...)), or start"
        )
        found.append(Cause("hash order", f"{_names(orders)} {text} Python with PYTHONHASHSEED=0"))
    if facts.other_batch is True and not drawn and facts.unseeded:
        text = "handed out other batches: wrap the dataset, holdfast.data.Seeded(dataset, seed=0)"
        found.append(Cause("augmentation", f"the workers of loader {facts.unseeded} {text}"))
    if found:
        return found
    # a generator unused since the first loop may have made the state
    if unlike and began.state != beside.state:
        return [_seed(unlike[:1])]
    text = "holds a time: let no time of day and no duration decide what a step does"
    return (
        [Cause("clock", f"everything else began equal, and {_names(times)} {text}")]
        if times
        else []
    )


def _unlike(began: VariableRecord, beside: VariableRecord) -> list[str]:
    """Return the generators that began in another state."""
    unlike = [name for name, state in began.rng.items() if beside.rng.get(name) != state]
    return sorted(unlike, key=lambda name: [*_SEEDS, name].index(name))


def _seed(names: list[str]) -> Cause:
    calls = ", ".join(_SEEDS.get(name, f"the seed of {name}") for name in names)
    return Cause(
        "unseeded",
        f"the generator of {', '.join(names)} began in another state: "
        f"call {calls} before anything draws",
    )


def _names(paths: list[str]) -> str:
    return ", ".join(map(spelled, paths[:3]))
