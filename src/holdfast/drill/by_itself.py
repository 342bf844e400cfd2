"""By itself: why two undisturbed runs of one command differ. Pure."""

from __future__ import annotations

from .cause import Cause, CauseFacts
from .evidence import Trace
from .sights import Album
from .suspects import clocks, reordered, spelled, unseeded

UNKNOWN = "unknown"
_SEEDS = {
    "torch": "torch.manual_seed(0)",
    "numpy": "numpy.random.seed(0)",
    "python": "random.seed(0)",
}


def is_known(found: Cause) -> bool:
    """Whether it says more than that something differed."""
    return found.name not in (UNKNOWN, "unseeded")


def cause_of(first: Trace, second: Trace, facts: CauseFacts) -> Cause:
    """Why `second` is not as `first`: what differed before the state did, the surest first."""
    albums = Album(first.sights), Album(second.sights)
    drawn, resting = _unseeded(*albums)
    orders, times = reordered(*albums), clocks(*albums)
    found = [
        *([_seed(drawn)] if drawn else []),
        *([_hash_order(orders)] if orders else []),
        *([_workers(facts)] if facts.other_batch is True and not drawn and _has_workers(facts) else []),
    ]
    if not found and resting and _began_unlike(*albums):
        found.append(_seed(resting[:1]))
    if not found and times:
        found.append(_clock(times))
    if not found:
        return Cause(UNKNOWN, "nothing that was noted differed before the state did")
    also = "".join(f". Or ({each.name}): {each.text}" for each in found[1:])
    return Cause(found[0].name, found[0].text + also)


def _unseeded(a: Album, b: Album) -> tuple[list[str], list[str]]:
    """Generators that began otherwise: those that were drawn from, and those that rested from the first loop on."""
    states: dict[str, set[str]] = {}
    for sight in a.all:
        for name, state in sight.rng.items():
            states.setdefault(name, set()).add(state)
    used = {name for name, seen in states.items() if len(seen) > 1}
    unlike = unseeded(a, b, idle=set(states) - used)
    return [name for name in unlike if name in used], [name for name in unlike if name not in used]


def _began_unlike(a: Album, b: Album) -> bool:
    """Whether what is tracked differed before the first step: a generator that rests since then may have made it."""
    return a.first is not None and b.first is not None and a.first.state != b.first.state


def _seed(names: list[str]) -> Cause:
    calls = ", ".join(_SEEDS.get(name, f"the seed of {name}") for name in names)
    return Cause(
        "unseeded", f"the generator of {', '.join(names)} began in another state: call {calls} before anything draws"
    )


def _hash_order(paths: list[str]) -> Cause:
    names = ", ".join(map(spelled, paths[:3]))
    return Cause(
        "hash order",
        f"{names} held the same in another order, as a set of strings is iterated: sort it, sorted(set(...)), or start "
        "Python with PYTHONHASHSEED=0",
    )


def _has_workers(facts: CauseFacts) -> bool:
    return any(loader.get("workers") for loader in facts.loaders.values())


def _workers(facts: CauseFacts) -> Cause:
    names = ", ".join(repr(name) for name, loader in facts.loaders.items() if loader.get("workers"))
    return Cause(
        "augmentation",
        f"the workers of loader {names} handed out other batches: wrap the dataset, holdfast.data.Seeded(dataset, seed=0)",
    )


def _clock(paths: list[str]) -> Cause:
    names = ", ".join(map(spelled, paths[:3]))
    return Cause(
        "clock",
        f"everything else began equal, and {names} holds a time: let no time of day and no duration decide what a step does",
    )
